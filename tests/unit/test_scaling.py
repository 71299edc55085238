"""The model behind `bench/results/scaling.md`."""

from dataclasses import replace

from bench.scaling import LOW_MINUTES, Policy, live

CAPACITY = 100
POLICY = Policy(minimum=2, maximum=10, target=50, out_cooldown=1, in_cooldown=60)


def test_what_fits_changes_nothing() -> None:
    day = live(POLICY, CAPACITY, "calm", [100] * 120)

    assert (day.changes, day.moves, day.pending_minutes, day.task_hours) == (0, 0, 0, 4.0)


def test_a_full_fleet_grows_until_everything_fits() -> None:
    day = live(POLICY, CAPACITY, "step", [100] * 10 + [450] * 120)

    assert day.most_pending == 250
    assert 0 < day.pending_minutes < 15


def test_the_maximum_is_a_limit() -> None:
    assert live(POLICY, CAPACITY, "step", [100] * 10 + [2000] * 60).pending_minutes == 60


def test_patience_with_scaling_in_saves_moves() -> None:
    saw = [200 + 200 * (minute // (2 * LOW_MINUTES) % 2) for minute in range(600)]
    hasty = live(replace(POLICY, in_cooldown=1), CAPACITY, "saw", saw)

    assert live(POLICY, CAPACITY, "saw", saw).moves < hasty.moves / 2
