"""What one connection has accepted and the sink has not yet acknowledged: in order, bounded in bytes, fenced.

An outbox lives on the event loop. `worker.output` takes a parcel of it to a thread, where it is encoded and sent, and
brings back what became of it. At most one parcel per connection is out at a time, since a sink promises no order
between two. Items leave the outbox only when they are acknowledged, so whatever happens to an attempt, the same records
are sent again under the same sequence numbers.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from sys import getsizeof
from typing import Any, NamedTuple, Protocol

from leases.ports import Grant, Remains
from leases.rows import DIGEST_BYTES, HANDOFF_MESSAGES, Handoff
from worker.handover import LAG_SECONDS, overlap
from worker.records import (
    EVENT_BYTES,
    ITEM_BYTES,
    Control,
    Entry,
    Event,
    Header,
    Item,
    Limits,
    Part,
    Payload,
    cost,
    digest,
    item_digest,
    split,
    timestamp,
)
from worker.rotation import Echo

SINK_STALLED = "sink_stalled"
"""The reason of a gap: the buffer was full because the sink took too little."""

SINK_REFUSED = "sink_refused"
"""The reason of a gap: the sink will never take a record, which is replaced by the gap."""

REFUSED_SECONDS = 5.0
"""A sink that refuses even a control record is asked again after this long; it takes nothing at all."""

HOLD_SECONDS = 0.1
"""Between two questions to a grant that says that it may emit, and then does not: it is about to be taken away."""

INVITED_SECONDS = 60.0
"""This long after an offer nobody stands by for it any more: it is taken back within 30 s, and a standby that no offer
names closes after 30 s more."""

EVERYTHING = sys.maxsize

NOT_HANDED_OVER = "not_handed_over"
"""The reason of a gap: a standby became the owner without knowing where the old one stopped."""

NOT_MATCHED = "not_matched"
"""The reason of a gap: nothing that a standby has buffered is among the last messages of the old owner, so that nobody
can tell whether something between them is missing. What is buffered is emitted, some of it perhaps again."""

CursorOf = Callable[[str | bytes], str | None]
"""Finds the resume cursor in a message, if it carries one."""


class Overflow(Exception):
    """There is no room, or none in time. What follows is lost, so a `gap` has to say so."""

    accepted = 0
    """How many messages that came with it, before it, were accepted."""


class Discarded(Exception):
    """The buffer that was being flushed has been dropped, since the lease is lost."""


class Budget:
    """How many bytes all outboxes of a process may hold together.

    A small share of its own is kept for every connection, so that a flood on others cannot fill its buffer.
    """

    __slots__ = ("mark", "pool", "share", "used")

    def __init__(self, total: int, share: int, capacity: int) -> None:
        self.used = 0
        self.share = share
        self.pool = total - share * capacity
        if self.pool < 0:
            raise ValueError(f"{total} bytes are fewer than {share} for each of {capacity} connections")
        self.mark = self.pool - self.pool // 8
        """Above this, connections stop reading; what they read before they could goes into the rest of the pool."""


class Parcel(NamedTuple):
    """What an outbox would have emitted next. Its items do not change while it is out."""

    outbox: "Outbox"
    grant: Grant
    header: Header
    items: Sequence[Item]
    first_seq: int
    most: int
    """How many items an entry may take: one, while the sink refuses something among them."""
    cursor_of: CursorOf | None


def last_cursor(parcel: Parcel, cursor_of: CursorOf, count: int) -> str | None:
    """The resume cursor of the last message that has one, among the first `count` items of a parcel."""
    for payload, _ in reversed(parcel.items[:count]):
        if isinstance(payload, Event):
            continue
        cursor = payload.cursor if isinstance(payload, Part) else cursor_of(payload)
        if cursor is not None:
            return cursor
    return None


class State(Enum):
    """Where an outbox is between the loop and the sink."""

    SHUT = auto()
    """No grant: it only buffers."""
    IDLE = auto()
    QUEUED = auto()
    OUT = auto()
    WAITING = auto()
    """On hold, or backing off."""


SHUT, IDLE, QUEUED, OUT, WAITING = State
"""Looked up for every message, which takes longer by way of the class."""


class Desk(Protocol):
    """What an outbox needs of the process-wide output."""

    limits: Limits
    budget: Budget

    def worker(self) -> str:
        """The session of this process."""
        ...

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def enqueue(self, outbox: "Outbox") -> None:
        """It has something to emit."""
        ...

    def stalled(self) -> None:
        """A WebSocket is given up because a buffer is full."""
        ...

    def discarded(self, messages: int) -> None:
        """Messages that were accepted will never be emitted."""
        ...


class Outbox:
    """The output of one connection. Made by `worker.output.Output.outbox`."""

    __slots__ = (
        "__weakref__",
        "_attempts",
        "_begun",
        "_bound",
        "_budget",
        "_bytes",
        "_checkpoint_seconds",
        "_checkpoint_timer",
        "_connection",
        "_cursor",
        "_desk",
        "_digests",
        "_echo",
        "_flush_left",
        "_flushed",
        "_front",
        "_front_bytes",
        "_grant",
        "_header",
        "_invited_at",
        "_parcel",
        "_pending",
        "_plain_length",
        "_released",
        "_seq",
        "_state",
        "_unshared",
        "_wait",
        "alone",
        "cursor_of",
        "last_message_at",
    )

    def __init__(
        self,
        connection: str,
        desk: Desk,
        *,
        bound: int,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        self.last_message_at: float | None = None
        """When the last message was accepted, in unix seconds."""
        self.alone = False
        """To be sent record by record, in calls of their own, to find the one that the sink refuses."""
        self.cursor_of: CursorOf | None = None
        """Finds the resume cursor in a message, if there may be one. Called in another thread."""
        self._connection = connection
        self._desk = desk
        self._budget = desk.budget
        self._bound = bound
        self._plain_length = desk.limits.plain_length
        self._checkpoint_seconds = checkpoint_seconds
        self._pending: list[Item] = []
        self._front: list[Item] = []
        """What comes before `_pending`. While a parcel of it is out it may be replaced, but does not change."""
        self._front_bytes = 0
        self._bytes = 0
        self._state = SHUT
        self._begun = False
        self._grant: Grant | None = None
        self._header: Header | None = None
        self._seq = 0
        self._parcel: Parcel | None = None
        self._attempts = 0
        self._wait: asyncio.Task[None] | asyncio.TimerHandle | None = None
        self._digests = b""
        self._invited_at = float("-inf")
        """When another session was last asked to stand by, on the clock of the loop."""
        self._unshared = EVERYTHING
        """How many of the items that are acknowledged next were accepted before that, so that no standby has them."""
        self._cursor: str | None = None
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._echo: Echo | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._flush_left = 0
        self._released: asyncio.Future[None] | None = None

    # Accepting

    def accept(self, messages: Sequence[str | bytes], received_at: float) -> bool:
        """Accept data messages, received at that unix time; returns whether there is room for more.

        Without, stop reading and wait for it (`until_room`). What one read brought is accepted past the bound of the
        connection, however large: its own limit is on messages. Raises `Overflow` at the first message that the
        process has no room for.
        """
        # By its hour the busiest method of the worker: nothing here that could be done at emission.
        size = sum(map(getsizeof, messages)) + ITEM_BYTES * len(messages)
        held = self._bytes + size
        budget = self._budget
        # What is short all together consists of short ones.
        if (
            self._echo is not None
            or size > self._plain_length
            or held > self._bound
            or budget.used + size > budget.mark
        ):
            self._one_by_one(messages, received_at)
            return not self.full
        self._bytes = held
        budget.used += size
        self._pending += [(data, received_at) for data in messages]
        self.last_message_at = received_at
        if self._state is IDLE:
            self._queue()
        return True

    def control(self, kind: Control, fields: Mapping[str, Any]) -> None:
        """Accept a control record. Never refused: there are few, and they say what happened to the messages."""
        self._append(Event(kind, fields), self._desk.wall())

    def _one_by_one(self, messages: Sequence[str | bytes], received_at: float) -> None:
        """Messages that may be large, or past the bound, or that the old owner may have emitted already."""
        for number, data in enumerate(messages):
            try:
                self._message(data, received_at)
            except Overflow as overflow:
                overflow.accepted = number
                raise

    def _message(self, data: str | bytes, received_at: float) -> None:
        if self._echo is not None:
            if not self._echo.without((data,), asyncio.get_running_loop().time()):
                self.last_message_at = received_at
                return
            self._echo = None
        pieces = split(data, self._desk.limits)
        self._check_room(sum(piece.__sizeof__() + ITEM_BYTES for piece in pieces))
        if len(pieces) == 1:
            self._append(data, received_at)
        else:
            for part, piece in enumerate(pieces, 1):
                payload = Part(piece, part, len(pieces))
                if payload.last:
                    cursor = self.cursor_of(data) if self.cursor_of else None
                    payload = replace(payload, digest=digest(data), cursor=cursor)
                self._append(payload, received_at)
        self.last_message_at = received_at

    def _append(self, payload: Payload, received_at: float) -> None:
        size = cost(payload)
        self._bytes += size
        self._budget.used += size
        self._pending.append((payload, received_at))
        if self._state is IDLE:
            self._queue()

    def _check_room(self, size: int) -> None:
        """Refuse a message of so many bytes if the process has no room for it, unless the buffer is empty."""
        budget = self._budget
        if budget.used + size <= budget.pool or self._bytes + size <= budget.share:
            return
        if self._bytes or budget.used > budget.pool:
            raise self._overflow()

    def _overflow(self) -> Overflow:
        self._desk.stalled()
        return Overflow(f"{self._bytes} bytes wait for the sink, {self._budget.used} in the whole process")

    # Reading

    @property
    def buffered_bytes(self) -> int:
        """What was accepted and is not yet acknowledged, in bytes of memory."""
        return self._bytes

    @property
    def buffered_messages(self) -> int:
        """How many messages were accepted and are not yet acknowledged."""
        return sum(_ends_message(payload) for payload, _ in (*self._front, *self._pending))

    @property
    def seq(self) -> int:
        """The sequence number of the last record that was acknowledged in this epoch."""
        return self._seq

    @property
    def full(self) -> bool:
        """Whether nothing more should be read into this buffer for now."""
        return self._bytes > self._bound or (self._budget.used > self._budget.mark and self._bytes > self._budget.share)

    async def until_room(self, within: float) -> None:
        """Wait until the buffer is not full any more. Raises `Overflow` if that takes longer than so many seconds."""
        try:
            async with asyncio.timeout(within):
                while self.full:
                    await self._until_released()
        except TimeoutError:
            # Others may have made room meanwhile.
            if self.full:
                raise self._overflow() from None

    async def until_half_empty(self) -> None:
        """Wait until there is enough room to make a new WebSocket worth while, after the last one found none."""
        while self._bytes > self._bound // 2 or self.full:
            await self._until_released()

    async def _until_released(self) -> None:
        """Wait until the sink has taken something."""
        if self._released is None or self._released.done():
            self._released = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._released)

    # Emitting

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        """Emit under this grant, with sequence numbers from 1. With a hand-off, first drop what the old owner emitted.

        A standby that begins without one emits its whole buffer, after a `gap`: nobody knows what was emitted before.
        """
        if not self._begun:
            if handoff is not None:
                # Emission follows a transfer at once. A claim waits: whoever has released it may have stopped reading
                # before this socket was open.
                self._drop_emitted(handoff, released=not grant.may_emit())
                self._digests = handoff.digests
            elif self._pending:
                self._tell_gap(NOT_HANDED_OVER)
        self._begun = True
        self._grant = grant
        self._header = Header(connection=self._connection, epoch=grant.epoch, worker=self._desk.worker())
        self._seq = 0
        if self._state in (SHUT, WAITING):
            self._stop_waiting()
            self._go_on()

    def _drop_emitted(self, handoff: Handoff, *, released: bool) -> None:
        digests = handoff.digests
        emitted = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        ends = [position for position, (payload, _) in enumerate(self._pending) if _ends_message(payload)]
        dropped, expected = overlap(emitted, [item_digest(self._pending[position][0]) for position in ends])
        if expected:
            self._echo = Echo(expected, asyncio.get_running_loop().time() + LAG_SECONDS)
        if dropped:
            end = ends[dropped - 1] + 1
            kept = [item for item in self._pending[:end] if isinstance(item[0], Event)]
            self._release(sum(cost(payload) for payload, _ in self._pending[:end] if not isinstance(payload, Event)))
            self._pending[:end] = kept
        elif ends and not expected and (emitted or released):
            self._tell_gap(NOT_MATCHED)

    def _tell_gap(self, reason: str) -> None:
        until = self._pending[0][1]
        fields = {"from": None, "to": timestamp(until), "resumed": False, "reason": reason}
        self._pending.insert(0, (Event(Control.GAP, fields), until))
        self._release(-EVENT_BYTES)

    def _queue(self) -> None:
        self._state = QUEUED
        self._desk.enqueue(self)

    def take(self) -> Parcel | None:
        """What is to be emitted next; None if nothing is any more. One answer to the parcel follows."""
        if self._state is not QUEUED or self._grant is None or self._header is None:
            return None
        if not self._front:
            self._front, self._pending = self._pending, []
            self._front_bytes = self._bytes
        self._state = OUT
        most = 1 if self.alone else len(self._front)
        # By position: by name it would take twice as long, and this is done for every entry.
        self._parcel = Parcel(self, self._grant, self._header, self._front, self._seq + 1, most, self.cursor_of)
        return self._parcel

    def acknowledged(self, parcel: Parcel, entry: Entry, cursor: str | None) -> None:
        """The sink has taken the beginning of the parcel, which ended at this cursor."""
        if parcel is not self._parcel:
            return
        self._parcel = None
        self._attempts = 0
        self.alone = False
        if parcel.header is self._header:
            self._seq = entry.last_seq
        count = entry.last_seq - entry.first_seq + 1
        if count == len(self._front):
            taken, self._front = self._front, []
            self._release_front(self._front_bytes)
        else:
            taken = self._front[:count]
            del self._front[:count]
            # A text may count for more once it has been encoded, since the interpreter keeps its UTF-8 form with it.
            self._release_front(min(sum(cost(payload) for payload, _ in taken), self._front_bytes))
        self._remember(taken)
        if cursor is not None:
            self._note(cursor)
        self._flush_left -= count
        if self._flushed is not None and self._flush_left <= 0:
            self._end_flush()
        else:
            self._go_on()

    def again(self, parcel: Parcel, delay: float, *, alone: bool = False) -> None:
        """The sink has not taken the parcel, or nobody knows: send the same records again, after `delay` seconds.

        `alone`: one record at a time, in a call of its own.
        """
        if parcel is not self._parcel:
            return
        self._parcel = None
        self.alone = self.alone or alone
        if delay <= 0:
            self._queue()
            return
        self._state = WAITING
        self._wait = asyncio.get_running_loop().call_later(delay, self._go_on)

    def failed(self) -> int:
        """Count an attempt that the sink did not take; returns how many there were in a row."""
        self._attempts += 1
        return self._attempts

    def hold(self, parcel: Parcel) -> None:
        """The grant did not allow to emit: wait until it may."""
        if parcel is not self._parcel:
            return
        self._parcel = None
        self._state = WAITING
        self._wait = asyncio.get_running_loop().create_task(self._until_emit(parcel.grant))

    async def _until_emit(self, grant: Grant) -> None:
        await grant.until_emit()
        if not grant.may_emit():
            await asyncio.sleep(HOLD_SECONDS)
        self._go_on()

    def refused(self, parcel: Parcel, reason: str) -> None:
        """The sink will never take the parcel's first record: a `gap` takes its place, so that consumers know."""
        if parcel is not self._parcel:
            return
        lost, at = self._front[0]
        if isinstance(lost, Event):
            self.again(parcel, REFUSED_SECONDS)
            return
        self._parcel = None
        told = {"from": timestamp(at), "to": timestamp(at), "resumed": False, "reason": SINK_REFUSED, "code": reason}
        self._front[0] = (Event(Control.GAP, told), at)
        self._release_front(min(cost(lost) - EVENT_BYTES, self._front_bytes))
        if _ends_message(lost):
            self._desk.discarded(1)
        self.alone = False
        self._queue()

    def _go_on(self) -> None:
        self._wait = None
        if self._front or self._pending:
            self._queue()
        else:
            self._state = IDLE

    def _release_front(self, size: int) -> None:
        self._front_bytes -= size
        self._release(size)

    def _release(self, size: int) -> None:
        self._bytes -= size
        self._budget.used -= size
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    # Hand-over

    def invite(self) -> None:
        """Another session is about to be asked to stand by: from now on both may receive the same.

        What was received before cannot be among what it buffers, unless the server is asked to go on from a cursor. It
        must not be named: the server may say the same again.
        """
        now = asyncio.get_running_loop().time()
        if now - self._invited_at > INVITED_SECONDS and self.cursor_of is None:
            self._digests = b""
            self._unshared = len(self._front) + len(self._pending)
        self._invited_at = now

    def _remember(self, taken: Sequence[Item]) -> None:
        """Keep what a hand-over would name: the digests of the last messages that a standby may have as well."""
        if self.cursor_of is None:
            before = min(self._unshared, len(taken))
            self._unshared -= before
            taken = taken[before:]
        if not taken:
            return
        found = b"".join([item_digest(payload) for payload, _ in taken[-HANDOFF_MESSAGES:]])
        self._digests = (self._digests + found)[-HANDOFF_MESSAGES * DIGEST_BYTES :]

    # Cursors

    def _note(self, cursor: str) -> None:
        """Remember how far the output has come, and have that stored at most every `checkpoint_seconds`."""
        self._cursor = cursor
        if self._checkpoint_timer is None:
            loop = asyncio.get_running_loop()
            self._checkpoint_timer = loop.call_later(self._checkpoint_seconds, self._checkpoint)

    def _checkpoint(self) -> None:
        self._checkpoint_timer = None
        if self._grant is not None and self._cursor is not None:
            self._grant.checkpoint(self._cursor)

    # Ending

    async def flush(self) -> Remains:
        """Emit what is buffered now and wait until it is acknowledged; then nothing more, until another `begin`.

        Raises `Discarded` if the lease is lost meanwhile.
        """
        waiting = len(self._front) + len(self._pending)
        if self._grant is not None and waiting:
            self._flush_left = waiting
            self._flushed = asyncio.get_running_loop().create_future()
            await self._flushed
        else:
            self._shut()
        return Remains(cursor=self._cursor, handoff=Handoff(digests=self._digests, last_seq=self._seq))

    def _end_flush(self) -> None:
        flushed, self._flushed = self._flushed, None
        if flushed is not None and not flushed.done():
            self._shut()
            flushed.set_result(None)
        else:
            self._go_on()

    def discard(self) -> int:
        """The lease is lost: emit nothing more and drop everything. Returns the number of messages dropped."""
        dropped = self.buffered_messages
        self._shut()
        # The lists may be out in a thread: leave them to it.
        self._front, self._pending = [], []
        self._front_bytes = 0
        self._release(self._bytes)
        # What its socket still tells while it closes is never taken, and must not count against the others for ever.
        self._budget = Budget(self._bound, 0, 0)
        self._echo = None
        self._desk.discarded(dropped)
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_exception(Discarded(self._connection))
        self._flushed = None
        return dropped

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _shut(self) -> None:
        self._state = SHUT
        self._grant = None
        self._parcel = None
        self._stop_waiting()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None


def _ends_message(payload: Payload) -> bool:
    if isinstance(payload, Event):
        return False
    return not isinstance(payload, Part) or payload.last
