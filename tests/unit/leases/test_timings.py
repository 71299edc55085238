"""Illegal timings cannot be constructed, and say which rule is broken with which values."""

import pytest

from leases.timings import IllegalTimings, Timings


def test_the_defaults_are_legal() -> None:
    assert Timings().takeover_ms == 7000


def test_what_equals_the_bound_is_legal() -> None:
    assert Timings(takeover=6.6).takeover == 6.6


@pytest.mark.parametrize(
    ("given", "rule", "values"),
    [
        ({"takeover": 6.5}, "takeover >= rate_ratio * (self_fence + drain)", ("6.5", "6.600")),
        ({"takeover": 5.0}, "takeover >= rate_ratio * (self_fence + drain)", ("5.0", "6.600")),
        ({"self_fence": 7.0}, "takeover >= rate_ratio * (self_fence + drain)", ("7.0", "8.800")),
        ({"rate_ratio": 1.2}, "takeover >= rate_ratio * (self_fence + drain)", ("1.2", "7.200")),
        ({"heartbeat": 5.0}, "heartbeat <= (self_fence - call_timeout) / 3", ("5.0", "1.267")),
        ({"heartbeat": 10.0}, "heartbeat <= (self_fence - call_timeout) / 3", ("10.0", "1.267")),
        ({"call_timeout": 3.0}, "heartbeat <= (self_fence - call_timeout) / 3", ("3.0", "0.667")),
        ({"judge_poll": 4.0}, "2 * judge_poll <= takeover", ("4.0",)),
        ({"rate_ratio": 0.9}, "rate_ratio must be at least 1", ("0.9",)),
        ({"takeover": 0.0}, "takeover must be above 0", ("0.0",)),
        ({"self_fence": -1.0}, "self_fence must be above 0", ("-1.0",)),
        ({"heartbeat": float("nan")}, "heartbeat must be above 0", ("nan",)),
    ],
)
def test_an_illegal_combination_names_the_rule_and_the_values(
    given: dict[str, float], rule: str, values: tuple[str, ...]
) -> None:
    with pytest.raises(IllegalTimings) as refusal:
        Timings(**given)
    message = str(refusal.value)
    assert rule in message
    assert all(value in message for value in values), message
