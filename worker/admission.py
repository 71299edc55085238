"""How fast, and how many at once, new WebSockets may be opened: per group and per process.

A *group* is what an upstream counts together: one host, or what the request names as `group`. All its connections
share a rate, an in-flight limit, and the wait that a 429 or Retry-After asks for, since an upstream that bans counts
every attempt of every connection against them all.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from weakref import WeakValueDictionary

from worker.retry import FIRST_WINDOW, RETRY_AFTER_CAP

RATE_LIMITED_FIRST_WAIT = 5.0
"""Seconds that a group waits after its first 429 without a usable Retry-After; doubles with each one that follows."""

BURST_SECONDS = 2.0
"""What a rate allows at once after a pause is what it allows in this time."""

HERD_SECONDS = 10.0
"""Drops within this many seconds count as one herd."""

HERD_WINDOW_CAP = 30.0
"""A herd spreads its first retries over at most this many seconds, however large it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """A rate in attempts per second, the burst that it allows after a pause, and how many may be in flight."""

    rate: float
    burst: int
    in_flight: int

    @classmethod
    def per_second(cls, rate: float, in_flight: int) -> Self:
        """So many attempts per second, and after a pause those of BURST_SECONDS at once."""
        return cls(rate=rate, burst=max(1, round(BURST_SECONDS * rate)), in_flight=in_flight)


PROCESS_IN_FLIGHT = 128
GROUP_IN_FLIGHT = 64

PROCESS_ALLOWANCE = Allowance.per_second(100, PROCESS_IN_FLIGHT)
GROUP_ALLOWANCE = Allowance.per_second(50, GROUP_IN_FLIGHT)


class TokenBucket:
    """A rate with a burst, first come first served (generic cell rate algorithm): pure, the time is an argument."""

    __slots__ = ("_interval", "_next", "_slack")

    def __init__(self, rate: float, burst: int) -> None:
        self._interval = 1 / rate
        self._slack = (burst - 1) / rate
        self._next = float("-inf")

    def reserve(self, now: float) -> float:
        """Take the next place in line; returns the time at which it is due."""
        due = max(now, self._next - self._slack)
        self._next = max(now, self._next) + self._interval
        return due


class Slots:
    """How many may be in flight, first come first served. The limit may change at any time."""

    __slots__ = ("_taken", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self._taken < self.limit and not self._waiting:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        self.admit()

    def admit(self) -> None:
        """Hand free slots to those who wait."""
        while self._waiting and self._taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


class Group:
    """Connections that share a budget at their upstream."""

    __slots__ = ("__weakref__", "_allowance", "_bucket", "_drops", "_refusals", "_waits_until", "slots")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._bucket = TokenBucket(allowance.rate, allowance.burst)
        self._drops: deque[float] = deque()
        self._refusals = 0
        self._waits_until = float("-inf")
        self.slots = Slots(allowance.in_flight)

    def dropped(self, now: float) -> None:
        """A WebSocket of the group ended, or could not be opened."""
        self._drops.append(now)

    def window(self, now: float) -> float:
        """Seconds over which retries must be spread, so that a herd keeps within half the group's rate."""
        while self._drops and self._drops[0] < now - HERD_SECONDS:
            self._drops.popleft()
        return min(HERD_WINDOW_CAP, max(FIRST_WINDOW, 2 * len(self._drops) / self._allowance.rate))

    def rate_limited(self, now: float, after: float | None) -> None:
        """The upstream refused an attempt because there are too many; `after` seconds is what it asks for."""
        self._refusals += 1
        wait = after or min(RETRY_AFTER_CAP, RATE_LIMITED_FIRST_WAIT * 2.0 ** min(self._refusals - 1, 16))
        self._waits_until = max(self._waits_until, now + wait)
        # Until the upstream lets one in again, one attempt at a time is enough to find out.
        self.slots.limit = 1

    def let_in(self) -> None:
        """The upstream answered an attempt without complaining about their number."""
        self._refusals = 0
        self.slots.limit = self._allowance.in_flight
        self.slots.admit()

    def open_at(self, share: float, now: float) -> float:
        """When a connection that drew `share` (0 to 1) may try, as far as the group is concerned."""
        if self._waits_until <= now - self.window(now):
            return now
        return self._waits_until + share * self.window(now)

    def reserve(self, now: float) -> float:
        """Take a place in the group's rate; returns the time at which it is due."""
        return self._bucket.reserve(now)


class Admission:
    """The gate that every attempt of this process passes."""

    def __init__(
        self,
        now: Callable[[], float],
        process: Allowance = PROCESS_ALLOWANCE,
        group: Allowance = GROUP_ALLOWANCE,
    ) -> None:
        self._now = now
        self._group_allowance = group
        self._bucket = TokenBucket(process.rate, process.burst)
        self._slots = Slots(process.in_flight)
        self._groups: WeakValueDictionary[str, Group] = WeakValueDictionary()

    def group(self, name: str) -> Group:
        """The group of that name. It lives as long as somebody holds on to it."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(self._group_allowance)
        return group

    @asynccontextmanager
    async def attempt(self, group: Group, share: float) -> AsyncIterator[None]:
        """Wait for permission to make one attempt, and hold its place while it is in flight.

        `share` is the connection's random number (0 to 1) for this attempt: it says where in the group's herd it goes.
        """
        await self._enter(group, share)
        try:
            await self._sleep_until(group.reserve(self._now()))
            await self._slots.acquire()
            try:
                await self._sleep_until(self._bucket.reserve(self._now()))
                yield
            finally:
                self._slots.release()
        finally:
            group.slots.release()

    async def _enter(self, group: Group, share: float) -> None:
        while True:
            await self._sleep_until(group.open_at(share, self._now()))
            await group.slots.acquire()
            now = self._now()
            # Somebody else of the group may have been refused while this one stood in line.
            if group.open_at(share, now) <= now:
                return
            group.slots.release()

    async def _sleep_until(self, due: float) -> None:
        delay = due - self._now()
        if delay > 0:
            await asyncio.sleep(delay)
