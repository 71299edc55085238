"""Late answers count: the way of the heartbeat to a table that is slow."""

import asyncio

from leases.conditions import Refused, Write, Written
from leases.ports import Store


class LateAnswers:
    """A store of which a write that is repeated takes the answer to any of its attempts, the first that comes.

    Whoever repeats a write after a second must do so without waiting for the last answer, which may never come. But
    from a table that answers everybody three seconds late he would then never hear anything, though all that he asks
    for is done. It is sound since a write carries what makes its repetitions one (a sequence number, a nonce): an
    answer tells what was the case after the first attempt was sent, and nothing more is made of it.

    A caller gives up by cancelling; what he has sent goes on. It is for one caller with one write at a time. Reads are
    not shared: one that begins later has to see what was written in between.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._write: Write | None = None
        self._attempts: list[asyncio.Future[Written | Refused]] = []
        self.get, self.get_many = store.get, store.get_many
        self.owned_by, self.sessions = store.owned_by, store.sessions

    async def write(self, write: Write) -> Written | Refused:
        """Apply one conditional write. Raises `Unknown` if this attempt has failed."""
        if write != self._write:
            self._write, self._attempts = write, []
        latest = asyncio.ensure_future(self._store.write(write))
        latest.add_done_callback(_retrieved)
        self._attempts.append(latest)
        while True:
            for attempt in [attempt for attempt in self._attempts if attempt.done()]:
                self._attempts.remove(attempt)
                if attempt.exception() is None or attempt is latest:
                    return attempt.result()
            await asyncio.wait(self._attempts, return_when=asyncio.FIRST_COMPLETED)


def _retrieved(attempt: asyncio.Future[Written | Refused]) -> None:
    """Nobody may ask any more what became of it."""
    if not attempt.cancelled():
        attempt.exception()
