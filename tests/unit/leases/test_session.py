"""The permission to emit, which several threads ask for."""

import asyncio
from random import Random
from typing import Any

import pytest

from leases.clock import SystemClock
from leases.conditions import Write, Written
from leases.rows import Load, SessionRow, SessionState
from leases.session import Session
from leases.timings import Timings
from tests.simulation.table import apply
from tests.unit.worker.outputs import until


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


class Hanging:
    """Opens the session, then answers no attempt but every second one."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.rows: list[dict[str, Any]] = []

    async def write(self, write: Write) -> Written:
        if write.name == "heartbeat":
            self.seqs.append(write.set["seq"])
            if len(self.seqs) % 2:
                await asyncio.Event().wait()
        self.rows.append(apply(write, self.rows[-1] if self.rows else None))
        return Written(self.rows[-1])


async def opened(clock: Any, table: Any = None, timings: Timings | None = None) -> Session:
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
    store: Any = table or Table()
    session = Session(
        row,
        store=store,
        clock=clock,
        timings=timings or Timings(),
        rng=Random(1),
        load=Load,
        observer=nobody,
    )
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


async def test_an_attempt_that_hangs_does_not_keep_the_next_one_from_being_made() -> None:
    """A name server that does not answer, or an answer that drips in, holds up a call beyond every time-out of it."""
    table = Hanging()
    timings = Timings(heartbeat=0.2, self_fence=2, drain=0.2, takeover=2.5, call_timeout=0.2)
    session = await opened(SystemClock(), table, timings)
    running = asyncio.create_task(session.run())
    await until(lambda: len(table.seqs) >= 4)
    assert table.seqs[:4] == [1, 1, 2, 2]
    running.cancel()
