"""Writing until the outcome is known."""

import asyncio
from random import Random

from leases.conditions import Refused, Unknown, Write, Written
from leases.events import Observer, StoreFailed
from leases.ports import Store

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class Persistent:
    """Repeats a write whose outcome is unknown, with full jitter between growing bounds.

    The same write every time: what makes a repetition recognizable (a nonce, a sequence number) is in it already.
    """

    def __init__(self, store: Store, rng: Random, observer: Observer) -> None:
        self._store = store
        self._rng = rng
        self._observer = observer

    async def write(self, write: Write, *, attempts: int | None = None) -> Written | Refused:
        """The outcome of the write. Raises `Unknown` after so many attempts; without a number of them, never."""
        pause = FIRST_PAUSE
        done = 0
        while True:
            try:
                return await self._store.write(write)
            except Unknown as unknown:
                self._observer.saw(StoreFailed(write.name, str(unknown)))
                done += 1
                if attempts is not None and done >= attempts:
                    raise
            await asyncio.sleep(self._rng.uniform(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE)
