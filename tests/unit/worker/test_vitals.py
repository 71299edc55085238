"""What a process tells about itself, also when it has nothing left to look with."""

import json
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.worker.outputs import ScriptedSink, output
from worker.metering import Meter
from worker.upstream import Intake
from worker.vitals import Vitals


@pytest.fixture
def no_descriptors_left() -> Iterator[None]:
    """Nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {name: value for line in lines if "_aws" in line for name, value in line.items()}


async def test_the_vital_signs(capsys: pytest.CaptureFixture[str]) -> None:
    Vitals(Meter("test"), output(ScriptedSink()), Intake(), lambda: 0.5).flush()
    values = told(capsys)
    assert values["Load"] == [50.0]
    assert values["OpenFiles"][0] >= 3
    assert values["ResidentMemory"][0] > 1_000_000


async def test_a_process_without_a_free_descriptor_tells_the_rest(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    vitals = Vitals(Meter("test"), output(ScriptedSink()), Intake(), lambda: 0.5)
    request.getfixturevalue("no_descriptors_left")
    with pytest.raises(OSError, match="Too many open files"):
        os.open(os.devnull, os.O_RDONLY)
    vitals.flush()
    values = told(capsys)
    assert values["Load"] == [50.0]
    assert "OpenFiles" not in values
