"""The one pump of a worker process that takes every connection's outbox to the sink.

Batches of different connections are in flight side by side, each in a thread of its own pool, so that a slow sink costs
nobody else anything: not the loop, not a heartbeat. Encoding happens in that thread too. The permission to emit is
asked there: for each connection after encoding, and once more by the sink before the first byte leaves.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto

from telemetry.logs import Field
from worker.logs import logger
from worker.outbox import Budget, Outbox, Parcel, last_cursor
from worker.records import Entry, Stamps, encode
from worker.sinks import Outcome, Sink, SinkUnavailable, Verdict

log = logger()

LANES = 4
"""Calls to the sink in flight. At 20 ms and a mebibyte each that is 200 MB/s, far more than a process takes in."""

PACE = 0.02
"""Seconds between the starts of two calls, unless a full batch waits: packing records saves CPU and money."""

RETRY_FIRST = 0.1
RETRY_CAP = 2.0
"""Seconds; back-off is short, since buffers fill meanwhile, and jittered."""


class Fate(Enum):
    """What became of a parcel, beside what a sink can say of an entry."""

    LEFT = auto()
    """The batch was full without it."""
    WITHHELD = auto()
    """Its grant did not allow to emit."""


@dataclass(slots=True)
class Counts:
    """What happened since the last look, for the metrics."""

    records: int = 0
    bytes: int = 0
    retries: int = 0
    stalls: int = 0
    discarded: int = 0
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    """Seconds from receiving the first item of an entry to its acknowledgement, for the last hundred entries."""


Attempt = tuple[Parcel, Entry, Verdict, str | None]
"""One entry of a batch: what the sink said, and the last resume cursor.

A plain tuple, like the parcel's positional arguments, since one is made for every entry."""

_TAKEN = Outcome.TAKEN


@dataclass(frozen=True, slots=True)
class Batch:
    """The outcome of one call to the sink."""

    attempts: Sequence[Attempt]
    unsent: Sequence[tuple[Parcel, Fate]]
    unavailable: str | None
    """Why the whole call failed, if it did."""


def send(sink: Sink, parcels: Sequence[Parcel]) -> Batch:
    """Encode parcels and make one attempt to have them taken. Blocks; runs in a thread of the output."""
    stamps, limits = Stamps(), sink.limits
    packed: list[tuple[Parcel, Entry]] = []
    unsent: list[tuple[Parcel, Fate]] = []
    size = 0
    for parcel in parcels:
        if packed and size >= limits.batch_bytes:
            unsent.append((parcel, Fate.LEFT))
            continue
        _, _, header, items, first_seq, most, _ = parcel
        entry = encode(header, items, first_seq, limits, most, stamps)
        if packed and size + len(entry.data) > limits.batch_bytes:
            unsent.append((parcel, Fate.LEFT))
            continue
        size += len(entry.data)
        packed.append((parcel, entry))
    allowed = []
    for candidate in packed:
        if candidate[0].grant.may_emit():
            allowed.append(candidate)
        else:
            unsent.append((candidate[0], Fate.WITHHELD))
    if not allowed:
        return Batch((), unsent, None)
    unavailable = None
    verdicts: Sequence[Verdict]
    try:
        verdicts = sink.put(
            [entry for _, entry in allowed],
            lambda: all(parcel.grant.may_emit() for parcel, _ in allowed),
        )
    except SinkUnavailable as error:
        unavailable = str(error)
        verdicts = [Verdict(Outcome.AGAIN, unavailable)] * len(allowed)
    attempts = []
    for (parcel, entry), verdict in zip(allowed, verdicts, strict=True):
        cursor = None
        if parcel.cursor_of is not None and verdict.outcome is _TAKEN:
            cursor = last_cursor(parcel, parcel.cursor_of, entry.last_seq - entry.first_seq + 1)
        attempts.append((parcel, entry, verdict, cursor))
    return Batch(attempts, unsent, unavailable)


