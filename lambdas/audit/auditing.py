"""One audit: what the fleet holds, what waits for an owner and for how long, and what was put right.

The index lists every connection that has an owner value, so one scan of it counts them all, whoever the owner is. It is
a hint: what it makes look orphaned is read again, consistently, before it counts or is acted upon.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from connections.rows import ALWAYS
from connections.status import State
from lambdas.clients import HintQueue
from lambdas.sessions import sessions
from leases.conditions import AllOf, Equals, Write, Written
from leases.dynamodb import Table
from leases.rows import (
    OWNER_SHARDS,
    ConnectionRow,
    Desired,
    Key,
    SessionRow,
    SessionState,
    connection_key,
    free_owner,
    is_free,
    is_parked,
    is_session,
    parked_shard,
    readable,
    session_key,
)

MEMORY = Key("AUDIT", "UNOWNED")
"""The row in which an audit leaves to the next since when each connection has been seen without a live owner."""

MEMORY_LIMIT = 2000
"""Connections remembered, the longest waiting first: about 80 KB."""

HINT_LIMIT = 1000
"""Hints sent in one audit; workers sweep by themselves too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The fleet at one moment."""

    held: int
    pending: int
    unowned: int
    parked: int
    oldest_wait: float
    """Seconds."""
    repaired: int
    live: int
    draining: int
    capacity: int

    @property
    def wanted(self) -> int:
        """Connections that should be running."""
        return self.held + self.pending + self.unowned


def audit(table: Table, queue: HintQueue, now: float) -> Report:
    """Look at everything once, and act on what fell through. Raises `Unknown`."""
    listed = list(_owners(table))
    # Sessions are listed after the index, so that whoever claimed in between is known.
    known = {row.session: row for row in sessions(table)}
    alive = {session for session, row in known.items() if row.alive}
    alive |= _opened_meanwhile(table, {owner for owner, _ in listed if is_session(owner)} - known.keys())
    suspects = [connection for owner, connection in listed if not is_parked(owner) and owner not in alive]
    confirmed = [row for row in _rows(table, suspects) if not is_parked(row.owner) and row.owner not in alive]
    waiting = [row for row in confirmed if row.owner is not None and row.desired is Desired.RUNNING]
    orphans = [row.connection for row in confirmed if is_session(row.owner)]
    before = (table.get(MEMORY) or {}).get("seen", {})
    seen = {row.connection: before.get(row.connection, int(now)) for row in waiting}
    _remember(table, before, seen)
    queue.send(orphans[:HINT_LIMIT])
    repaired = _unpark(table, queue, [connection for owner, connection in listed if owner == _parked_turn(now)])
    owners = Counter(map(_kind, (owner for owner, _ in listed)))
    free = sum(is_free(row.owner) for row in waiting)
    states = Counter(row.state for row in known.values())
    return Report(
        held=owners["session"] - len(orphans),
        pending=free,
        unowned=len(orphans),
        parked=owners["parked"],
        oldest_wait=max((now - since for since in seen.values()), default=0.0),
        repaired=repaired + sum(connection in before for connection in orphans),
        live=states[SessionState.LIVE],
        draining=states[SessionState.DRAINING],
        capacity=sum(row.capacity for row in known.values() if row.state is SessionState.LIVE),
    )


def _owners(table: Table) -> Iterator[tuple[str, str]]:
    page = table.owners()
    yield from page.items
    while page.next is not None:
        page = table.owners(page.next)
        yield from page.items


def _opened_meanwhile(table: Table, unknown: set[str]) -> set[str]:
    """Those that live after all. One whose row cannot be read is not said to be dead, so what it owns is left to it."""
    rows, unreadable = readable(SessionRow.from_item, table.get_many(map(session_key, unknown)).values())
    return {row.session for row in rows if row.alive} | {key.sk for key in unreadable}


def _rows(table: Table, connections: list[str]) -> list[ConnectionRow]:
    items = table.get_many(map(connection_key, connections))
    return readable(ConnectionRow.from_item, items.values())[0]


def _remember(table: Table, before: Mapping[str, int], seen: Mapping[str, int]) -> None:
    oldest = dict(sorted(seen.items(), key=lambda entry: entry[1])[:MEMORY_LIMIT])
    if oldest != before:
        table.write(Write(name="audit", key=MEMORY, condition=ALWAYS, set={"seen": oldest}))


def _parked_turn(now: float) -> str:
    """One shard of the parked rows each minute: they are many, and hardly ever wrong."""
    return parked_shard(int(now // 60) % OWNER_SHARDS)


def _unpark(table: Table, queue: HintQueue, parked: list[str]) -> int:
    """Free parked rows that are wanted and have not failed: a change of heart that nobody acted upon."""
    freed = [
        row.connection
        for row in _rows(table, parked)
        if is_parked(row.owner)
        and row.desired is Desired.RUNNING
        and (row.status or {}).get("state") != State.FAILED
        and isinstance(table.write(_free(row)), Written)
    ]
    queue.send(freed)
    return len(freed)


def _free(row: ConnectionRow) -> Write:
    return Write(
        name="unpark",
        key=connection_key(row.connection),
        condition=AllOf((Equals("owner", row.owner), Equals("epoch", row.epoch), Equals("generation", row.generation))),
        set={"owner": free_owner(row.connection)},
    )


def _kind(owner: str) -> str:
    return "free" if is_free(owner) else "parked" if is_parked(owner) else "session"
