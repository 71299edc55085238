"""The permission to emit, which several threads ask for."""

from random import Random
from typing import Any

import pytest

from leases.conditions import Write, Written
from leases.rows import Load, SessionRow, SessionState
from leases.session import Session
from leases.timings import Timings
from tests.simulation.table import apply


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.monotonic, self.unix = 100.0, 1_800_000_000.0

    def now(self) -> float:
        return self.monotonic

    def wall(self) -> float:
        return self.unix


class Table:
    async def write(self, write: Write) -> Written:
        return Written(apply(write, None))


async def opened(clock: Clock) -> Session:
    row = SessionRow(
        session="s",
        state=SessionState.LIVE,
        seq=0,
        takeover_ms=7000,
        capacity=1,
        held=0,
        rate=0,
        revision=1,
        task_arn="t",
        inbox=frozenset(),
        opened_at=0,
    )
    nobody: Any = type("Nobody", (), {"saw": lambda *_: None})()
    table: Any = Table()
    session = Session(row, store=table, clock=clock, timings=Timings(), rng=Random(1), load=Load, observer=nobody)
    assert await session.open()
    return session


async def test_after_a_jump_of_a_clock_no_thread_gets_past_while_another_takes_note_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    session = await opened(clock)
    assert session.may_emit()
    clock.unix += 60
    distrust = session._distrust
    others: list[bool] = []

    def interrupted() -> None:
        monkeypatch.setattr(session, "_distrust", distrust)
        # The thread that noticed the jump first is suspended here, and another one asks.
        others.append(session.may_emit())
        distrust()

    monkeypatch.setattr(session, "_distrust", interrupted)
    assert not session.may_emit()
    assert others == [False]
    assert not session.may_emit()


async def test_the_deadline_counts_from_when_the_heartbeat_was_sent() -> None:
    clock = Clock()
    session = await opened(clock)
    clock.monotonic += 4.9
    clock.unix += 4.9
    assert session.may_emit()
    clock.monotonic += 0.1
    clock.unix += 0.1
    assert not session.may_emit()
