"""A member with a table in memory, on the clocks of this machine: how it ends."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from leases import events, moving
from leases.clock import SystemClock
from leases.conditions import Refused, Unknown, Write, Written
from leases.fleet import Fleet
from leases.member import Identity, Member
from leases.ports import Grant, Page, Parting, Remains
from leases.rows import (
    ConnectionRow,
    DeadBy,
    Handoff,
    Item,
    Key,
    Load,
    connection_key,
    connection_of,
    free_owner,
    session_shard,
)
from leases.timings import Timings
from leases.writes import declare_dead
from tests.simulation.table import apply, evaluate
from tests.unit.worker.outputs import until

TIMINGS = Timings(heartbeat=0.2, self_fence=2, drain=0.2, takeover=2.5, call_timeout=0.2)


class MemoryTable:
    """Applies every write at once; the answers to those in `unanswered` are lost."""

    def __init__(self) -> None:
        self.rows: dict[Key, Item] = {}
        self.unanswered: set[str] = set()
        self.applied: Callable[[str], object] = lambda _: None
        self.out = False
        self.held_up: dict[str, asyncio.Event] = {}
        """Writes whose answers wait for an event."""

    async def write(self, write: Write) -> Written | Refused:
        await asyncio.sleep(0)
        if self.out:
            raise Unknown("out of reach")
        row = self.rows.get(write.key)
        if not evaluate(write.condition, row):
            return Refused(row)
        self.rows[write.key] = apply(write, row)
        self.applied(write.name)
        if write.name in self.unanswered:
            raise Unknown("the answer is lost")
        answer = Written(self.rows[write.key])
        if write.name in self.held_up:
            await self.held_up[write.name].wait()
        return answer

    def free(self, connection: str) -> None:
        """A connection that wants an owner."""
        key = connection_key(connection)
        self.rows[key] = {
            "pk": key.pk,
            "sk": key.sk,
            "owner": free_owner(connection),
            "epoch": 1,
            "desired": "RUNNING",
            "generation": 1,
        }

    async def get(self, key: Key) -> Item | None:
        return self.rows.get(key)

    async def get_many(self, keys: Sequence[Key]) -> dict[Key, Item]:
        return {key: self.rows[key] for key in keys if key in self.rows}

    async def owned_by(self, owner: str, start: str | None) -> Page[str]:
        return Page([connection_of(key.pk) for key, row in self.rows.items() if row.get("owner") == owner], start)

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        return Page([row for key, row in self.rows.items() if key.pk == session_shard(shard)], start)

    async def send(self, connections: Sequence[str]) -> None: ...


class Stuck:
    """A runner whose sink takes nothing, so that it never settles."""

    exclusive = False

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.aborted = False
        self.grant: Grant | None = None

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        self.grant = grant

    def revise(self, row: ConnectionRow) -> None: ...

    def hold(self) -> None: ...

    def resume(self) -> None: ...

    def invite(self) -> None: ...

    async def settle(self, parting: Parting) -> Remains:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class Host:
    def __init__(self) -> None:
        self.runners: list[Stuck] = []

    def runner(self, row: ConnectionRow) -> Stuck:
        self.runners.append(Stuck())
        return self.runners[-1]

    def load(self) -> Load:
        return Load()

    def parked(self, row: ConnectionRow) -> Item:
        return {}


class Silence:
    def saw(self, event: events.Event) -> None: ...


def member(table: MemoryTable, host: Any) -> Member:
    async def new_session() -> str:
        return uuid4().hex

    return Member(
        identity=Identity(task_arn="task", revision=1, capacity=10),
        store=table,
        heartbeat_store=table,
        judge_store=table,
        hints=table,
        clock=SystemClock(),
        timings=TIMINGS,
        rng=Random(1),
        host=host,
        observer=Silence(),
        new_session=new_session,
        new_id=lambda: uuid4().hex,
        drain_seconds=0.1,
    )


async def test_what_could_not_be_let_go_emits_nothing_once_the_session_says_that_it_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, "LAST_RELEASE_SECONDS", 0.1)
    table, host = MemoryTable(), Host()
    table.free("c")
    one = member(table, host)
    running = asyncio.create_task(one.run())
    async with asyncio.timeout(20):
        await one.joined.wait()
        while not host.runners:
            await one.consider(["c"])
            await asyncio.sleep(0.01)
        (runner,) = host.runners
        grant = runner.grant
        assert grant is not None
        await grant.until_emit()
        assert grant.may_emit()
        emits: list[bool] = []
        table.applied = lambda name: emits.append(grant.may_emit()) if name == "declare_dead" else None
        table.unanswered.add("declare_dead")
        one.stop()
        await running
    assert emits == [False]
    assert runner.aborted
    assert one.left_behind == 1


async def test_a_member_that_cannot_open_a_session_stops_when_it_is_told_to() -> None:
    table = MemoryTable()
    table.out = True
    one = member(table, Host())
    running = asyncio.create_task(one.run())
    await asyncio.sleep(0)
    one.stop()
    async with asyncio.timeout(20):
        await running
    assert not table.rows


async def test_a_claim_that_is_answered_after_its_session_was_lost_leaves_no_runner_behind() -> None:
    """Hints are taken beside the session, so that its end does not end what came of them."""
    table, host = MemoryTable(), Host()
    table.free("c")
    table.held_up["claim"] = asyncio.Event()
    one = member(table, host)
    running = asyncio.create_task(one.run())
    await one.joined.wait()
    first = one.holdings
    considering = asyncio.create_task(one.consider(["c"]))
    key = connection_key("c")
    await until(lambda: table.rows[key]["epoch"] == 2)
    await table.write(declare_dead(str(table.rows[key]["owner"]), DeadBy.JUDGE, None, 1))
    await until(lambda: one.holdings is not None and one.holdings is not first)
    table.held_up["claim"].set()
    await considering
    assert first is not None
    assert len(first) == 0
    assert all(runner.aborted for runner in host.runners)
    one.stop()
    await running
    assert one.left_behind == 0


async def test_a_member_of_an_older_revision_has_no_room_while_a_newer_one_has() -> None:
    one = member(MemoryTable(), Host())
    running = asyncio.create_task(one.run())
    await until(lambda: one.view.current.sessions and one.room == 10)
    (own,) = one.view.current.sessions
    one.view.current = Fleet([own, replace(own, session="newer", revision=2, held=9)])
    assert one.room == 0
    one.view.current = Fleet([own, replace(own, session="newer", revision=2, held=10)])
    assert one.room == 10
    one.stop()
    await running
