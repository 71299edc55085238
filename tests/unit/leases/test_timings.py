"""Illegal timings cannot be constructed, and say which rule is broken with which values."""

import pytest

from leases.timings import IllegalTimings, Timings


def test_the_defaults_are_legal() -> None:
    assert Timings().takeover_ms == 7000


def test_what_equals_the_bound_is_legal() -> None:
    assert Timings(takeover=6.6).takeover == 6.6
    assert Timings(heartbeat=0.3, self_fence=3.5).self_fence == 3.5


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
        (
            {"heartbeat": 0.3, "self_fence": 2.2},
            "self_fence >= max(heartbeat, 0.25) + 2 * (call_timeout + 0.2 + 0.2)",
            ("2.2", "0.3", "1.2", "3.500"),
        ),
        (
            {"heartbeat": 0.05, "self_fence": 3.4},
            "self_fence >= max(heartbeat, 0.25) + 2 * (call_timeout + 0.2 + 0.2)",
            ("3.4", "0.05", "3.450"),
        ),
        ({"judge_poll": 0.1}, "judge_poll >= 0.2", ("0.1",)),
        (
            {"heartbeat": 1.2, "judge_poll": 3.5},
            "takeover >= 3 * heartbeat + judge_poll",
            ("7.0", "1.2", "3.5", "7.100"),
        ),
        ({"judge_poll": 4.0}, "2 * judge_poll <= takeover", ("4.0",)),
        ({"rate_ratio": 0.9}, "rate_ratio must be at least 1", ("0.9",)),
        ({"takeover": 5.0, "heartbeat": 5.0}, "takeover >= rate_ratio * (self_fence + drain)", ("5.0", "6.600")),
        ({"takeover": 5.0, "heartbeat": 10.0}, "takeover >= rate_ratio * (self_fence + drain)", ("5.0", "6.600")),
        ({"takeover": 0.0}, "takeover must be from 0.01 to 3600 seconds", ("0.0",)),
        ({"takeover": -1.0}, "takeover must be from 0.01 to 3600 seconds", ("-1.0",)),
        ({"self_fence": -1.0}, "self_fence must be from 0.01 to 3600 seconds", ("-1.0",)),
        ({"heartbeat": float("nan")}, "heartbeat must be from 0.01 to 3600 seconds", ("nan",)),
        ({"takeover": float("inf")}, "takeover must be from 0.01 to 3600 seconds", ("inf",)),
        ({"takeover": 1e300}, "takeover must be from 0.01 to 3600 seconds", ("1e+300",)),
        ({"give_up": 7_200_000.0}, "give_up must be from 0.01 to 3600 seconds", ("7200000.0",)),
        ({"judge_poll": 1e-9}, "judge_poll must be from 0.01 to 3600 seconds", ("1e-09",)),
        ({"rate_ratio": float("nan")}, "rate_ratio must be at least 1", ("nan",)),
        ({"rate_ratio": float("inf")}, "takeover >= rate_ratio * (self_fence + drain)", ("inf",)),
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
