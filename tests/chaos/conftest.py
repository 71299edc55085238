"""Figures that are shown whether or not a test fails."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from local.processes import Processes

Show = Callable[[Mapping[str, Any]], None]


@pytest.fixture
def show(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Show:
    """Prints the figures of a scenario, one JSON object a line."""

    def show(figures: Mapping[str, Any]) -> None:
        with capsys.disabled():
            print(json.dumps({"scenario": request.node.name, **figures}), flush=True)

    return show


@pytest.fixture(scope="module", autouse=True)
def logs_of_failures(request: pytest.FixtureRequest, processes: Processes) -> Iterator[None]:
    """Leave the logs of all processes behind when a test of the module fails."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        processes.keep_logs()