class Output:
    """All outboxes of a process, and the tasks that take them to the sink. Lives on one event loop."""

    def __init__(
        self,
        sink: Sink,
        *,
        worker: Callable[[], str],
        wall: Callable[[], float],
        budget: Budget,
        connection_bytes: int,
    ) -> None:
        """`worker` tells the session of this process, and `connection_bytes` bounds the buffer of one connection."""
        self.limits = sink.limits
        self.budget = budget
        self.worker = worker
        self.wall = wall
        self._sink = sink
        self._connection_bytes = connection_bytes
        self._threads = ThreadPoolExecutor(LANES, thread_name_prefix="sink")
        self._ready: deque[Outbox] = deque()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._next_start = 0.0
        self._failures = 0
        self._counts = Counts()

    def outbox(self, connection: str, *, checkpoint_seconds: float = 30.0) -> Outbox:
        """The output of one connection, whose resume cursor is stored at most so often."""
        return Outbox(connection, self, bound=self._connection_bytes, checkpoint_seconds=checkpoint_seconds)

    async def run(self) -> None:
        """Pump until cancelled. Flush the outboxes before; what is in them afterwards stays there."""
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(LANES):
                    lanes.create_task(self._lane())
        finally:
            self._threads.shutdown(wait=False)

    def counts(self) -> Counts:
        """What happened since the last call of this."""
        counts, self._counts = self._counts, Counts()
        return counts

    # What an outbox tells

    def enqueue(self, outbox: Outbox) -> None:
        """It has something to emit."""
        if not self._ready:
            self._wake.set()
        self._ready.append(outbox)

    def stalled(self) -> None:
        """A message was refused because a buffer is full."""
        self._counts.stalls += 1

    def discarded(self, messages: int) -> None:
        """Messages that were accepted will never be emitted."""
        self._counts.discarded += messages

    # The pump

    async def _lane(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            parcels = await self._gather()
            batch = await loop.run_in_executor(self._threads, send, self._sink, parcels)
            self._heard(batch.unavailable, answered=bool(batch.attempts))
            for parcel, fate in batch.unsent:
                if fate is Fate.LEFT:
                    parcel.outbox.again(parcel, 0)
                else:
                    parcel.outbox.hold(parcel)
            self._settle(batch.attempts, whole=batch.unavailable is not None)

    async def _gather(self) -> list[Parcel]:
        """Wait for the turn, for something to emit, and for the pace; then take a batch."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            while True:
                await self._wake.wait()
                early = self._next_start - loop.time()
                if early > 0 and (self._failures or len(self._ready) < self.limits.batch_entries):
                    await asyncio.sleep(early)
                parcels = self._take()
                if parcels:
                    self._next_start = loop.time() + PACE
                    return parcels

    def _take(self) -> list[Parcel]:
        parcels: list[Parcel] = []
        ready, limits = self._ready, self.limits
        size = 0
        while ready and len(parcels) < limits.batch_entries and size < limits.batch_bytes:
            if ready[0].alone and parcels:
                break
            outbox = ready.popleft()
            parcel = outbox.take()
            if parcel is None:
                continue
            parcels.append(parcel)
            # What it holds in memory is near enough to its size on the wire; the thread counts exactly.
            size += min(outbox.buffered_bytes, limits.entry_bytes)
            if outbox.alone:
                break
        if not ready:
            self._wake.clear()
        return parcels

    def _heard(self, unavailable: str | None, *, answered: bool) -> None:
        """Back off from a sink that does not answer, all of it together, and log each outage once."""
        if unavailable is not None:
            self._failures += 1
            delay = min(RETRY_CAP, RETRY_FIRST * 2.0 ** min(self._failures - 1, 16)) * random.uniform(0.5, 1)
            self._next_start = asyncio.get_running_loop().time() + delay
            if self._failures == 1:
                log.warning("The sink does not take records; they wait.", extra={Field.REASON: unavailable})
        elif answered and self._failures:
            log.info("The sink takes records again.", extra={"failures": self._failures})
            self._failures = 0

    def _settle(self, attempts: Sequence[Attempt], *, whole: bool) -> None:
        """Tell the outboxes what became of their entries; `whole`: the call failed as such."""
        counts, now = self._counts, self.wall()
        for parcel, entry, verdict, cursor in attempts:
            if verdict.outcome is _TAKEN:
                counts.records += entry.last_seq - entry.first_seq + 1
                counts.bytes += len(entry.data)
                counts.lags.append(now - parcel.items[0][1])
                parcel.outbox.acknowledged(parcel, entry, cursor)
            else:
                self._not_taken(parcel, entry, verdict, whole=whole)

    def _not_taken(self, parcel: Parcel, entry: Entry, verdict: Verdict, *, whole: bool) -> None:
        outbox = parcel.outbox
        match verdict.outcome:
            case Outcome.REFUSED if entry.first_seq == entry.last_seq:
                log.error(
                    "The sink refuses a record for good; a gap takes its place.",
                    extra={
                        Field.CONNECTION: parcel.header.connection,
                        Field.EPOCH: parcel.header.epoch,
                        Field.REASON: verdict.reason,
                        "seq": entry.first_seq,
                    },
                )
                outbox.refused(parcel, verdict.reason)
            case Outcome.REFUSED | Outcome.SUSPECT:
                outbox.again(parcel, 0, alone=True)
            case _:
                self._counts.retries += 1
                outbox.again(parcel, 0 if whole else self._delay(outbox.failed()))

    def _delay(self, failures: int) -> float:
        """Back-off of one connection, whose shard is throttled while others go on."""
        return min(RETRY_CAP, RETRY_FIRST * 2.0 ** min(failures - 1, 16)) * random.random()
