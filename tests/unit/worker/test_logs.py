"""What is worth a line in the log."""

from worker.logs import Recurring, fault


def test_what_recurs_is_told_once_and_then_now_and_then_with_its_number() -> None:
    recurring = Recurring(300)
    assert [recurring.due("tcp", at) for at in (0, 10, 299)] == [1, 0, 0]
    assert recurring.due("tcp", 300) == 3
    assert recurring.due("tcp", 301) == 0


def test_another_reason_is_told_at_once_and_does_not_make_the_first_one_new() -> None:
    recurring = Recurring(300)
    assert [recurring.due(reason, 0) for reason in ("http_502", "http_503", "http_502", "http_503")] == [1, 1, 0, 0]


def test_a_fault_is_told_by_type_and_place_without_its_text() -> None:
    try:
        raise ValueError("SENTINEL")
    except ValueError as error:
        told = fault(error)
    assert told["reason"] == "ValueError"
    assert "test_logs.test_a_fault_is_told" in told["stack"]
    assert "SENTINEL" not in repr(told)
