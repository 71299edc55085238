"""What the documents name is there: links, headings, `make` targets, modules, settings, variables, metrics, figures."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from bench.costs import Fleet, settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "spec" / "README.md", *sorted(ROOT.joinpath("docs").rglob("*.md"))]
CODE = ("connections", "infrastructure", "lambdas", "leases", "local", "telemetry", "worker")
PACKAGES = (*CODE, "bench", "docs", "spec", "tests")


def name_of(document: Path) -> str:
    """A document's path in the repository."""
    return str(document.relative_to(ROOT))


document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@cache
def code() -> frozenset[str]:
    """Every word of the code that runs and deploys, and the names of alarms: each has a runbook under its name."""
    files = [path for package in CODE for path in ROOT.joinpath(package).rglob("*.py")]
    files += [ROOT / "cdk.json", ROOT / "Makefile", ROOT / "worker" / "Dockerfile"]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    return frozenset(
        words | set(re.findall(r"^## (\w+)$", ROOT.joinpath("docs/runbooks.md").read_text(), re.MULTILINE))
    )


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> Iterator[str]:
    """What a document puts between backticks, in its prose."""
    return (span for span in re.findall(r"`([^`\n]+)`", prose(text)))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@document
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = document.parent / file if file else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@document
def test_what_is_to_be_made_can_be_made(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", ROOT.joinpath("Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    named = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)", text))
    assert named <= targets


@document
def test_modules_and_folders_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    paths = {span for span in spans(text) if re.fullmatch(rf"(?:{'|'.join(PACKAGES)})/[\w./-]*", span)}
    modules = set(re.findall(r"python -m ([\w.]+)", text)) - {"pip", "venv"}
    missing = {path for path in paths if not ROOT.joinpath(path).exists()} - {"spec/build/"}
    for module in modules:
        file = ROOT / module.replace(".", "/")
        missing |= set() if file.with_suffix(".py").exists() or file.joinpath("__main__.py").exists() else {module}
    assert not missing


@document
def test_settings_that_are_named_can_be_set(document: Path) -> None:
    context = json.loads(ROOT.joinpath("cdk.json").read_text())["context"]
    named = set(re.findall(r"fleet:[a-z]\w*", document.read_text())) - {"fleet:key"}
    assert named <= context.keys()


# The model has names of its own.
@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one.parent.name != "spec"], ids=name_of)
def test_variables_and_constants_that_are_named_are_in_the_code(document: Path) -> None:
    named = {
        name
        for span in spans(document.read_text())
        for name in re.findall(r"(?<![$\w{])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", span)
    }
    assert named <= code()


@document
def test_metrics_alarms_and_classes_that_are_named_are_in_the_code(document: Path) -> None:
    text = document.read_text()
    camel = r"[A-Z][a-z]+(?:[A-Z][a-z]+)+"
    named = {span for span in spans(text) if re.fullmatch(camel, span)} | set(
        re.findall(rf"\*({camel})\*", prose(text))
    )
    assert named <= code()


FIGURES: dict[str, Callable[[Fleet], float]] = {
    "Fargate arm64": Fleet.fargate,
    "public IPv4": Fleet.network,
    "DynamoDB": Fleet.dynamodb,
    "**": Fleet.total,
}


@pytest.mark.parametrize("connections", [1_000, 10_000])
@pytest.mark.parametrize("document", ["README.md", "docs/costs.md"])
def test_costs_are_those_that_the_calculator_prints(document: str, connections: int) -> None:
    column = 1 if connections == 1_000 else 2
    fleet = Fleet(settings({}), connections)
    text = ROOT.joinpath(document).read_text()
    for name, figure in FIGURES.items():
        row = next(
            line
            for line in text.splitlines()
            if re.match(rf"\| {re.escape(name)}.*\| (?:\*\*)?[\d,]+(?:\*\*)? \|", line)
        )
        assert row.split("|")[column + 1].strip(" *") == f"{figure(fleet):,.0f}", name
