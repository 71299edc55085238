"""Asking other sessions to look at rows: a hint in the inbox of each. Those that come close together share a write."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from leases import events, writes
from leases.conditions import Unknown, Written
from leases.ports import Store
from leases.rows import SessionRow, SessionState

GATHER_SECONDS = 0.02
MOST_AT_ONCE = 25
"""Ids in one write: with a full inbox, its row stays below 6 KB."""


class Told(Enum):
    """What came of a hint."""

    YES = auto()
    """It is in the inbox, unless whoever fills that to the brim replaces it by `EVERYTHING`."""
    LATER = auto()
    """The inbox is full, or there was no answer: try again."""
    GONE = auto()
    """The session drains or has ended: it takes nothing any more."""


@dataclass(slots=True)
class _Parcel:
    connections: set[str] = field(default_factory=set)
    outcome: asyncio.Future[Told] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Inboxes:
    """Puts hints into the inboxes of other sessions."""

    def __init__(
        self, store: Store, observer: events.Observer, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._store = store
        self._observer = observer
        self._spawn = spawn
        self._open: dict[str, _Parcel] = {}
        """By session, what goes with the next write."""

    async def tell(self, session: str, connection: str) -> Told:
        """Ask a session to look at the row of a connection."""
        parcel = self._open.get(session)
        if parcel is None:
            parcel = self._open[session] = _Parcel()
            self._spawn(self._send(session, parcel))
        parcel.connections.add(connection)
        if len(parcel.connections) >= MOST_AT_ONCE:
            del self._open[session]
        return await asyncio.shield(parcel.outcome)

    async def _send(self, session: str, parcel: _Parcel) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        if self._open.get(session) is parcel:
            del self._open[session]
        parcel.outcome.set_result(await self._write(session, frozenset(parcel.connections)))

    async def _write(self, session: str, connections: frozenset[str]) -> Told:
        try:
            result = await self._store.write(writes.inbox_hint(session, *connections))
        except Unknown as unknown:
            self._observer.saw(events.StoreFailed("inbox_hint", str(unknown)))
            return Told.LATER
        if result.image is None or SessionRow.from_item(result.image).state is not SessionState.LIVE:
            return Told.GONE
        return Told.YES if isinstance(result, Written) else Told.LATER
