"""What becomes of a hand-off: it serves the next owner, and nobody after him."""

from typing import Any

import pytest

from leases import writes
from leases.conditions import Write
from leases.rows import ConnectionRow, Handoff, Item, Offer
from tests.simulation.table import apply, evaluate

HANDOFF = Handoff(digests=b"12345678", last_seq=7)
OFFER = Offer(session="b", nonce="n", for_epoch=3, generation=1)
OWNED: dict[str, Any] = {
    "pk": "CONNECTION#c",
    "sk": "LEASE",
    "owner": "a",
    "epoch": 3,
    "desired": "RUNNING",
    "generation": 1,
    "handoff": {"digests": b"of before", "last_seq": 1},
}


def after(item: Item, write: Write) -> dict[str, Any]:
    assert evaluate(write.condition, item)
    return apply(write, item)


def row(item: Item) -> ConnectionRow:
    return ConnectionRow.from_item(item)


def test_a_release_leaves_it_to_whoever_claims() -> None:
    freed = after(OWNED, writes.release("c", "a", 3, None, HANDOFF, 1000))
    assert row(freed).freed_at == 1000
    claimed = after(freed, writes.claim(row(freed), "b", "n", strike=False))
    assert row(claimed).handoff == HANDOFF
    assert row(claimed).freed_at is None


def test_a_release_without_one_leaves_none() -> None:
    freed = after(OWNED, writes.release("c", "a", 3, None, None, 1000))
    assert row(freed).handoff is None


def test_after_a_death_it_is_out_of_date() -> None:
    assert row(after(OWNED, writes.claim(row(OWNED), "b", "n", strike=True))).handoff is None


@pytest.mark.parametrize(
    "write",
    [
        writes.force_release(row(OWNED)),
        writes.fail(row(OWNED), {}, None),
        writes.finalize(row(OWNED), {}, None, 1),
        writes.regrant("c", "a", 3, "n"),
    ],
    ids=lambda write: write.name,
)
def test_every_other_end_of_an_epoch_removes_it(write: Write) -> None:
    assert row(after(OWNED, write)).handoff is None


def test_a_transfer_replaces_it() -> None:
    offered: Item = OWNED | {"next": OFFER.to_item() | {"ready": True}}
    assert row(after(offered, writes.transfer("c", "a", OFFER, None, HANDOFF))).handoff == HANDOFF
