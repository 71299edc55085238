"""Evening out: to the mean, once, and not for every little change."""

from collections import Counter

from leases.balance import plan
from leases.fleet import Fleet
from tests.unit.leases.test_fleet import session

ALL = frozenset("abcdefgh")


def fleet(**held: int) -> Fleet:
    return Fleet([session(name, held=count, capacity=400) for name, count in held.items()])


def carried_out(counts: dict[str, int], rounds: int, most: int) -> tuple[dict[str, int], int]:
    """Everybody carries out its part of the plan, from the same listing, round by round."""
    moves = 0
    for _ in range(rounds):
        seen = fleet(**counts)
        plans = {name: plan(seen, name, counts[name], ALL, most) for name in counts}
        for name, targets in plans.items():
            for target in targets:
                counts[name] -= 1
                counts[target] += 1
                moves += 1
    return counts, moves


def test_two_full_and_two_new_sessions_end_at_the_mean_with_the_fewest_moves() -> None:
    counts, moves = carried_out({"a": 200, "b": 200, "c": 0, "d": 0}, rounds=8, most=25)
    assert counts == {"a": 100, "b": 100, "c": 100, "d": 100}
    assert moves == 200


def test_an_uneven_fleet_ends_within_the_tolerance_and_then_rests() -> None:
    counts, moves = carried_out({"a": 317, "b": 41, "c": 130, "d": 0, "e": 12}, rounds=40, most=10)
    assert max(counts.values()) <= 100 * 1.1 + 1
    assert carried_out(dict(counts), rounds=5, most=10)[1] == 0
    assert moves <= 317 - 100 + 130 - 100


def test_a_small_difference_moves_nothing() -> None:
    assert plan(fleet(a=110, b=90), "a", 110, ALL, 25) == []
    assert plan(fleet(a=2, b=0), "a", 2, ALL, 25) == []


def test_who_is_below_the_mean_gives_nothing() -> None:
    assert plan(fleet(a=0, b=100), "a", 0, ALL, 25) == []


def test_one_that_has_just_come_gets_nothing() -> None:
    seen = fleet(a=100, b=0)
    assert plan(seen, "a", 100, frozenset("a"), 25) == []
    assert Counter(plan(seen, "a", 100, frozenset("ab"), 25)) == {"b": 25}


def test_a_session_without_a_place_in_the_fleet_gives_nothing() -> None:
    assert plan(fleet(a=0, b=0), "z", 50, ALL, 25) == []
