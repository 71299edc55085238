"""A judge at work: with any legal timings it ends who stands still, and nobody because of its own blindness."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from leases.conditions import Refused, Write, Written
from leases.fleet import FleetView
from leases.judging import LIST_SECONDS, Judging
from leases.ports import Page
from leases.rows import Item, Key, Load, SessionRow, SessionState
from leases.session import Session
from leases.timings import Timings
from leases.writes import heartbeat, open_session
from tests.simulation.loop import LocalClock
from tests.simulation.table import apply, evaluate
from tests.unit.leases.virtual import run

ANSWER_SECONDS = 0.05
ROUNDING = 0.5
"""Seconds: what answers add to a watch."""


class Table:
    """Session rows, each answer a little late."""

    def __init__(self) -> None:
        self.rows: dict[Key, Item] = {}
        self.unwritable = False
        """Whether writes are neither applied nor answered."""

    async def write(self, write: Write) -> Written | Refused:
        await asyncio.sleep(ANSWER_SECONDS)
        if self.unwritable:
            await asyncio.Event().wait()
        row = self.rows.get(write.key)
        if not evaluate(write.condition, row):
            return Refused(row)
        self.rows[write.key] = apply(write, row)
        return Written(self.rows[write.key])

    async def get_many(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        await asyncio.sleep(ANSWER_SECONDS)
        return {key: self.rows[key] for key in keys}

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        await asyncio.sleep(ANSWER_SECONDS)
        return Page([row for key, row in self.rows.items() if key.pk == f"SESSIONS#{shard}"], None)

    def state(self, row: SessionRow) -> str:
        state: str = self.rows[open_session(row).key]["state"]
        return state


def named(timings: Timings) -> str:
    return f"R={timings.heartbeat:g} P={timings.judge_poll:g}"


def row(session: str, timings: Timings) -> SessionRow:
    return SessionRow(
        session=session, state=SessionState.LIVE, seq=0, takeover_ms=timings.takeover_ms, capacity=1, held=0, rate=0,
        revision=1, task_arn=f"task-{session}", inbox=frozenset(), opened_at=0,
    )  # fmt: skip


async def judge(clock: LocalClock, table: Any, timings: Timings) -> None:
    """Open a session that beats and judges, and let it go on."""
    nobody: Any = type("Nobody", (), {"saw": lambda *_: None, "sweep_now": lambda *_: None})()
    session = Session(
        row("judge", timings),
        store=table,
        clock=clock,
        timings=timings,
        rng=Random(1),
        load=Load,
        observer=nobody,
    )
    assert await session.open()
    judging = Judging(
        session,
        store=table,
        clock=clock,
        timings=timings,
        view=FleetView(),
        sweeper=nobody,
        observer=nobody,
    )
    tasks = asyncio.get_running_loop()
    table.tasks = [tasks.create_task(session.run()), tasks.create_task(judging.run())]


@pytest.mark.parametrize(
    "timings",
    [
        Timings(),
        Timings(heartbeat=0.3, judge_poll=0.25),
        Timings(judge_poll=1.0),
        Timings(judge_poll=2.0),
        Timings(heartbeat=0.2, judge_poll=3.0),
    ],
    ids=named,
)
def test_a_session_that_stands_still_is_ended_after_w(timings: Timings) -> None:
    table, silent = Table(), row("silent", timings)

    async def scene(clock: LocalClock) -> None:
        await table.write(open_session(silent))
        await judge(clock, table, timings)
        begun = clock.now()
        while table.state(silent) != SessionState.DEAD:  # noqa: ASYNC110 - looks at what is written
            await asyncio.sleep(0.1)
        seconds = clock.now() - begun
        assert timings.takeover <= seconds <= timings.takeover + 2 * timings.judge_poll + ROUNDING

    run(scene, 4 * timings.takeover + LIST_SECONDS)
    assert table.state(silent) == SessionState.DEAD


@pytest.mark.parametrize("fleet", [1, 4, 9, 40])
def test_who_comes_to_a_fleet_of_which_all_are_dead_ends_them_in_one_watch(fleet: int) -> None:
    timings = Timings()
    table, silent = Table(), [row(f"silent-{number}", timings) for number in range(fleet)]

    async def scene(clock: LocalClock) -> None:
        for session in silent:
            await table.write(open_session(session))
        await judge(clock, table, timings)
        begun = clock.now()
        while any(table.state(session) != SessionState.DEAD for session in silent):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        assert clock.now() - begun <= max(timings.takeover, LIST_SECONDS) + ROUNDING + fleet * ANSWER_SECONDS

    run(scene, 100)
    assert {table.state(session) for session in silent} == {SessionState.DEAD}


@pytest.mark.parametrize("away", [2.0, 4.0, 8.0, 30.0])
@pytest.mark.parametrize(
    "timings", [Timings(), Timings(judge_poll=2.0), Timings(heartbeat=1.2, judge_poll=3.3)], ids=named
)
def test_while_nothing_can_be_written_nobody_is_ended_nor_when_that_is_over(timings: Timings, away: float) -> None:
    table, other = Table(), row("other", timings)

    async def scene(clock: LocalClock) -> None:
        await table.write(open_session(other))
        await judge(clock, table, timings)
        begun, seq = clock.now(), 0
        while clock.now() < begun + 60 + away:
            table.unwritable = 20 <= clock.now() - begun < 20 + away
            if not table.unwritable:
                # It has a second or so for every heartbeat, as the judge itself has, and is slow to notice the end.
                await asyncio.sleep(timings.call_timeout if clock.now() - begun > 20 else 0)
                seq += 1
                await table.write(heartbeat("other", seq, Load(), frozenset()))
                assert table.state(other) == SessionState.LIVE
            await asyncio.sleep(timings.heartbeat)

    run(scene, 200)
