"""A session against a real table by a bad way: neither an error nor a lost answer is a loss; a verdict is final."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

import pytest

from leases import writes
from leases.clock import SystemClock
from leases.conditions import Written
from leases.dynamodb import AsyncStore, Table
from leases.events import HeartbeatAcknowledged, HeartbeatUnknown, HoldBegan, HoldEnded
from leases.rows import DeadBy, Load, SessionRow, session_key
from leases.session import Session, SessionOver
from leases.timings import Timings
from local.aws import Aws
from tests.integration.leases.parts import TIMINGS, Log, connect, session_row, truth
from tests.support.proxy import (
    FOREVER,
    THROTTLED,
    UNAVAILABLE,
    Call,
    Delay,
    Drop,
    Fault,
    FaultProxy,
    Lose,
    Rule,
    heartbeat,
)

PATIENCE_SECONDS = 60.0
BEATS = 5


@dataclass
class Running:
    """A session with its heartbeats going on."""

    session: Session
    log: Log
    store: Table
    """The table by a way that no fault strikes."""
    over: asyncio.Future[str]
    """Why the session ended."""

    def row(self) -> SessionRow:
        item = self.store.get(session_key(self.session.id))
        assert item is not None
        return SessionRow.from_item(item)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reached():  # noqa: ASYNC110 - looks at another process's doing
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(aws: Aws, proxy: FaultProxy, table: str, timings: Timings = TIMINGS) -> AsyncIterator[Running]:
    log = Log()
    with ThreadPoolExecutor(4) as threads:
        session = Session(
            replace(session_row("session"), takeover_ms=timings.takeover_ms),
            store=AsyncStore(connect(aws, proxy.endpoint("holder"), table), threads),
            clock=SystemClock(),
            timings=timings,
            rng=Random(0),
            load=lambda: Load(held=1),
            observer=log,
        )
        assert await session.open()
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await session.run()
            except SessionOver as reason:
                over.set_result(str(reason))

        task = asyncio.create_task(run())
        yield Running(session, log, truth(aws, table), over)
        task.cancel()
        await asyncio.wait([task])


def number_of(call: Call) -> Hashable:
    """The sequence number of a heartbeat: its attempts share it."""
    names = call.body["ExpressionAttributeNames"]
    placeholder = next(name for name, attribute in names.items() if attribute == "seq")
    value = call.body["UpdateExpression"].partition(f"{placeholder} = ")[2].split(",")[0]
    number: str = call.body["ExpressionAttributeValues"][value]["N"]
    return number


@pytest.mark.parametrize(
    "fault", [UNAVAILABLE, THROTTLED, Drop(), Drop(FOREVER), Lose(), Lose(FOREVER), Delay(TIMINGS.call_timeout)]
)
async def test_an_attempt_that_fails_once_costs_nothing(aws: Aws, proxy: FaultProxy, table: str, fault: Fault) -> None:
    rule = Rule(fault, heartbeat, numbers={1}, key=number_of)
    async with running(aws, proxy, table) as holder:
        with proxy.fault(rule):
            await holder.until(lambda: holder.log.count(HeartbeatAcknowledged) >= BEATS or holder.over.done())

        assert rule.struck >= BEATS
        assert holder.log.count(HeartbeatUnknown) >= BEATS
        assert holder.log.count(HoldBegan) == 0
        assert not holder.over.done()
        assert holder.row().alive


async def test_out_of_reach_it_holds_and_then_goes_on(aws: Aws, proxy: FaultProxy, table: str) -> None:
    async with running(aws, proxy, table) as holder:
        with proxy.fault(Rule(Drop(FOREVER))):
            await holder.until(lambda: holder.log.count(HoldBegan) == 1)
            assert not holder.session.may_emit()
            assert holder.session.on_hold
            resumed = asyncio.create_task(holder.session.until_emit())
            before = holder.row().seq
        async with asyncio.timeout(PATIENCE_SECONDS):
            await resumed

        assert holder.session.may_emit()
        assert holder.log.count(HoldEnded) == 1
        assert not holder.over.done()
        assert holder.row().seq > before


async def test_what_it_may_emit_ends_before_anybody_may_judge(aws: Aws, proxy: FaultProxy, table: str) -> None:
    async with running(aws, proxy, table) as holder:
        with proxy.fault(Rule(Drop(FOREVER))):
            clock, last = SystemClock(), float("nan")
            seq, moved_at = holder.row().seq, clock.now()
            while clock.now() < moved_at + TIMINGS.takeover:
                if holder.session.may_emit():
                    last = clock.now()
                if (now_at := (await asyncio.to_thread(holder.row)).seq) != seq:
                    seq, moved_at = now_at, clock.now()

            assert last + TIMINGS.drain < moved_at + TIMINGS.takeover


async def test_declared_dead_meanwhile_it_ends(aws: Aws, proxy: FaultProxy, table: str) -> None:
    async with running(aws, proxy, table) as holder:
        with proxy.fault(Rule(Drop())):
            await holder.until(lambda: holder.log.count(HoldBegan) == 1)
            verdict = writes.declare_dead(holder.session.id, DeadBy.JUDGE, holder.row().seq, 0)
            assert isinstance(holder.store.write(verdict), Written)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await holder.over == "declared dead by judge"

        assert not holder.session.may_emit()
        assert not holder.session.on_hold
        assert holder.log.count(HoldEnded) == 0


async def test_on_hold_for_too_long_it_ends_itself(aws: Aws, proxy: FaultProxy, table: str) -> None:
    async with running(aws, proxy, table, replace(TIMINGS, give_up=1.0)) as holder:
        with proxy.fault(Rule(Drop())):
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert "on hold for" in await holder.over

        assert not holder.session.may_emit()
