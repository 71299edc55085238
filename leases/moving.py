"""Which connections move where: all of them when a session drains, some of them when the fleet has grown."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from leases import events
from leases.balance import plan
from leases.conditions import Unknown
from leases.fleet import Fleet, FleetView
from leases.handover import Given, HandOver
from leases.holding import Holding, Phase
from leases.holdings import Holdings
from leases.inboxes import Inboxes
from leases.placement import Targets
from leases.ports import Clock, Store

HAND_OVERS_AT_ONCE = 128
"""While draining. Each takes a few writes, and as long as the target takes to connect."""
TRIES = 3
LISTING_SHARE = 1 / 3
"""Of the time for draining: so long a fresh listing of the fleet is waited for."""
LISTING_PAUSE_SECONDS = 0.2
LAST_RELEASE_SECONDS = 8.0
"""After the drain deadline: the time for releasing what is left. Sockets are closed and the session is buried after it,
all within the 20 s that a supervisor grants."""
LAST_TRANSFER_SECONDS = 5.0
"""So long a transfer to this session may have been under way when its row began to say that it drains."""
LAST_TRANSFER_LOOKS = 25
HEAD_START_SECONDS = 1.0
"""Of a standby that may be there before everybody else: it reads the row twice a second, and loses nothing."""
EVEN_OUT_SECONDS = 10.0
EVEN_OUT_MOVES = 40
EVEN_OUT_PART = 8
"""Moves of one session in one round: EVEN_OUT_MOVES, or one in EVEN_OUT_PART of what it holds, if that is more. So half
of any worker is elsewhere within a minute."""
STEADY_SECONDS = 35.0
"""A session gets connections by evening out only after it was seen for this long: one that is gone again half a minute
after it came has moved nothing."""
REST_SECONDS = 60.0
"""A connection that has just come stays for this long."""


class Mover:
    """Moves connections of one session to others."""

    def __init__(
        self,
        holdings: Holdings,
        *,
        store: Store,
        view: FleetView,
        clock: Clock,
        observer: events.Observer,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._holdings = holdings
        self._store = store
        self._view = view
        self._clock = clock
        self._observer = observer
        self._spawn = spawn
        self._handover = HandOver(holdings, Inboxes(store, observer, spawn), clock, observer, spawn)
        self._targets = Targets(holdings.session.id)
        self._gate = asyncio.Semaphore(HAND_OVERS_AT_ONCE)
        self._first_seen: dict[str, float] = {}

    async def drain(self, seconds: float) -> None:
        """Hand everything over, and release what is left after so many seconds."""
        deadline = self._clock.now() + seconds
        await self._look_around(self._clock.now() + LISTING_SHARE * seconds)
        await self._end([standby for standby in self._holdings.standbys if not standby.answered])
        await self._move_all(deadline)
        if self._holdings.standbys:
            for _ in range(LAST_TRANSFER_LOOKS):
                if self._holdings.standbys and self._clock.now() < deadline:
                    await asyncio.sleep(LAST_TRANSFER_SECONDS / LAST_TRANSFER_LOOKS)
            await self._end(self._holdings.standbys)
            await self._move_all(deadline)
        left = [self._spawn(self._release(holding.connection)) for holding in self._holdings.held]
        if left:
            await asyncio.wait(left, timeout=LAST_RELEASE_SECONDS)
        await self._holdings.closed()

    async def _look_around(self, until: float) -> None:
        """Take a fresh listing, since an old one may not show those who came to take over."""
        while self._clock.now() < until:
            try:
                await self._view.refresh(self._store)
                return
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("list", str(unknown)))
                await asyncio.sleep(LISTING_PAUSE_SECONDS)

    async def _move_all(self, deadline: float) -> None:
        moves = [self._spawn(self._move(holding.connection)) for holding in self._holdings.held]
        if moves:
            await asyncio.wait(moves, timeout=max(0.0, deadline - self._clock.now()))

    async def _end(self, standbys: Iterable[Holding]) -> None:
        for standby in standbys:
            await self._holdings.release(standby.connection)

    async def _move(self, connection: str) -> None:
        """Hand a connection over to whoever is best at that moment, or release it if nobody takes it."""
        async with self._gate:
            declined: set[str] = set()
            while len(declined) < TRIES:
                holding = self._holdings.get(connection)
                if holding is None or not _movable(holding):
                    break
                target = self._targets.choose(self._view.current, declined)
                if target is None:
                    break
                given = await self._handover.give(connection, target)
                if given is Given.OVER:
                    return
                if given is Given.DECLINED:
                    declined.add(target)
            await self._release(connection)

    async def _release(self, connection: str) -> None:
        holding = self._holdings.get(connection)
        invited = holding is not None and holding.invited
        if await self._holdings.release(connection):
            if invited:
                await asyncio.sleep(HEAD_START_SECONDS)
            await self._holdings.hint((connection,))

    async def even_out(self) -> None:
        """Hand over what is above this session's fair share, for ever, a little at a time.

        Connections whose upstream tolerates only one socket stay where they are: each move would interrupt them.
        """
        while True:
            await asyncio.sleep(EVEN_OUT_SECONDS)
            fleet = self._view.current
            steady = self._steady(fleet)
            if self._holdings.session.draining.is_set():
                continue
            held = len(self._holdings.held)
            most = max(EVEN_OUT_MOVES, held // EVEN_OUT_PART)
            targets = plan(fleet, self._holdings.session.id, held, steady, most)
            rested = self._clock.now() - REST_SECONDS
            movable = [
                holding.connection
                for holding in self._holdings.held
                if holding.phase is Phase.HELD and holding.begun_at < rested and _movable(holding)
            ]
            await asyncio.gather(*map(self._give, movable, targets))

    async def _give(self, connection: str, target: str) -> None:
        async with self._gate:
            await self._handover.give(connection, target)

    def _steady(self, fleet: Fleet) -> set[str]:
        now = self._clock.now()
        self._first_seen = {row.session: self._first_seen.get(row.session, now) for row in fleet.alive}
        return {session for session, since in self._first_seen.items() if now - since >= STEADY_SECONDS}


def _movable(holding: Holding) -> bool:
    """Whether a standby helps: it needs an upstream that takes a second socket, and there is a first one to replace."""
    return holding.runner.ready.is_set() and not holding.runner.exclusive
