"""What follows the end of a worker process: its sessions are declared dead, and what they held is offered at once."""

import asyncio
from collections.abc import Callable
from random import Random

from leases.conditions import Unknown, Written
from leases.events import Observer
from leases.persist import FIRST_PAUSE, LONGEST_PAUSE, Persistent
from leases.ports import Hints, Store
from leases.rows import DeadBy
from leases.writes import declare_dead
from telemetry.logs import Event, Field
from worker.logs import logger

log = logger()


class Exits:
    """Turns the certain end of a process into the quickest possible move of its connections."""

    def __init__(
        self, store: Store, hints: Hints, *, rng: Random, observer: Observer, wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._hints = hints
        self._rng = rng
        self._persistent = Persistent(store, rng, observer)
        self._wall = wall

    async def declare(self, session: str) -> bool:
        """Declare a session dead, whose process is known to have ended, however long the store takes to answer.

        Then hint at what it owned. Returns whether this ended it: it may have ended itself, or not begun.
        """
        write = declare_dead(session, DeadBy.EXIT, None, int(self._wall()))
        if not isinstance(await self._persistent.write(write), Written):
            return False
        log.warning(
            "A worker process ended; its session is declared dead.",
            extra={Field.EVENT: Event.DECLARED_DEAD, Field.SESSION: session},
        )
        await self._offer(session)
        return True

    async def _offer(self, session: str) -> None:
        """Send hints for all that the index lists under the session. The sweepers find whatever this misses."""
        start: str | None = None
        pause = FIRST_PAUSE
        while True:
            try:
                page = await self._store.owned_by(session, start)
                if page.items:
                    await self._hints.send(page.items)
            except Unknown as unknown:
                log.warning(
                    "Connections of a dead session could not be listed or hinted at; trying again.",
                    extra={Field.SESSION: session, Field.REASON: str(unknown)},
                )
                await asyncio.sleep(self._rng.uniform(0, pause))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if page.next is None:
                return
            start = page.next
