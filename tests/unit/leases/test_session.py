"""The permission to emit, which several threads ask for, and the heartbeats that keep it."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from leases.clock import SystemClock
from leases.conditions import Unknown, Write, Written
from leases.rows import Load, SessionRow, SessionState
from leases.session import Session
from leases.timings import ANSWER_SECONDS, Timings
from tests.simulation.loop import LocalClock
from tests.simulation.table import apply
from tests.unit.leases.virtual import run
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


class Slow:
    """Answers some attempts of heartbeats not at all, and all other calls as late as a good answer may come."""

    def __init__(self, slow: Callable[[int, int], bool], answer: float) -> None:
        self.slow, self.answer = slow, answer
        """Which: told the heartbeat's number, and how many attempts of it there were before."""
        self.attempts: dict[int, int] = {}
        self.row: dict[str, Any] | None = None

    async def write(self, write: Write) -> Written:
        await asyncio.sleep(self.answer)
        seq = write.set["seq"]
        before = self.attempts.get(seq, 0)
        self.attempts[seq] = before + 1
        if write.name == "heartbeat" and self.slow(seq, before):
            await asyncio.Event().wait()
        self.row = apply(write, self.row)
        return Written(self.row)


class Latest:
    """Chooses the longest pause each time."""

    def uniform(self, least: float, most: float) -> float:
        return most


async def opened(clock: Any, table: Any = None, timings: Timings | None = None, rng: Any = None) -> Session:
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
        rng=rng or Random(1),
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


async def test_an_opening_that_hangs_is_given_up_once_its_answer_would_be_of_no_use() -> None:
    timings = Timings(heartbeat=0.05, self_fence=1.15, drain=0.2, takeover=2.5, call_timeout=0.05)
    with pytest.raises(Unknown, match="open: no answer in time"):
        await opened(SystemClock(), Slow(lambda *_: False, answer=3600), timings)


TIGHT = (
    Timings(),
    Timings(self_fence=4.2),
    Timings(heartbeat=0.3, self_fence=3.5, takeover=5.0),
    Timings(heartbeat=0.05, self_fence=3.45, takeover=5.0),
    Timings(heartbeat=1.0, self_fence=5.5, takeover=8.0, call_timeout=1.85),
)
"""The defaults, and timings at the bound of the rule about two slow attempts."""

PATTERNS = {
    "the first attempt of each heartbeat": lambda seq, before: before == 0,
    "two attempts of each second heartbeat": lambda seq, before: seq % 2 == 0 and before < 2,
}


def gaps(timings: Timings, slow: Callable[[int, int], bool], answer: float) -> list[float]:
    """When a session with heartbeats slowed down may not emit, in seconds of a clock that costs no time."""
    held: list[float] = []

    async def watch(clock: LocalClock) -> None:
        session = await opened(clock, Slow(slow, answer), timings, Latest())
        asyncio.get_running_loop().create_task(session.run())
        while True:
            await asyncio.sleep(0.005)
            if not session.may_emit():
                held.append(clock.now())

    run(watch, 60)
    return held


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("timings", TIGHT, ids=str)
def test_two_slow_attempts_in_a_row_take_no_right_to_emit(timings: Timings, pattern: str) -> None:
    assert gaps(timings, PATTERNS[pattern], ANSWER_SECONDS - 0.01) == []


def test_the_rule_is_no_stricter_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timings, "__post_init__", lambda _: None)
    slow = PATTERNS["two attempts of each second heartbeat"]
    assert gaps(Timings(self_fence=4.2 - 0.1), slow, ANSWER_SECONDS)
