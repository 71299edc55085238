"""What is counted and sampled reaches CloudWatch, a line at a time."""

import json

import pytest

from telemetry.metrics import CLAIMS, OUTAGE, Cause
from worker.metering import SAMPLES, Meter


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_failover_of_a_full_worker_is_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("test")
    for number in range(600):
        meter.count(CLAIMS)
        meter.sample(OUTAGE, number / 10, Cause.JUDGE)
    meter.flush()
    told = lines(capsys)
    outages = [value for line in told if line.get("cause") == "judge" for value in line["Outage"]]  # type: ignore[attr-defined]
    assert sorted(outages) == [number / 10 for number in range(600)]
    assert [line["Claims"] for line in told if "Claims" in line] == [[600.0]]
    assert all(len(value) < 100 for line in told for value in line.values() if isinstance(value, list))


def test_of_more_than_are_kept_the_largest_are(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("test")
    for number in range(SAMPLES + 10):
        meter.sample(OUTAGE, number, Cause.EXIT)
    meter.flush()
    outages = [value for line in lines(capsys) for value in line["Outage"]]  # type: ignore[attr-defined]
    assert sorted(outages) == list(range(10, SAMPLES + 10))
