"""One run of one worker process: the heartbeat that keeps it alive, and the deadline that makes it stop in time.

The holder's half of the safety argument is in `Session.may_emit`: a side effect starts only before the deadline, which
counts from when the last acknowledged heartbeat was *sent*. No judge can have seen that heartbeat earlier than it was
sent, and every judge waits longer than the deadline is away (`Timings`: W >= ρ (H + D)).
"""

import asyncio
from collections.abc import Callable
from random import Random

from leases import writes
from leases.clock import Continuity
from leases.conditions import Unknown, Written
from leases.events import HeartbeatAcknowledged, HeartbeatUnknown, HoldBegan, HoldEnded, Observer, SessionOpened
from leases.ports import Clock, Store
from leases.rows import Load, SessionRow, SessionState
from leases.timings import HURRIED_SECONDS, RETRY_SECONDS, Timings

JITTER = 0.1
"""Heartbeats are spread by this share of the period, so that a fleet started together does not write together."""

NEVER = float("-inf")


class SessionOver(Exception):
    """The session has ended and cannot be revived. Everything it holds must be dropped at once."""


class GivenUp(SessionOver):
    """It has ended itself: on hold for too long."""


class Session:
    """A session row and what this process knows of it. Raises nothing of its own but `SessionOver`, from `run`."""

    def __init__(
        self,
        row: SessionRow,
        *,
        store: Store,
        clock: Clock,
        timings: Timings,
        rng: Random,
        load: Callable[[], Load],
        observer: Observer,
    ) -> None:
        self.id = row.session
        self.row = row
        self.acknowledged_at = NEVER
        """When the last heartbeat was acknowledged, for the judge in this process."""
        self._store = store
        self._clock = clock
        self._timings = timings
        self._rng = rng
        self._load = load
        self._observer = observer
        self._continuity = Continuity(clock)
        self._seq = row.seq
        self._deadline = NEVER
        self._distrusted_at: float | None = None
        """A clock jumped, or this process stood still: only a heartbeat sent after this proves anything."""
        self._beat_by = float("inf")
        """A heartbeat that is not under way by then means that this process stood still."""
        self._lost = False
        self._gate = asyncio.Event()
        self._seen: frozenset[str] = frozenset()
        self._held_since: float | None = None
        self.inbox: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        """Ids of rows to look at now. Each was taken out of the row's inbox before it came here, so that a change that
        lands after the look is named again."""
        self.draining = asyncio.Event()
        """Set once the row says DRAINING: by this process, or by an operator."""

    async def open(self) -> bool:
        """Write the session row. False: the id is taken, so take a new one. Raises `Unknown`."""
        sent_at = self._clock.now()
        try:
            # Not even a call that hangs beyond every time-out of the SDK may keep this process out of the fleet. With
            # an answer that comes after so long the session would be on hold from the start.
            async with asyncio.timeout(self._timings.self_fence):
                result = await self._store.write(writes.open_session(self.row))
        except TimeoutError:
            raise Unknown("open: no answer in time") from None
        if not isinstance(result, Written):
            return False
        self._acknowledge(sent_at)
        self._observer.saw(SessionOpened(self.id))
        return True

    def may_emit(self) -> bool:
        """Whether a side effect may start now. Asked in the emit path, never in a timer: the first thing that a process
        does after SIGCONT passes through here, and finds the deadline gone."""
        if self._continuity.broken():
            self._distrust()
        now = self._clock.now()
        return not self._lost and self._distrusted_at is None and now < self._deadline and now < self._beat_by

    async def until_emit(self) -> None:
        """Wait until the session may emit, or might: ask again before the act."""
        while not self.may_emit():
            self._gate.clear()
            await self._gate.wait()

    async def until_hold(self) -> None:
        """Wait until the deadline has passed."""
        left = self._deadline - self._clock.now()
        while left > 0:
            await asyncio.sleep(left)
            left = self._deadline - self._clock.now()

    @property
    def over(self) -> bool:
        """Whether this session has ended, as far as this process knows."""
        return self._lost

    @property
    def on_hold(self) -> bool:
        """Whether the deadline has passed without this session being lost, as far as anybody knows."""
        return not self._lost and not self.may_emit()

    def end(self) -> None:
        """Emit nothing any more."""
        self._lost = True

    async def run(self) -> None:
        """Write heartbeats until the session is over; then raise `SessionOver`."""
        pause = self._period()
        while True:
            await self._sleep(pause)
            await self._beat()
            late = self._deadline - self._clock.now() < self._timings.self_fence - self._timings.heartbeat
            hurry = late or self._seen or self._distrusted_at is not None
            pause = HURRIED_SECONDS if hurry else self._period()

    def _period(self) -> float:
        return self._timings.heartbeat * self._rng.uniform(1 - JITTER, 1)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and find out whether this process stood still meanwhile."""
        slack = self._timings.heartbeat
        self._beat_by = self._clock.now() + seconds + slack
        await asyncio.sleep(seconds)
        if self._clock.now() >= self._beat_by or self._continuity.broken():
            self._distrust()
        self._beat_by = self._clock.now() + self._timings.call_timeout + slack

    def _distrust(self) -> None:
        self._distrusted_at = self._clock.now()
        self._continuity.restart()

    def _acknowledge(self, sent_at: float) -> None:
        now = self._clock.now()
        self._deadline = max(self._deadline, sent_at + self._timings.self_fence)
        self.acknowledged_at = now
        if self._distrusted_at is not None and sent_at >= self._distrusted_at:
            self._distrusted_at = None
        if self._distrusted_at is None and now < self._deadline:
            self._gate.set()
            if self._held_since is not None:
                self._observer.saw(HoldEnded(now - self._held_since))
                self._held_since = None

    async def _beat(self) -> None:
        """One sequence number: repeated until it is acknowledged, or proven lost, or given up."""
        self._seq += 1
        shown = self._seen
        write = writes.heartbeat(self.id, self._seq, self._load(), shown)
        sent_at = self._clock.now()
        while True:
            try:
                # The SDK's time-outs know neither a name server that hangs nor an answer that drips.
                async with asyncio.timeout(self._timings.call_timeout):
                    result = await self._store.write(write)
                break
            except (Unknown, TimeoutError) as unknown:
                self._observer.saw(HeartbeatUnknown(str(unknown) or "no answer in time"))
                self._note_hold()
                await self._sleep(RETRY_SECONDS * self._rng.uniform(0.5, 1))
        image = result.image
        if image is None:
            raise self._over("its row is gone")
        row = SessionRow.from_item(image)
        if not row.alive:
            raise self._over(f"declared dead by {row.dead_by}")
        if row.seq < self._seq:
            raise self._over(f"its row went back to {row.seq}")
        self._acknowledge(sent_at)
        self._observer.saw(HeartbeatAcknowledged(self._clock.now() - sent_at))
        if row.state is SessionState.DRAINING:
            self.draining.set()
        if shown:
            self.inbox.put_nowait(shown)
        self._seen = row.inbox

    def _note_hold(self) -> None:
        now = self._clock.now()
        if now < self._deadline:
            return
        if self._held_since is None:
            self._held_since = now
            self._observer.saw(HoldBegan(self._load().held))
        elif now - self._held_since >= self._timings.give_up:
            self.end()
            raise GivenUp(f"on hold for {now - self._held_since:.0f} s")

    def _over(self, reason: str) -> SessionOver:
        self.end()
        return SessionOver(reason)
