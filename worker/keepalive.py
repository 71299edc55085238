"""Whether the peer is still there: one sweeper for all WebSockets of a process instead of a task for each.

Any inbound byte is a sign of life, so only a silent peer is pinged (RFC 6455 section 5.5.2). A verdict needs proof that
the silence is the peer's and not ours: the loop must have read once since the deadline, and must not have stalled.
"""

import asyncio
import random
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from worker.logs import logger

log = logger()

TICK_SECONDS = 0.5
"""How often the sweeper looks for what is due."""

STALL_SECONDS = 1.0
"""A tick that comes later than this shows that our own loop stood still."""


class Verdict(Enum):
    """What the pulse of a WebSocket asks for."""

    FINE = auto()
    PING = auto()
    """Send a ping: nothing was heard for the interval."""
    SILENT = auto()
    """Nothing was heard since the ping for the time-out: the peer is gone."""
    STALE = auto()
    """The peer answers pings but has sent no message for too long."""


@dataclass(slots=True, kw_only=True)
class Pulse:
    """Signs of life of one WebSocket. Pure: times are arguments, in seconds on the loop's clock."""

    interval: float
    timeout: float
    stale_after: float | None
    pinged_at: float | None = None
    suspect: bool = False
    """The deadline had passed at the last look."""

    def look(self, now: float, heard_at: float, message_at: float, *, sound: bool) -> tuple[Verdict, float]:
        """Judge the silence since `heard_at` and `message_at`; returns what to do and when to look again.

        `sound` is False if our own loop has just stalled: what the peer sent may still wait to be read, so nothing is
        concluded from silence.
        """
        # A loop's clock may stand for a millisecond, in which an answer can come. Before the ping there was silence.
        if self.pinged_at is not None and heard_at >= self.pinged_at:
            self.pinged_at = None
        overdue = self._overdue(now, message_at)
        if overdue is None:
            self.suspect = False
        elif self.suspect and sound:
            return overdue, now
        else:
            self.suspect = sound
            return Verdict.FINE, now
        if self.pinged_at is None and now >= heard_at + self.interval:
            self.pinged_at = now
            return Verdict.PING, self._next_look(now + self.timeout, message_at)
        if self.pinged_at is not None:
            return Verdict.FINE, self._next_look(self.pinged_at + self.timeout, message_at)
        return Verdict.FINE, self._next_look(heard_at + self.interval, message_at)

    def _overdue(self, now: float, message_at: float) -> Verdict | None:
        if self.pinged_at is not None and now >= self.pinged_at + self.timeout:
            return Verdict.SILENT
        if self.stale_after is not None and now >= message_at + self.stale_after:
            return Verdict.STALE
        return None

    def _next_look(self, ping: float, message_at: float) -> float:
        return ping if self.stale_after is None else min(ping, message_at + self.stale_after)


class Swept(Protocol):
    """Something that the sweeper looks after."""

    def look(self, now: float, *, sound: bool) -> float | None:
        """Do what is due; returns when to come back, or None to be forgotten."""
        ...

    def broke(self, error: Exception) -> None:
        """`look` raised, and nobody will look again. Must not raise itself."""
        ...


class Sweeper:
    """A timer wheel: every member is visited when it asked to be, within a tick."""

    __slots__ = ("_handle", "_loop", "_now", "_slots", "_swept_to", "_ticked_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now = loop.time
        self._slots: dict[int, list[Swept]] = {}
        self._ticked_at = self._now()
        self._swept_to = self._slot(self._ticked_at)
        self._handle = loop.call_later(TICK_SECONDS, self._tick)

    def watch(self, member: Swept, within: float) -> None:
        """Begin to look after a member. Its first visit comes at a random time within so many seconds, so that
        connections that were opened together are not pinged together."""
        self._put(member, self._now() + random.uniform(0.5, 1) * within)

    def close(self) -> None:
        """Stop; members are not told."""
        self._handle.cancel()
        self._slots.clear()

    @staticmethod
    def _slot(when: float) -> int:
        return int(when / TICK_SECONDS)

    def _put(self, member: Swept, when: float) -> None:
        # Never the slot that is being swept, or one that was: it would wait for ever.
        self._slots.setdefault(max(self._slot(when), self._swept_to + 1), []).append(member)

    def _tick(self) -> None:
        now = self._now()
        late = now - self._ticked_at - TICK_SECONDS
        sound = late < STALL_SECONDS
        if not sound:
            log.warning("The event loop stood still for %.1f s; no peer is judged for it", late)
        self._ticked_at = now
        first, self._swept_to = self._swept_to + 1, self._slot(now)
        for slot in range(first, self._swept_to + 1):
            for member in self._slots.pop(slot, ()):
                try:
                    again = member.look(now, sound=sound)
                except Exception as error:  # noqa: BLE001 - what is wrong with one must not leave all others unwatched
                    member.broke(error)
                    continue
                if again is not None:
                    self._put(member, again)
        self._handle = self._loop.call_later(TICK_SECONDS, self._tick)
