"""Listing the fleet's sessions."""

from collections.abc import Iterator

from leases.dynamodb import Table
from leases.rows import SESSION_SHARDS, SessionRow, readable


def sessions(table: Table) -> Iterator[SessionRow]:
    """Every session row that can be read, the dead of the last day included. Raises `Unknown`."""
    for shard in range(SESSION_SHARDS):
        page = table.sessions(shard)
        yield from readable(SessionRow.from_item, page.items)[0]
        while page.next is not None:
            page = table.sessions(shard, page.next)
            yield from readable(SessionRow.from_item, page.items)[0]


def owned(table: Table, owner: str) -> Iterator[str]:
    """Every connection that the index lists under an owner. Raises `Unknown`."""
    page = table.owned_by(owner)
    yield from page.items
    while page.next is not None:
        page = table.owned_by(owner, page.next)
        yield from page.items
