"""The judge of the output stream: it must see what a broken fleet would do."""

import json
from typing import Any

from local.checker import Checker


def message(number: int, epoch: int, seq: int) -> dict[str, Any]:
    data = json.dumps({"n": number})
    return {
        "connectionId": "c",
        "epoch": epoch,
        "seq": seq,
        "type": "message",
        "workerId": f"session-{epoch}",
        "data": data,
    }


def opened(epoch: int, seq: int) -> dict[str, Any]:
    return {"connectionId": "c", "epoch": epoch, "seq": seq, "type": "opened", "workerId": f"session-{epoch}"}


def check(*records: dict[str, Any]) -> Checker:
    checker = Checker()
    for record in records:
        checker.add(record)
    return checker


def test_a_clean_stream_over_two_epochs_breaks_nothing() -> None:
    verdict = check(opened(1, 1), message(1, 1, 2), message(2, 1, 3), opened(2, 1), message(3, 2, 2)).verdict

    assert (verdict.records, verdict.repeated, verdict.dual_owners, verdict.doubled) == (5, 0, 0, 0)
    assert verdict.broken == ()
    assert verdict.highest == {"c": 3}
    assert verdict.missing == {"c": frozenset()}


def test_a_record_of_an_old_epoch_is_a_second_owner() -> None:
    verdict = check(message(1, 1, 1), message(2, 2, 1), message(3, 1, 2)).verdict

    assert verdict.dual_owners == 1
    assert verdict.broken == ("c: a record of epoch 1 came after one of epoch 2",)


def test_two_workers_in_one_epoch_are_two_owners() -> None:
    verdict = check(message(1, 1, 1), message(1, 1, 1) | {"workerId": "other"}).verdict

    assert verdict.dual_owners == 1
    assert verdict.broken == ("c: records of epoch 1 came from session-1 and from other",)


def test_messages_that_change_places_break_the_order() -> None:
    verdict = check(message(1, 1, 1), message(3, 1, 2), message(2, 2, 1)).verdict

    assert (verdict.doubled, verdict.missing) == (0, {"c": frozenset()})
    assert verdict.broken == ("c: message 2 came after message 3",)


def test_a_message_under_two_epochs_is_doubled() -> None:
    verdict = check(message(1, 1, 1), message(1, 2, 1)).verdict

    assert verdict.doubled == 1
    assert "message 1 came as record 1 of epoch 1 and as record 1 of epoch 2" in verdict.broken[0]


def test_an_entry_that_is_delivered_again_is_allowed_and_counted() -> None:
    verdict = check(message(1, 1, 1), message(2, 1, 2), message(1, 1, 1), message(2, 1, 2), message(3, 1, 3)).verdict

    assert (verdict.repeated, verdict.doubled) == (2, 0)
    assert verdict.broken == ()


def test_a_message_that_is_renumbered_is_doubled() -> None:
    assert check(message(1, 1, 1), message(1, 1, 2)).verdict.doubled == 1


def test_numbers_that_did_not_come_are_missing_until_they_come() -> None:
    checker = check(message(4, 1, 1), message(7, 2, 1))

    assert checker.verdict.missing == {"c": frozenset({5, 6})}
    assert checker.verdict.broken == ()


def test_a_hole_in_the_sequence_of_an_epoch_is_broken() -> None:
    assert check(message(1, 1, 1), message(2, 1, 3)).verdict.broken == ("c: records 2 to 2 of epoch 1 are missing",)
