"""A sink that does what a test tells it, and a grant that a test can take away."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event as ThreadEvent
from typing import Any

import orjson

from leases.rows import Item
from worker.outbox import Budget
from worker.output import Output
from worker.records import STREAM_LIMITS, Entry, Limits
from worker.sinks import TAKEN, SinkUnavailable, Verdict

Record = dict[str, Any]

Answer = Callable[[Sequence[Entry]], Sequence[Verdict]]


def take_all(entries: Sequence[Entry]) -> Sequence[Verdict]:
    return [TAKEN] * len(entries)


def lose_answer(entries: Sequence[Entry]) -> Sequence[Verdict]:
    """The entries arrive, the answer does not."""
    raise SinkUnavailable("time-out")


class ScriptedSink:
    """Keeps what arrives; answers as scripted, then takes everything. `gate` holds back every call while unset."""

    def __init__(self, *answers: Answer, limits: Limits = STREAM_LIMITS) -> None:
        self.limits = limits
        self.answers = deque(answers)
        self.arrived: list[Entry] = []
        self.calls: list[list[Entry]] = []
        self.gate = ThreadEvent()
        self.gate.set()

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        assert self.gate.wait(30)
        if not may_send():
            raise SinkUnavailable("may not emit")
        self.calls.append(list(entries))
        answer = self.answers.popleft() if self.answers else take_all
        verdicts: Sequence[Verdict] | None = None
        try:
            verdicts = answer(entries)
        finally:
            self.arrived += [
                entry for position, entry in enumerate(entries) if verdicts is None or verdicts[position] is TAKEN
            ]
        return verdicts

    def records(self, connection: str | None = None) -> list[Record]:
        """All records that arrived, as a consumer sees them."""
        return [
            record
            for entry in self.arrived
            for line in entry.data.splitlines()
            if (record := orjson.loads(line)) and connection in (None, record["connectionId"])
        ]

    def consumed(self, connection: str) -> list[Record]:
        """What is left after a consumer has dropped what is not above the highest (epoch, seq) that it has seen."""
        kept: list[Record] = []
        for record in self.records(connection):
            if not kept or (record["epoch"], record["seq"]) > (kept[-1]["epoch"], kept[-1]["seq"]):
                kept.append(record)
        return kept


class FakeGrant:
    def __init__(self, connection: str = "c", epoch: int = 7) -> None:
        self.connection = connection
        self.epoch = epoch
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.checkpoints: list[str] = []

    def may_emit(self) -> bool:
        return self.allowed.is_set()

    async def until_emit(self) -> None:
        await self.allowed.wait()

    def checkpoint(self, cursor: str) -> None:
        self.checkpoints.append(cursor)

    def report(self, status: Item) -> None: ...

    def proven(self) -> None: ...

    def fail(self, status: Item) -> None: ...


def output(sink: ScriptedSink, *, total: int = 1 << 24, connection_bytes: int = 1 << 22, share: int = 4096) -> Output:
    return Output(
        sink,
        worker=lambda: "session-1",
        wall=lambda: 1_800_000_000.25,
        budget=Budget(total, share, capacity=10),
        connection_bytes=connection_bytes,
    )


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a generous deadline."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it may be about another thread
            await asyncio.sleep(0.005)
