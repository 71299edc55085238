"""An engine on real sockets, with a table, a lease and a sink that the test holds in its hands."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

import worker.admission
import worker.retry
from connections.spec import ConnectionSpec
from connections.url_policy import UrlPolicy
from leases.clock import SystemClock
from leases.conditions import Refused, Unknown, Write, Written
from leases.ports import Page
from leases.rows import ConnectionRow, Desired, Item, Key, spec_key
from telemetry.metrics import Metric
from worker.admission import Admission, Allowance
from worker.engine import Engine
from worker.outbox import Budget
from worker.output import Output
from worker.records import Entry, Limits
from worker.runner import Runner
from worker.secrets import SecretUnavailable
from worker.sinks import TAKEN, Outcome, Sink, Verdict

MEBIBYTE = 1024 * 1024


class ListSink:
    """Keeps the records that it takes. While `stalled` it takes nothing."""

    limits = Limits(
        batch_entries=500,
        batch_bytes=5 * MEBIBYTE,
        entry_bytes=256 * 1024,
        record_bytes=MEBIBYTE,
        part_bytes=700 * 1024,
    )

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.stalled = False

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        if self.stalled:
            time.sleep(0.02)
            return [Verdict(Outcome.AGAIN, "stalled")] * len(entries)
        for entry in entries:
            self.records += map(json.loads, entry.data.splitlines())
        return [TAKEN] * len(entries)


class Rows:
    """The spec rows of a table. It may be made to answer nothing."""

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        self.silent = False

    async def get(self, key: Key) -> Item | None:
        if self.silent:
            raise Unknown("no answer")
        return self.items.get(key)

    async def write(self, write: Write) -> Written | Refused:
        raise NotImplementedError

    async def get_many(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        raise NotImplementedError

    async def owned_by(self, owner: str, start: str | None) -> Page[str]:
        raise NotImplementedError

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        raise NotImplementedError


class Lease:
    """A grant that does as it is told, and keeps what it is given."""

    def __init__(self, connection: str, epoch: int = 1) -> None:
        self.connection = connection
        self.epoch = epoch
        self.statuses: list[Item] = []
        self.cursors: list[str] = []
        self.failed: Item | None = None
        self._allowed = asyncio.Event()
        self._allowed.set()

    def allow(self, yes: bool) -> None:
        (self._allowed.set if yes else self._allowed.clear)()

    def may_emit(self) -> bool:
        return self._allowed.is_set()

    async def until_emit(self) -> None:
        await self._allowed.wait()

    def checkpoint(self, cursor: str) -> None:
        self.cursors.append(cursor)

    def report(self, status: Item) -> None:
        self.statuses.append(status)

    def proven(self) -> None: ...

    def fail(self, status: Item) -> None:
        self.failed = status

    @property
    def state(self) -> str | None:
        return self.statuses[-1]["state"] if self.statuses else None


class Counts:
    """Totals by metric and label."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str | None], float] = {}

    def count(self, metric: Metric, amount: float = 1, label: str | None = None) -> None:
        key = metric.name, label
        self.totals[key] = self.totals.get(key, 0) + amount

    def of(self, metric: Metric, label: str | None = None) -> float:
        return self.totals.get((metric.name, label), 0)


class Bench:
    """What a test of the engine works with."""

    def __init__(
        self, *, sink: Sink | None = None, budget: Budget | None = None, connection_bytes: int = 4 * MEBIBYTE
    ) -> None:
        self.sink = ListSink()
        self.rows = Rows()
        self.meter = Counts()
        self.secrets: dict[str, str] = {}
        self.secret_reads: list[str] = []
        self.addresses: dict[str, list[str]] = {}
        self.clock = SystemClock()
        self.output = Output(
            sink or self.sink,
            worker=lambda: "session-1",
            wall=self.clock.wall,
            budget=budget or Budget(64 * MEBIBYTE, 64 * 1024, 100),
            connection_bytes=connection_bytes,
        )
        self.engine = Engine(
            store=self.rows,
            output=self.output,
            read_secret=self._secret,
            policy=UrlPolicy.parse("localhost,127.0.0.0/8,::1"),
            clock=self.clock,
            meter=self.meter,
            admission=Admission(
                asyncio.get_running_loop().time,
                process=Allowance(rate=1000, burst=1000, in_flight=500),
                group=Allowance(rate=1000, burst=1000, in_flight=500),
            ),
        )
        self.runners: list[Runner] = []
        self._ids = itertools.count()

    def _secret(self, name: str) -> str:
        self.secret_reads.append(name)
        if name not in self.secrets:
            raise SecretUnavailable(f"secret {name!r}: ResourceNotFoundException")
        return self.secrets[name]

    def spec(self, connection: str, generation: int, **fields: Any) -> None:
        """Store a generation of a request."""
        spec = ConnectionSpec.from_json(json.dumps(fields))
        self.rows.items[spec_key(connection, generation)] = {"spec": spec.to_json()}

    def row(self, connection: str, *, generation: int = 1, **more: Any) -> ConnectionRow:
        return ConnectionRow(
            connection=connection,
            owner="session-1",
            epoch=1,
            desired=Desired.RUNNING,
            generation=generation,
            **more,
        )

    def standby(self, url: str, *, row: Mapping[str, Any] | None = None, **fields: Any) -> Runner:
        """A runner without a grant."""
        connection = f"connection-{next(self._ids)}"
        self.spec(connection, 1, url=url, **fields)
        runner = self.engine.runner(self.row(connection, **(row or {})))
        self.runners.append(runner)
        return runner

    def run(self, url: str, *, row: Mapping[str, Any] | None = None, **fields: Any) -> tuple[Runner, Lease]:
        """A runner and its grant."""
        runner = self.standby(url, row=row, **fields)
        lease = Lease(runner.connection)
        runner.begin(lease, None)
        return runner, lease

    def records(self, connection: str) -> list[dict[str, Any]]:
        return [record for record in self.sink.records if record["connectionId"] == connection]

    def data(self, runner: Runner) -> list[str]:
        """The messages of a connection that the sink has taken."""
        return [record["data"] for record in self.records(runner.connection) if record["type"] == "message"]

    def kinds(self, runner: Runner) -> list[str]:
        return [record["type"] for record in self.records(runner.connection)]

    def record(self, runner: Runner, kind: str) -> dict[str, Any]:
        """The last record of a kind."""
        return [record for record in self.records(runner.connection) if record["type"] == kind][-1]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What differs between event loops is tested on both; the rest as it is in production."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries start soon, for tests that are not about when they do."""
    monkeypatch.setattr(worker.retry, "FIRST_WINDOW", 0.2)
    monkeypatch.setattr(worker.admission, "FIRST_WINDOW", 0.2)


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    """Pump its output, and clear everything away in the end."""
    pump = asyncio.create_task(bench.output.run())
    try:
        yield bench
    finally:
        for runner in bench.runners:
            runner.abort()
        await asyncio.gather(*(runner.close() for runner in bench.runners))
        bench.engine.close()
        pump.cancel()
        await asyncio.wait((pump,))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with running(Bench()) as bench:
        yield bench
