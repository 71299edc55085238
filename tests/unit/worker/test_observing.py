"""What becomes of what the protocol tells: each metric says what its description says, and a fault is logged once."""

import json
from typing import Any

import pytest

from leases import events
from leases.rows import DeadBy
from worker import observing
from worker.metering import Meter
from worker.observing import Watching


class Told:
    """What was counted, metrics with a cause under `NAME cause`, and what was logged."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._capsys = capsys

    def info(self, message: str, extra: dict[str, Any]) -> None:
        self.lines.append({"message": message, **extra})

    warning = info

    def of(self, *seen: events.Event) -> dict[str, float]:
        meter = Meter("test")
        watching = Watching(meter, 5.0)
        for event in seen:
            watching.saw(event)
        meter.flush()
        written = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return {
            f"{metric['Name']} {line.get('cause', '')}".strip(): sum(line[metric["Name"]])
            for line in written
            for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
        }


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told(capsys)
    monkeypatch.setattr(observing, "log", told)
    return told


def test_a_session_that_was_declared_dead_has_returned(told: Told) -> None:
    metrics = told.of(events.SessionLost("s", 7, "declared dead by judge"))
    assert metrics == {"HeartbeatsLost": 1, "DeadSessionsReturned": 1}
    (line,) = told.lines
    assert line["event"] == "lease_lost"
    assert line["reason"] == "declared dead by judge"
    assert "7 connections" in line["message"]


def test_a_session_that_gave_itself_up_was_not_lost_and_has_not_returned(told: Told) -> None:
    metrics = told.of(events.SessionGivenUp("s", 7, "on hold for 120 s"))
    assert metrics == {"SessionsDeclaredDead self": 1}
    (line,) = told.lines
    assert line["event"] == "on_hold"
    assert "7 connections" in line["message"]


def test_a_heartbeat_without_an_answer_is_neither(told: Told) -> None:
    metrics = told.of(events.HeartbeatUnknown("no answer in time"))
    assert metrics == {"HeartbeatsUnknown": 1}
    (line,) = told.lines
    assert line["event"] == "lease_renew_error"


def test_whoever_declares_another_dead_counts_it_by_cause(told: Told) -> None:
    metrics = told.of(events.DeclaredDead("s", 7.2), events.VerdictRefused("t"))
    assert metrics == {"SessionsDeclaredDead judge": 1}


def test_a_failover_is_counted_by_its_cause_and_a_first_claim_is_none(told: Told) -> None:
    metrics = told.of(
        events.Claimed("c", 8, "s", DeadBy.EXIT, 3.0),
        events.Claimed("c", 9, "FREE#1", None, 2.0),
        events.Claimed("d", 8, "FREE#1", None, None),
    )
    assert metrics == {"Claims": 3, "Outage exit": 3, "Outage release": 2}
