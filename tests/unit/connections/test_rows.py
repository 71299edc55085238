"""What is stored: sizes, generations, ids, and the observed state."""

import json
from dataclasses import replace

from connections.identity import derived_id, is_connection_id, random_id
from connections.rows import create, created, current_spec, read_spec, revise, stop
from connections.spec import MAX_FRAME_BYTES, MAX_LABELS, MAX_STORED_BYTES, ConnectionSpec, Step
from connections.status import MAX_REASON_LENGTH, Close, State, Status, timestamp
from leases.conditions import Absent
from leases.dynamodb import to_dynamodb
from leases.rows import ConnectionRow, Desired, connection_key, free_owner, parked_owner, spec_key

SPEC = ConnectionSpec(url="wss://feed.example.com/", labels={"team": "a"})
NOW = 1_800_000_000.5


def size(item: object) -> int:
    """An upper bound of what DynamoDB counts: names and values, and no more than a byte of overhead for each."""
    return len(json.dumps(item, default=lambda value: value.decode("latin-1"), ensure_ascii=False).encode())


def row_of(desired: Desired = Desired.RUNNING) -> ConnectionRow:
    lease, _ = create("a" * 26, SPEC, desired, b"digest", NOW)
    return created(lease)


def test_a_new_connection_waits_for_an_owner_and_its_epoch_starts_at_its_creation() -> None:
    lease, spec = create("a" * 26, SPEC, Desired.RUNNING, b"digest", NOW)
    row = row_of()
    assert (lease.key, lease.condition) == (connection_key("a" * 26), Absent("pk"))
    assert (row.owner, row.epoch, row.generation) == (free_owner("a" * 26), 1_800_000_000, 1)
    assert (row.status or {})["state"] == "PENDING"
    assert spec.key == spec_key("a" * 26, 1)
    assert read_spec(spec.set) == SPEC
    assert spec.set["labels"] == {"team": "a"}


def test_a_new_connection_that_is_paused_is_out_of_the_way() -> None:
    row = row_of(Desired.PAUSED)
    assert (row.owner, row.desired) == (parked_owner("a" * 26), Desired.PAUSED)
    assert (row.status or {})["state"] == "PAUSED"


def test_a_change_writes_the_next_generation_and_lets_the_last_one_expire() -> None:
    lease, spec, superseded = revise(row_of(), SPEC, Desired.PAUSED, NOW)
    assert lease.set["generation"] == 2
    assert (spec.key, spec.remove) == (spec_key("a" * 26, 2), ("ttl",))
    assert (superseded.key, dict(superseded.set)) == (spec_key("a" * 26, 1), {"ttl": 1_800_086_400})


def test_a_change_of_one_that_waits_for_an_owner_keeps_what_the_last_one_told() -> None:
    lease, *_ = revise(row_of(), SPEC, Desired.RUNNING, NOW)
    assert "status" not in lease.set
    lease, *_ = revise(row_of(Desired.PAUSED), SPEC, Desired.RUNNING, NOW)
    assert lease.set["status"]["state"] == "PENDING"


def test_the_request_of_a_stopped_connection_expires_with_it() -> None:
    row = row_of()
    lease, spec = stop(row, NOW)
    assert lease.set["ttl"] == spec.set["ttl"] == 1_800_086_400
    assert lease.remove == ("owner", "strikes")
    assert spec.key == current_spec(row)
    assert current_spec(replace(row, desired=Desired.STOPPED, generation=2)) == current_spec(row)


def test_rows_stay_small() -> None:
    lease, _ = create("a" * 26, SPEC, Desired.RUNNING, b"d" * 16, NOW)
    assert size(to_dynamodb(lease.set)) < 600
    frame = "ü" * ((MAX_FRAME_BYTES - 2000) // 2)
    labels = {f"{number:02}" + "a" * 61: "€" * 128 for number in range(MAX_LABELS)}
    big = ConnectionSpec(url="wss://feed.example.com/", labels=labels, on_open=(Step(text=frame),))
    rest = "x" * (MAX_STORED_BYTES - len(big.to_json().encode()) - len(',{"text":""}'))
    big = ConnectionSpec(url="wss://feed.example.com/", labels=labels, on_open=(Step(text=frame), Step(text=rest)))
    assert len(big.to_json().encode()) == MAX_STORED_BYTES
    _, spec = create("a" * 26, big, Desired.RUNNING, b"d" * 16, NOW)
    assert size(to_dynamodb(spec.set)) < 64 * 1024


def test_the_status_survives_the_row_and_stays_short() -> None:
    status = Status(
        state=State.BACKING_OFF,
        since=timestamp(NOW),
        attempts=3,
        next_retry_at=timestamp(NOW + 60),
        last_message_at=timestamp(NOW - 60),
        last_close=Close(code=1008, reason="r" * 123, at=timestamp(NOW)),
        reason="x" * 1000,
    )
    item = status.to_item()
    assert item["since"] == "2027-01-15T08:00:00.500Z"
    assert len(item["reason"]) == len(item["lastClose"]["reason"]) == MAX_REASON_LENGTH
    assert Status.from_item(item).to_item() == item
    assert size(to_dynamodb(item)) < 800
    assert Status(state=State.OPEN, since="x").to_item() == {"state": "OPEN", "since": "x", "attempts": 0}


def test_ids_follow_from_caller_and_key_and_from_nothing_else() -> None:
    assert derived_id("arn:role/a", "key") == derived_id("arn:role/a", "key")
    assert len({derived_id("a", "bc"), derived_id("ab", "c"), derived_id("abc", ""), derived_id("a", "b")}) == 4
    assert is_connection_id(derived_id("a", "b"))
    assert is_connection_id(random_id())
    assert random_id() != random_id()
    for odd in ("", "a" * 25, "a" * 27, "A" * 26, "a" * 25 + "1", "a" * 26 + "\n", "../" * 9):
        assert not is_connection_id(odd)
