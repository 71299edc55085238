"""Finds new owners for the rows of dead sessions and for free ones."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from leases import events
from leases.conditions import Unknown
from leases.fleet import Fleet, FleetView
from leases.holdings import Considered, Holdings
from leases.placement import share
from leases.ports import Clock
from leases.rows import OWNER_SHARDS, ConnectionRow, Desired, free_shard

SWEEP_SECONDS = 5.0
RESERVE_ROUNDS = 4
"""The second in line sweeps every so many rounds (20 s), should the first not see what it sees."""
FRESH_SECONDS = 120.0
STALE_ROUNDS = 12
"""A session that has been dead for longer than FRESH_SECONDS is swept every so many rounds (60 s): a claim that it sent
before it died can land late."""
HINT_AGAIN_SECONDS = 60.0
CLAIMS_AT_ONCE = 32


class Sweeper:
    """Sweeps owner values: claims up to this session's share, and has the rest offered to those with room."""

    def __init__(
        self,
        holdings: Holdings,
        clock: Clock,
        observer: events.Observer,
        view: FleetView,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._holdings = holdings
        self._clock = clock
        self._observer = observer
        self._view = view
        self._spawn = spawn
        self._sweeping: set[str] = set()
        self._dead_since: dict[str, float] = {}
        self._hinted: dict[tuple[str, int], float] = {}
        """When a connection was last hinted at, in each of its epochs: a new owner that dies is a new need."""
        self._rounds = 0

    async def run(self) -> None:
        """Sweep what this session is first or second in line for, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._rounds += 1
            for owner in self._due():
                self.sweep_now(owner)

    def _due(self) -> list[str]:
        fleet, now = self._view.current, self._clock.now()
        self._dead_since = {session: self._dead_since.get(session, now) for session in fleet.dead}
        self._hinted = {name: at for name, at in self._hinted.items() if now - at < HINT_AGAIN_SECONDS}
        dead = [
            session
            for session, since in self._dead_since.items()
            if now - since < FRESH_SECONDS or self._rounds % STALE_ROUNDS == 0
        ]
        shards = [free_shard(number) for number in range(OWNER_SHARDS)]
        return [owner for owner in (*dead, *shards) if self._in_line(fleet, owner)]

    def _in_line(self, fleet: Fleet, owner: str) -> bool:
        turn = fleet.turn(self._holdings.session.id, owner)
        return turn == 0 or (turn == 1 and self._rounds % RESERVE_ROUNDS == 0)

    def sweep_now(self, owner: str) -> None:
        """Begin to sweep an owner value, unless that is under way. Returns at once: a watch must not wait for it."""
        if owner not in self._sweeping:
            self._sweeping.add(owner)
            self._spawn(self._sweep(owner))

    async def _sweep(self, owner: str) -> None:
        """Look at every row that the index lists under an owner value; leave what is not orphaned alone."""
        try:
            await self._sweep_listed(owner)
        finally:
            self._sweeping.discard(owner)

    async def _sweep_listed(self, owner: str) -> None:
        try:
            listed = await self._holdings.listed(owner)
            rows = list((await self._holdings.rows(listed)).values()) if listed else []
        except Unknown as unknown:
            self._observer.saw(events.StoreFailed("sweep", str(unknown)))
            return
        rows = [row for row in rows if row.owner == owner]
        wanted = [row for row in rows if row.desired is Desired.RUNNING]
        unwanted = [row for row in rows if row.desired is not Desired.RUNNING]
        overdue: list[ConnectionRow] = []
        fresh: list[ConnectionRow] = []
        for row in wanted:
            (overdue if self._hinted_since(row, SWEEP_SECONDS) else fresh).append(row)
        # Whoever received the hint may have frozen with it: what has no owner by now is taken, share or not.
        mine = share(self._view.current, self._holdings.session.id, len(self._holdings), len(fresh))
        claimable, room = overdue + fresh[:mine], self._holdings.room
        taken, left = claimable[:room], claimable[room:] + fresh[mine:]
        await asyncio.gather(self._consider(taken + unwanted), self._offer(left))

    def _hinted_since(self, row: ConnectionRow, seconds: float) -> bool:
        at = self._hinted.get((row.connection, row.epoch))
        return at is not None and self._clock.now() - at >= seconds

    async def _consider(self, rows: Sequence[ConnectionRow]) -> None:
        gate = asyncio.Semaphore(CLAIMS_AT_ONCE)

        async def one(row: ConnectionRow) -> Considered:
            async with gate:
                return await self._holdings.consider(row)

        await asyncio.gather(*map(one, rows))

    async def _offer(self, rows: Sequence[ConnectionRow]) -> None:
        now = self._clock.now()
        never = now - HINT_AGAIN_SECONDS
        due = [row for row in rows if self._hinted.get((row.connection, row.epoch), never) <= never]
        named = due[: self._view.current.room]
        if named:
            self._hinted.update(((row.connection, row.epoch), now) for row in named)
            await self._holdings.hint([row.connection for row in named])
