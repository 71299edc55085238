"""Two sessions that take connections from the same heap while answers get lost."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random

import pytest

from leases import events
from leases.clock import SystemClock
from leases.conditions import Absent, Write, Written
from leases.dynamodb import AsyncStore, Table
from leases.holding import Phase
from leases.holdings import Holdings
from leases.rows import ConnectionRow, Desired, Load, connection_key, free_owner, is_free
from leases.session import Session
from local.aws import Aws
from tests.integration.leases.parts import TIMINGS, Host, Log, connect, session_row, truth
from tests.support.proxy import Delay, Fault, FaultProxy, Lose, Rule, claim

CONNECTIONS = [f"connection-{number:02}" for number in range(40)]
EPOCH = 1000
SESSIONS = ("left", "right")
PATIENCE_SECONDS = 60.0


class NoHints:
    """A queue that nobody reads."""

    async def send(self, connections: object) -> None:
        """See `leases.ports.Hints`."""


@asynccontextmanager
async def member(name: str, store: AsyncStore, log: Log) -> AsyncIterator[Holdings]:
    """A session with its heartbeats, and what it holds."""
    session = Session(
        session_row(name),
        store=store,
        clock=SystemClock(),
        timings=TIMINGS,
        rng=Random(name),
        load=Load,
        observer=log,
    )
    assert await session.open()
    numbers = itertools.count()
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(session.run())
        yield Holdings(
            session,
            store=store,
            hints=NoHints(),
            clock=SystemClock(),
            timings=TIMINGS,
            rng=Random(name),
            host=Host(),
            observer=log,
            spawn=tasks.create_task,
            new_id=lambda: f"{name}-{next(numbers)}",
        )
        beating.cancel()


def rows(store: Table) -> dict[str, ConnectionRow]:
    items = store.get_many(map(connection_key, CONNECTIONS))
    return {row.connection: row for row in map(ConnectionRow.from_item, items.values())}


@pytest.mark.parametrize("fault", [Lose(), Delay(1.5)], ids=["lost answer", "late arrival"])
async def test_a_claim_that_got_no_answer_is_settled_as_whose_it_is(
    aws: Aws, proxy: FaultProxy, table: str, fault: Fault
) -> None:
    direct = truth(aws, table)
    for connection in CONNECTIONS:
        fields = {"owner": free_owner(connection), "epoch": EPOCH, "desired": Desired.RUNNING.value, "generation": 1}
        write = Write(name="create", key=connection_key(connection), condition=Absent("pk"), set=fields)
        assert isinstance(direct.write(write), Written)
    free, log, rule = rows(direct), Log(), Rule(fault, claim, share=0.5)

    with ThreadPoolExecutor(16) as threads:
        stores = [AsyncStore(connect(aws, proxy.endpoint(name), table), threads) for name in SESSIONS]
        async with member("left", stores[0], log) as left, member("right", stores[1], log) as right:
            with proxy.fault(rule):
                await asyncio.gather(
                    *(side.consider(row) for row in free.values() for side in (left, right)),
                )
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _settle(left, right, direct)

            now = rows(direct)
            for side in (left, right):
                assert {(holding.connection, holding.epoch, holding.phase) for holding in side.held} == {
                    (row.connection, row.epoch, Phase.HELD) for row in now.values() if row.owner == side.session.id
                }

    assert rule.struck > 0
    assert {row.owner for row in now.values()} <= {*SESSIONS}
    adopted = {event.connection for event in log.events if isinstance(event, events.Adopted)}
    assert {name: row.epoch for name, row in now.items()} == {
        # Who finds out late that a claim was granted goes on in an epoch of his own.
        name: EPOCH + 2 if name in adopted else EPOCH + 1
        for name in CONNECTIONS
    }
    assert log.count(events.LeaseLost) == 0


async def _settle(left: Holdings, right: Holdings, direct: Table) -> None:
    """Sweep and audit, as a member does every few seconds, until everything is run by somebody."""
    while len(left.held) + len(right.held) < len(CONNECTIONS):
        for side in (left, right):
            await asyncio.gather(*(side.consider(row) for row in rows(direct).values() if is_free(row.owner)))
            await side.audit()
        await asyncio.sleep(0.1)
