"""What the engine's long tests measured: an upstream that comes back weak, a stalled sink, ten thousand reopened.

    python -m bench.crowds [--only NAME ...] [--save DIRECTORY]

Each is a test of `tests/integration/engine/test_crowds.py`, which says what it does and what must hold; the figures are
those that it records.
"""

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

TESTS = "tests/integration/engine/test_crowds.py"

CASES = {
    "upstream": (
        "test_an_upstream_that_drops_everybody_and_comes_back_weak_is_not_stormed[large]",
        "600 connections dropped at once; their upstream is away for 60 s and then admits 20 a second",
    ),
    "sink": (
        "test_a_stalled_sink_costs_bounded_memory_and_no_message_and_pongs_go_on[large]",
        "100 connections, 50 messages of 2 KB a second on each; the sink takes nothing for 60 s",
    ),
    "reopening": (
        "test_reopening_leaks_no_file_no_task_and_no_memory[10000]",
        "50 connections to a server that sends a message and closes, until 10,000 more have been opened",
    ),
}

Figures = dict[str, Any]


def measure(test: str) -> Figures:
    """Run one test. Exits if it fails."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        started = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "soak", f"{TESTS}::{test}", f"--junitxml={report}"],
            capture_output=True,
            text=True,
        )
        took = time.monotonic() - started
        if ran.returncode:
            sys.exit(ran.stdout)
        properties = ElementTree.parse(report).iter("property")  # noqa: S314 - it is pytest's
        (recorded,) = [each.get("value") for each in properties if each.get("name") == "figures"]
    found: Figures = ast.literal_eval(str(recorded))
    return found | {"the whole test, seconds": round(took)}


def lines(figures: Figures) -> list[str]:
    """A table's rows."""
    rows = []
    for name, value in figures.items():
        told = ", ".join(f"{part} {number:,}" for part, number in value.items()) if isinstance(value, dict) else value
        rows.append(f"| {name} | {told} |")
    return rows


def main() -> None:
    """Run the cases and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--save", type=Path, metavar="DIRECTORY", help="also write crowds.json and crowds.md there")
    arguments = parser.parse_args()
    measured = {name: measure(CASES[name][0]) for name in arguments.only}
    sys.stdout.write(json.dumps(measured, indent=2) + "\n")
    if arguments.save is not None:
        save(arguments.save, measured)


def save(directory: Path, measured: dict[str, Figures]) -> None:
    """Write the figures; those of cases that were not run now stay."""
    kept = directory / "crowds.json"
    merged: dict[str, Figures] = (json.loads(kept.read_text()) if kept.exists() else {}) | measured
    kept.write_text(json.dumps(merged, indent=2) + "\n")
    where = f"CPython {platform.python_version()}, uvloop {version('uvloop')}, {os.cpu_count()} shared cores"
    text = [
        "# One worker process when things go wrong",
        "",
        f"`python -m bench.crowds --save bench/results` on {where}.",
    ]
    for name, (test, title) in CASES.items():
        if name in merged:
            text += ["", f"## {title}", "", f"`{test}`", "", "| | |", "|---|---|", *lines(merged[name])]
    (directory / "crowds.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
