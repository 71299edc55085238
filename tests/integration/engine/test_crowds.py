"""Many connections of one worker process at once, against a server process (`bench.pump`)."""

import asyncio
import contextlib
import gc
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidHandshake

import worker.retry
from bench.engine import WIDE, Pump, resident
from leases.ports import Parting
from leases.rows import Item
from telemetry.metrics import CONNECTS
from tests.integration.engine.conftest import MEBIBYTE, Bench, Lease, running
from tests.support.upstream import until
from worker.admission import Admission
from worker.outbox import Budget
from worker.records import STREAM_LIMITS, Entry
from worker.settings import CONNECTION_SHARE_BYTES, Settings
from worker.sinks import TAKEN, SinkUnavailable, Verdict

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

SETTINGS = Settings.from_environment(
    {"TABLE_NAME": "t", "OWNER_INDEX": "i", "QUEUE_URL": "q", "STREAM_NAME": "s"}, cpus=1, files=65536
)
"""What a worker has by default."""


@pytest.fixture
def pump() -> Iterator[Pump]:
    pump = Pump()
    yield pump
    pump.stop()


class Vitals:
    """What the process needs, looked at every second: the share of a core, and the memory beside that of before."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.memory: list[int] = []
        self.before = resident()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _watch(self) -> None:
        while True:
            cpu, wall = time.process_time(), time.perf_counter()
            await asyncio.sleep(1)
            self.cpu.append((time.process_time() - cpu) / (time.perf_counter() - wall))
            self.memory.append(resident())

    @property
    def busiest(self) -> float:
        """The share of a core in the busiest second."""
        return max(self.cpu, default=0)

    @property
    def growth(self) -> int:
        """Bytes."""
        return max(self.memory, default=self.before) - self.before


async def ask(pump: Pump, command: str) -> dict[str, Any]:
    """Have the server do something. It may be one of those that it resets."""
    while True:
        with contextlib.suppress(OSError, EOFError, InvalidHandshake):
            return await pump.ask(command)
        await asyncio.sleep(0.5)


# S7: an upstream that drops everybody, is away, and comes back weak


def first_retry(statuses: Sequence[Item]) -> float:
    """When a connection was to try for the first time after it was dropped: at once, if nothing else was announced."""
    waits = [each["nextRetryAt"] for each in statuses if each["state"] == "BACKING_OFF" and each["attempts"] == 1]
    return datetime.fromisoformat(waits[-1] if waits else statuses[0]["lastClose"]["at"]).timestamp()


@pytest.mark.parametrize(
    ("count", "away"), [(40, 2), pytest.param(600, 60, marks=pytest.mark.soak)], ids=["small", "large"]
)
async def test_an_upstream_that_drops_everybody_and_comes_back_weak_is_not_stormed(
    bench: Bench, pump: Pump, count: int, away: int, record_property: Callable[[str, object], None]
) -> None:
    rate = 20
    bench.engine.admission = Admission(asyncio.get_running_loop().time)
    leases = [bench.run(pump.url("/idle"))[1] for _ in range(count)]
    await until(lambda: all(lease.state == "OPEN" for lease in leases), seconds=60)
    await asyncio.sleep(3)
    gc.collect()
    before = {lease.connection: len(lease.statuses) for lease in leases}
    vitals = Vitals()
    async with vitals.watched():
        await ask(pump, f"away {away} {rate}")
        await until(lambda: all(lease.state != "OPEN" for lease in leases))
        gone = time.monotonic()
        await until(lambda: all(lease.state == "OPEN" for lease in leases), seconds=away + count / rate + 90)
        took = time.monotonic() - gone - away
    retries = Counter(int(first_retry(lease.statuses[before[lease.connection] :])) for lease in leases)
    busiest = max(retries.values()) / count
    figures = {
        "back, seconds after the return": round(took, 1),
        "first retries in the busiest second": round(busiest, 3),
        "busiest second, share of a core": round(vitals.busiest, 3),
        "growth, share of what it was": round(vitals.growth / vitals.before, 3),
    }
    record_property("figures", figures)
    print(json.dumps(figures))
    assert (await ask(pump, "accepts"))["open"] == count
    assert not any(lease.failed for lease in leases)
    assert busiest < (0.15 if count >= 600 else 0.6)
    assert took <= count / rate + 60
    assert vitals.busiest <= 0.8
    assert vitals.growth <= 0.2 * vitals.before


# A sink that stalls


class StallingSink:
    """Takes nothing while it is stalled, as a stream that times out; then checks that messages come without a gap."""

    limits = STREAM_LIMITS

    def __init__(self) -> None:
        self.stalled = False
        self.taken = 0
        self.others: Counter[str] = Counter()
        self.next: dict[str, int] = {}
        self.seqs: dict[str, int] = {}

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        if self.stalled:
            time.sleep(0.7)
            raise SinkUnavailable("ReadTimeoutError")
        for entry in entries:
            for line in entry.data.splitlines():
                self._take(entry.header.connection, json.loads(line))
        return [TAKEN] * len(entries)

    def _take(self, connection: str, record: dict[str, Any]) -> None:
        assert record["seq"] == self.seqs.get(connection, 0) + 1
        self.seqs[connection] = record["seq"]
        if record["type"] != "message":
            self.others[record["type"]] += 1
            return
        number = json.loads(record["data"])["n"]
        assert number == self.next.get(connection, number)
        self.next[connection] = number + 1
        self.taken += 1


@pytest.mark.parametrize(
    ("count", "seconds"), [(20, 4), pytest.param(100, 60, marks=pytest.mark.soak)], ids=["small", "large"]
)
async def test_a_stalled_sink_costs_bounded_memory_and_no_message_and_pongs_go_on(
    pump: Pump, count: int, seconds: int, record_property: Callable[[str, object], None]
) -> None:
    sink = StallingSink()
    budget = Budget(SETTINGS.buffer_bytes, CONNECTION_SHARE_BYTES, SETTINGS.capacity)
    bench = Bench(sink=sink, budget=budget, connection_bytes=SETTINGS.connection_buffer_bytes)
    async with running(bench):
        leases = [bench.run(pump.url("/numbered"))[1] for _ in range(count)]
        await until(lambda: all(lease.state == "OPEN" for lease in leases), seconds=60)
        await until(lambda: sink.taken > 100 * count, seconds=60)
        await ask(pump, "forget")
        vitals = Vitals()
        async with vitals.watched():
            sink.stalled = True
            begun, taken, received = time.monotonic(), sink.taken, bench.engine.intake.messages
            await until(lambda: time.monotonic() > begun + seconds, seconds=seconds + 60)
            held, stalled_for = budget.used, bench.engine.intake.messages - received
            sink.stalled = False
            await until(lambda: budget.used < held // 50, seconds=120)
            drained = time.monotonic() - begun - seconds
        slowest = (await ask(pump, "accepts"))["slowest pong"]
        await asyncio.gather(*(runner.settle(Parting.STOPPED) for runner in bench.runners))
        figures = {
            "received while stalled": stalled_for,
            "buffered MiB": round(held / MEBIBYTE, 1),
            "growth MiB": round(vitals.growth / MEBIBYTE, 1),
            "drained in seconds": round(drained, 1),
            "slowest pong, seconds": round(slowest, 3),
        }
        record_property("figures", figures)
        print(json.dumps(figures))
        assert stalled_for > 25 * count * seconds
        assert sink.taken == bench.engine.intake.messages
        assert sink.others == {"opened": count, "closed": count}
        assert held <= SETTINGS.buffer_bytes
        assert vitals.growth <= 1.25 * held + 32 * MEBIBYTE
        assert slowest < 5
        assert taken < sink.taken


# Reopening


@pytest.fixture
def unlogged() -> Iterator[None]:
    """pytest keeps what is logged until the test is over, which would look like a leak."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("reopened", [500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_reopening_leaks_no_file_no_task_and_no_memory(
    bench: Bench,
    pump: Pump,
    quick: None,
    unlogged: None,
    monkeypatch: pytest.MonkeyPatch,
    reopened: int,
    record_property: Callable[[str, object], None],
) -> None:
    # A message proves that the server works, however short it was.
    monkeypatch.setattr(worker.retry, "SHORT_SESSIONS", 2 * reopened)
    bench.engine.admission = Admission(asyncio.get_running_loop().time, process=WIDE, group=WIDE)
    leases: list[Lease] = []

    async def opened(count: float) -> None:
        while bench.meter.of(CONNECTS) < count:
            await asyncio.sleep(0.05)
            bench.sink.records.clear()
            for lease in leases:
                del lease.statuses[:-1]

    def measure() -> dict[str, int]:
        gc.collect()
        return {
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "tasks": len(asyncio.all_tasks()),
            "objects": len(gc.get_objects()),
            "memory": resident(),
        }

    # The sweeper forgets a WebSocket at its next visit.
    ping = {"intervalSeconds": 1, "timeoutSeconds": 20}
    leases += [bench.run(pump.url("/brief"), wsPing=ping)[1] for _ in range(50)]
    async with asyncio.timeout(570):
        await opened(reopened // 5)
        before = measure()
        await opened(reopened // 5 + reopened)
        after = measure()
    record_property("figures", {"before": before, "after": after})
    print(json.dumps({"before": before, "after": after}))
    assert after["files"] <= before["files"] + 100
    assert after["tasks"] <= before["tasks"] + 150
    # What belongs to the attempts that are under way comes and goes.
    assert after["objects"] <= before["objects"] + 5_000
    assert after["memory"] <= before["memory"] + 4 * MEBIBYTE
    # Some are in the middle of an attempt, and of these some have just succeeded.
    async with asyncio.timeout(30):
        await asyncio.gather(*(runner.close() for runner in bench.runners))
    assert len(asyncio.all_tasks()) < 30
