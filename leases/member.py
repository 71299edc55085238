"""One process as a member of the fleet: one session after the other, each with heartbeat, judging, sweeps and audits.

`Member.run` is the whole of it. A session that is lost is dropped at once, with all that it held; a new one follows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

from leases import events, writes
from leases.balance import overloaded
from leases.conditions import Refused, Unknown
from leases.fleet import FleetView
from leases.holdings import Considered, Holdings
from leases.judging import Judging
from leases.moving import Mover
from leases.persist import Persistent
from leases.placement import outdated
from leases.ports import Clock, Hints, Host, Store
from leases.rows import DeadBy, Load, SessionRow, SessionState
from leases.session import GivenUp, Session, SessionOver
from leases.sweeper import Sweeper
from leases.timings import Timings

AUDIT_SECONDS = 60.0
WATCH_SECONDS = 0.5
RETRY_SECONDS = 2.0
BURY_SECONDS = 6.0
"""At the end of a session, for making that known."""


class _Drained(Exception):
    """The session has handed over what it held, and is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a process says of itself in its session row."""

    task_arn: str
    revision: int
    capacity: int


class Member:
    """A member of the fleet. `new_session` gives the id of each session, once whoever reaps this process knows it.

    The three stores are the same table by ways of their own: neither the heartbeat nor the watch over others may ever
    wait behind claims.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        store: Store,
        heartbeat_store: Store,
        judge_store: Store,
        hints: Hints,
        clock: Clock,
        timings: Timings,
        rng: Random,
        host: Host,
        observer: events.Observer,
        new_session: Callable[[], Awaitable[str]],
        new_id: Callable[[], str],
        drain_seconds: float = 90.0,
    ) -> None:
        self._identity = identity
        self._store = store
        self._heartbeat_store = heartbeat_store
        self._judge_store = judge_store
        self._hints = hints
        self._clock = clock
        self._timings = timings
        self._rng = rng
        self._host = host
        self._observer = observer
        self._new_session = new_session
        self._new_id = new_id
        self._drain_seconds = drain_seconds
        self._stopping = asyncio.Event()
        self.joined = asyncio.Event()
        """Set once the first session is open."""
        self.left_behind = 0
        """Connections that this member held when its last session ended, and could not flush and let go."""
        self.holdings: Holdings | None = None
        """What the present session holds; None between sessions."""
        self.view = FleetView()

    def stop(self) -> None:
        """Drain, then end. A second call changes nothing."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """Whether this member takes nothing any more: it drains, and ends."""
        return self._stopping.is_set()

    @property
    def held(self) -> int:
        """Connections that are held or stood by for."""
        return len(self.holdings) if self.holdings is not None else 0

    @property
    def room(self) -> int:
        """Connections that may be taken now."""
        if self.holdings is None or outdated(self.view.current, self._identity.revision):
            return 0
        return self.holdings.room

    @property
    def ahead(self) -> bool:
        """Whether this member holds clearly more than the mean, so that others should be given connections first."""
        return overloaded(self.held, Fraction(self.view.current.mean) * self._identity.capacity)

    async def consider(self, connections: list[str]) -> dict[str, Considered]:
        """Look at connections that may want an owner. Raises `Unknown`."""
        holdings = self.holdings
        if holdings is None:
            return dict.fromkeys(connections, Considered.LATER)
        rows = await holdings.rows(connections)
        done = {name: Considered.DONE for name in connections if name not in rows}
        outcomes = await asyncio.gather(*(holdings.consider(row) for row in rows.values()))
        if holdings.session.over:
            # A claim was answered only now. Whoever sweeps the session finds the row.
            holdings.abort_all()
        return done | dict(zip(rows, outcomes, strict=True))

    async def run(self) -> None:
        """Be a member until stopped and drained."""
        while not self._stopping.is_set():
            session = await self._open()
            if session is None:
                return
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._serve(session, tasks)
            except* (SessionOver, _Drained):
                self.holdings = None
                await self._bury(session)

    async def _open(self) -> Session | None:
        """Open a session, however long the store takes to answer. None: this process is to stop, and holds nothing.

        A row that was written after all, by an attempt of unknown outcome, is ended by whoever reaps the process, or by
        a judge.
        """
        while not self._stopping.is_set():
            row = SessionRow(
                session=await self._new_session(),
                state=SessionState.LIVE,
                seq=0,
                takeover_ms=self._timings.takeover_ms,
                capacity=self._identity.capacity,
                held=0,
                rate=0,
                revision=self._identity.revision,
                task_arn=self._identity.task_arn,
                inbox=frozenset(),
                opened_at=int(self._clock.wall()),
            )
            session = Session(
                row,
                store=self._heartbeat_store,
                clock=self._clock,
                timings=self._timings,
                rng=self._rng,
                load=self._load,
                observer=self._observer,
            )
            try:
                if await session.open():
                    self.joined.set()
                    return session
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("open", str(unknown)))
                await asyncio.sleep(self._rng.uniform(0, self._timings.heartbeat))
        return None

    def _load(self) -> Load:
        return replace(self._host.load(), held=self.held)

    async def _bury(self, session: Session) -> None:
        """Make it known that a session is over: whoever reads that may claim at once. Else the judges will find out."""
        write = writes.declare_dead(session.id, DeadBy.SELF, None, int(self._clock.wall()))
        persistent = Persistent(self._store, self._rng, self._observer)
        with suppress(TimeoutError):
            async with asyncio.timeout(BURY_SECONDS):
                result = await persistent.write(write)
                if isinstance(result, Refused) and result.image is None:
                    await persistent.write(writes.tombstone(session.row, int(self._clock.wall())))

    async def _serve(self, session: Session, tasks: asyncio.TaskGroup) -> None:
        holdings = Holdings(
            session,
            store=self._store,
            hints=self._hints,
            clock=self._clock,
            timings=self._timings,
            rng=self._rng,
            host=self._host,
            observer=self._observer,
            spawn=tasks.create_task,
            new_id=self._new_id,
        )
        self.holdings = holdings
        sweeper = Sweeper(holdings, self._clock, self._observer, self.view, tasks.create_task)
        judging = Judging(
            session,
            store=self._judge_store,
            clock=self._clock,
            timings=self._timings,
            view=self.view,
            sweeper=sweeper,
            observer=self._observer,
        )
        mover = Mover(
            holdings,
            store=self._store,
            view=self.view,
            clock=self._clock,
            observer=self._observer,
            spawn=tasks.create_task,
        )
        loops: list[Coroutine[Any, Any, None]] = [
            self._live(session, holdings),
            holdings.scribe.run(),
            self._read_inbox(session, holdings),
            self._hold_and_resume(session, holdings),
            self._repeat(AUDIT_SECONDS, holdings.audit),
            self._repeat(WATCH_SECONDS, holdings.watch_offers),
            sweeper.run(),
            judging.run(),
            mover.even_out(),
            self._pass_on_stop(session),
        ]
        running = [tasks.create_task(loop) for loop in loops]
        await session.draining.wait()
        self._stopping.set()
        await mover.drain(self._drain_seconds)
        for loop in running:
            loop.cancel()
        # What is left could not be flushed or let go in time. Once the row says DEAD, anyone may claim it.
        session.end()
        self._drop(holdings)
        raise _Drained

    async def _live(self, session: Session, holdings: Holdings) -> None:
        try:
            await session.run()
        except SessionOver as over:
            ended = events.SessionGivenUp if isinstance(over, GivenUp) else events.SessionLost
            self._observer.saw(ended(session.id, len(holdings), str(over)))
            self._drop(holdings)
            raise

    def _drop(self, holdings: Holdings) -> None:
        self.left_behind = len(holdings.held)
        holdings.abort_all()

    async def _repeat(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        pause = seconds
        while True:
            await asyncio.sleep(pause * self._rng.uniform(0.9, 1))
            try:
                await act()
                pause = seconds
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed(act.__name__, str(unknown)))
                pause = min(seconds, RETRY_SECONDS)

    async def _read_inbox(self, session: Session, holdings: Holdings) -> None:
        while True:
            connections = await session.inbox.get()
            while True:
                try:
                    await holdings.look(connections)
                    break
                except Unknown as unknown:
                    self._observer.saw(events.StoreFailed("inbox", str(unknown)))
                    await asyncio.sleep(self._rng.uniform(0, self._timings.heartbeat))

    async def _hold_and_resume(self, session: Session, holdings: Holdings) -> None:
        while True:
            await session.until_hold()
            for holding in holdings.held:
                holding.runner.hold()
            await session.until_emit()
            for holding in holdings.held:
                holding.resume()

    async def _pass_on_stop(self, session: Session) -> None:
        """Say in the session row that this process drains, so that nobody offers it anything."""
        await self._stopping.wait()
        session.draining.set()
        await Persistent(self._store, self._rng, self._observer).write(writes.drain_session(session.id))
