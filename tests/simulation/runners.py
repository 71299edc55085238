"""What a worker process does with its connections: connects, buffers, emits under a grant, hands over.

A stand-in for the worker's own runner, with the same contract (`leases.ports.Runner`), simple enough to judge by.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

from leases.ports import Grant, Parting, Remains
from leases.rows import DIGEST_BYTES, HANDOFF_MESSAGES, ConnectionRow, Desired, Handoff, Item, Load
from tests.simulation.feeds import Feed, Socket
from tests.simulation.loop import Timetable
from tests.simulation.output import Entry, Record, Stream
from tests.simulation.processes import Process

PROVEN_SECONDS = 20.0
CHECKPOINT_RECORDS = 6
PACK = 5
"""Records in one entry."""


def digest(number: int) -> bytes:
    """A message is its number, so its digest can be that too."""
    return number.to_bytes(DIGEST_BYTES, "big")


class Outside:
    """What the runners of one process can reach."""

    __slots__ = ("crash", "dialling_fails", "distrusted", "feeds", "process", "rng", "stream", "timetable")

    def __init__(
        self, process: Process, timetable: Timetable, rng: Random, feeds: dict[str, Feed], stream: Stream
    ) -> None:
        self.process = process
        self.timetable = timetable
        self.rng = rng
        self.feeds = feeds
        self.stream = stream
        self.dialling_fails = 0.0
        """Share of attempts to connect that fail."""
        self.distrusted: Callable[[], bool] = lambda: False
        """Whether this machine was frozen and cannot know it yet."""
        self.crash: Callable[[], None] = process.exit


class SimRunner:
    """One connection in one process. Implements `leases.ports.Runner`."""

    def __init__(self, row: ConnectionRow, outside: Outside, ended: Callable[["SimRunner"], None]) -> None:
        self.connection = row.connection
        self.generation = row.generation
        self.ready = asyncio.Event()
        self.exclusive = outside.feeds[row.connection].temper.one_socket
        self.grant: Grant | None = None
        self.settled = False
        self.ended = False
        self.sending = False
        """Whether an entry is on its way."""
        self.socket: Socket | None = None
        self.opened_at = float("inf")
        """When its socket was opened, in the time of the world."""
        self.stopped_at = float("inf")
        """When it stopped reading."""
        self.reports: list[Item] = []
        """Every state that it reported under its grants."""
        self._outside = outside
        self._ended = ended
        self._feed = outside.feeds[row.connection]
        self._held_back = False
        self._reading = True
        self._unread: list[int] = []
        self._waiting: deque[tuple[str, int]] = deque()
        """What was accepted: messages and control records, in order."""
        self._seq = 0
        self._last: deque[bytes] = deque(maxlen=HANDOFF_MESSAGES)
        self._cursor: str | None = None
        """Of the last message that was acknowledged under the present grant."""
        self._acknowledged = 0
        self._drop: set[int] = set()
        self.whole = True
        """Whether a standby's buffer has no gap since it was ready."""
        self._loop = outside.process.loop
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._emitting: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._dial()

    # The socket

    def _later(self, delay: float, act: Callable[[], None]) -> None:
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(delay, act))

    def _dial(self) -> None:
        self._later(0.02 + 0.1 * self._outside.rng.random(), self._dialled)

    def _dialled(self) -> None:
        if self.ended or self.socket is not None or self._held_back:
            return
        temper = self._feed.temper
        if temper.hopeless:
            if self.grant is not None:
                self.grant.fail({"state": "FAILED", "reason": "refused", "generation": self.generation})
            return
        if self._outside.dialling_fails and self._outside.rng.random() < self._outside.dialling_fails:
            self._later(self._outside.rng.uniform(0, 2.0), self._dial)
            return
        latency = 0.001 + 0.004 * self._outside.rng.random()
        self.socket = Socket(
            self._outside.timetable, self._feed, self._outside.process, latency, self._receive, self._dropped
        )
        self.opened_at = self._outside.timetable.now
        if self.grant is not None:
            self._control("opened")
        # Subscribed now at the upstream; known here one latency later, so that nothing is missed once it is `ready`.
        self._later(2 * latency, self._open)

    def _open(self) -> None:
        if self.socket is None or self.ended:
            return
        self.ready.set()
        self._report("OPEN")
        self._later(PROVEN_SECONDS, self._prove)
        if self._feed.temper.deadly:
            self._outside.timetable.after(0.3, self._outside.crash)

    def _prove(self) -> None:
        if self.grant is not None and self.socket is not None:
            self.grant.proven()

    def _dropped(self) -> None:
        if self.ended:
            return
        self.socket = None
        self.ready.clear()
        self.whole = False
        if self.grant is None:
            self._waiting.clear()
        else:
            self._control("closed")
        self._report("BACKING_OFF")
        self._dial()

    def _hang_up(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    # What comes in

    def _receive(self, number: int) -> None:
        if self.ended or self.socket is None:
            return
        if not self._reading:
            self._unread.append(number)
        else:
            self._accept(number)

    def _accept(self, number: int) -> None:
        if number in self._drop:
            return
        self._waiting.append(("message", number))
        if not self._more.is_set():
            self._more.set()

    def _control(self, kind: str) -> None:
        self._waiting.append((kind, 0))
        self._more.set()

    def _report(self, state: str) -> None:
        if self.grant is not None:
            self.reports.append({"state": state, "epoch": self.grant.epoch})
            self.grant.report(self.reports[-1])

    # What goes out

    async def _emit(self) -> None:
        outside = self._outside
        while True:
            if self.settled or not self._waiting:
                self._more.clear()
                self._idle.set()
                await self._more.wait()
                continue
            self._idle.clear()
            grant = self.grant
            assert grant is not None
            if not grant.may_emit():
                await grant.until_emit()
                continue
            pack = [self._waiting[position] for position in range(min(len(self._waiting), PACK))]
            records = [Record(grant.epoch, self._seq + 1 + n, kind, number) for n, (kind, number) in enumerate(pack)]
            entry = Entry(self.connection, outside.process, outside.timetable.now, outside.distrusted(), records)
            self.sending = True
            acknowledged = await outside.stream.send(entry)
            self.sending = False
            if acknowledged:
                if grant is not self.grant or grant.epoch != records[0].epoch:
                    self._seq = 0
                else:
                    self._seq += len(records)
                for kind, number in pack:
                    self._waiting.popleft()
                    if kind == "message":
                        self._last.append(digest(number))
                        self._cursor = f"{records[0].epoch}:{number}"
                        self._acknowledged += 1
                if self._acknowledged >= CHECKPOINT_RECORDS and self._cursor is not None and grant is self.grant:
                    self._acknowledged = 0
                    grant.checkpoint(self._cursor)

    # leases.ports.Runner

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        standby = self.grant is None
        self.grant = grant
        self._seq = 0
        self._cursor = None
        self.settled = False
        if standby:
            if not self.whole:
                self._waiting.appendleft(("reopened", 0))
            elif handoff is not None:
                self._forget(handoff)
            elif self.socket is not None or self._waiting:
                self._waiting.appendleft(("gap", 0))
            if self._feed.temper.hopeless:
                self._dial()
        self._read_on()
        if self.ready.is_set():
            self._report("OPEN")
        if self._emitting is None:
            self._emitting = self._loop.create_task(self._emit())
        self._more.set()

    def _forget(self, handoff: Handoff) -> None:
        """Drop up to the last message that the old owner emitted, also what of it is yet to arrive here."""
        named = [
            int.from_bytes(handoff.digests[start : start + DIGEST_BYTES], "big")
            for start in range(0, len(handoff.digests), DIGEST_BYTES)
        ]
        self._drop = set(named)
        position = max((p + 1 for p, (_, number) in enumerate(self._waiting) if number in self._drop), default=0)
        for _ in range(position):
            self._waiting.popleft()

    def _read_on(self) -> None:
        self._reading = True
        for number in self._unread:
            self._accept(number)
        self._unread.clear()

    def revise(self, row: ConnectionRow) -> None:
        self.generation = row.generation

    def hold(self) -> None:
        self._held_back = True
        if self._feed.temper.one_socket and self.socket is not None:
            self._hang_up()
            self.ready.clear()
            self.whole = False

    def resume(self) -> None:
        self._held_back = False
        if self.socket is None:
            self._dial()

    def invite(self) -> None:
        """Messages are numbered here: what was received before has no equal."""

    async def settle(self, parting: Parting) -> Remains:
        self._reading = False
        self.stopped_at = self._outside.timetable.now
        if self._emitting is not None:
            self._more.set()
            while self._waiting and not self.ended:
                self._idle.clear()
                await self._idle.wait()
        self.settled = True
        return Remains(cursor=self._cursor, handoff=Handoff(digests=b"".join(self._last), last_seq=self._seq))

    async def close(self) -> None:
        await asyncio.sleep(0.005 + 0.2 * self._outside.rng.random() ** 4)
        self.abort()

    def abort(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._hang_up()
        self._waiting.clear()
        self._idle.set()
        for timer in self._timers:
            timer.cancel()
        if self._emitting is not None:
            self._emitting.cancel()
        self._ended(self)


class SimHost:
    """The connections of one process. Implements `leases.ports.Host`."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.runners: list[SimRunner] = []

    def runner(self, row: ConnectionRow) -> SimRunner:
        runner = SimRunner(row, self.outside, self.runners.remove)
        self.runners.append(runner)
        return runner

    def load(self) -> Load:
        return Load(held=len(self.runners))

    def parked(self, row: ConnectionRow) -> Item:
        state = "FAILED" if row.desired is Desired.RUNNING else row.desired.value
        return {"state": state, "generation": row.generation}
