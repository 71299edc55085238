"""Stores the cursors and observed states of held connections: of each the newest, a few at a time."""

import asyncio
from collections.abc import Callable
from random import Random

from leases import writes
from leases.conditions import Refused, Unknown, Write
from leases.events import Observer, StoreFailed
from leases.holding import Holding, Phase
from leases.ports import Store

HANDS = 8
PAUSE_SECONDS = 1.0


class Scribe:
    """Fenced writes behind the emit path. A refused one proves the lease lost, an unknown one is repeated."""

    def __init__(
        self, store: Store, session: str, rng: Random, observer: Observer, lost: Callable[[Holding, str], None]
    ) -> None:
        self._store = store
        self._session = session
        self._rng = rng
        self._observer = observer
        self._lost = lost
        self._waiting: dict[str, Holding] = {}
        self._more = asyncio.Event()

    def note(self, holding: Holding) -> None:
        """Something of the holding waits to be stored."""
        self._waiting[holding.connection] = holding
        self._more.set()

    async def run(self) -> None:
        """Store what waits, for ever."""
        async with asyncio.TaskGroup() as hands:
            for _ in range(HANDS):
                hands.create_task(self._hand())

    async def _hand(self) -> None:
        while True:
            while not self._waiting:
                self._more.clear()
                await self._more.wait()
            holding = self._waiting.pop(next(iter(self._waiting)))
            while holding.phase is Phase.HELD and (write := self._next(holding)):
                if not holding.may_emit():
                    await holding.until_emit()
                elif not await self._store_one(holding, write):
                    await asyncio.sleep(PAUSE_SECONDS * self._rng.uniform(0.5, 1))

    def _next(self, holding: Holding) -> Write | None:
        if holding.status is not None or holding.strikes is not None:
            return writes.report(holding.connection, self._session, holding.epoch, holding.status, holding.strikes)
        if holding.cursor is not None:
            return writes.checkpoint(holding.connection, self._session, holding.epoch, holding.cursor)
        return None

    async def _store_one(self, holding: Holding, write: Write) -> bool:
        epoch, status, strikes, cursor = holding.epoch, holding.status, holding.strikes, holding.cursor
        try:
            result = await self._store.write(write)
        except Unknown as unknown:
            self._observer.saw(StoreFailed(write.name, str(unknown)))
            return False
        if isinstance(result, Refused):
            if holding.phase is Phase.HELD and holding.epoch == epoch:
                self._lost(holding, f"{write.name} refused")
        elif write.name == "checkpoint":
            holding.cursor = None if holding.cursor is cursor else holding.cursor
        else:
            holding.status = None if holding.status is status else holding.status
            holding.strikes = None if holding.strikes is strikes else holding.strikes
        return True
