"""The division of work: everybody who sees the same listing agrees, and no task judges itself."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from leases import fleet as module
from leases.fleet import SWEEPERS, Fleet, rendezvous
from leases.placement import Targets, share
from leases.rows import SessionRow, SessionState


def session(
    name: str, task: str | None = None, held: int = 0, capacity: int = 10, revision: int = 1,
    state: SessionState = SessionState.LIVE,
) -> SessionRow:  # fmt: skip
    return SessionRow(
        session=name, state=state, seq=1, takeover_ms=7000, capacity=capacity, held=held, rate=0, revision=revision,
        task_arn=task or f"task-{name}", inbox=frozenset(), opened_at=0,
    )  # fmt: skip


def sweepers(fleet: Fleet, key: str) -> list[str]:
    """Who sweeps the rows under an owner value, in the order in which they step in."""
    turns = {row.session: fleet.turn(row.session, key) for row in fleet.sessions}
    return sorted((name for name, turn in turns.items() if turn is not None), key=lambda name: turns[name] or 0)


def test_a_session_has_three_judges_of_three_other_tasks_and_two_in_reserve() -> None:
    fleet = Fleet([session(f"{task}{process}", task) for task in "abcdef" for process in range(3)])
    for subject in fleet.alive:
        judges, reserve = fleet.judges(subject.session)
        tasks = [fleet.by_id[judge].task_arn for judge in (*judges, *reserve)]
        assert (len(judges), len(reserve)) == (3, 2)
        assert len(set(tasks)) == 5
        assert subject.task_arn not in tasks


def test_with_few_tasks_a_task_gives_two_judges_and_the_own_task_comes_last() -> None:
    fleet = Fleet([session("a1", "a"), session("a2", "a"), session("b1", "b"), session("b2", "b")])
    judges, reserve = fleet.judges("a1")
    assert set(judges[:2]) == {"b1", "b2"}
    assert judges[2:] == ["a2"]
    assert reserve == []


def test_the_dead_neither_judge_nor_sweep() -> None:
    fleet = Fleet([session("a"), session("b"), session("c", state=SessionState.DEAD)])
    assert fleet.judges("a")[0] == ["b"]
    assert set(sweepers(fleet, "c")) == {"a", "b"}


def test_one_that_leaves_changes_only_what_it_was_first_for() -> None:
    names = [f"s{number}" for number in range(10)]
    before = Fleet([session(name) for name in names])
    after = Fleet([session(name) for name in names[1:]])
    for key in map(str, range(200)):
        if sweepers(before, key)[0] != "s0":
            assert sweepers(after, key)[0] == sweepers(before, key)[0]


def test_sweeping_is_spread_evenly() -> None:
    fleet = Fleet([session(f"s{number}") for number in range(4)])
    firsts = Counter(sweepers(fleet, str(key))[0] for key in range(4000))
    assert all(850 < count < 1150 for count in firsts.values()), firsts


@pytest.mark.parametrize("tasks", [1, 2, 4, 6, 7, 20])
@pytest.mark.parametrize("processes", [1, 3])
def test_everybody_knows_his_own_part_of_what_all_are_to_do(tasks: int, processes: int) -> None:
    """A part is found without ranking everybody for everything, and is what the whole ranking says."""
    rows = [
        session(f"{task}.{process}", f"task-{task}", state=SessionState.LIVE if task else SessionState.DEAD)
        for task in range(tasks + 1)
        for process in range(processes)
    ]
    Random(tasks).shuffle(rows)
    fleet = Fleet(rows)
    for row in fleet.sessions:
        judged, watched = fleet.duties(row.session)
        others = [other.session for other in fleet.alive if other.session != row.session and row.alive]
        assert judged == {other for other in others if row.session in fleet.judges(other)[0]}
        assert watched == [other for other in others if any(row.session in part for part in fleet.judges(other))]
    for key in map(str, range(50)):
        assert sweepers(fleet, key) == rendezvous(key, [row.session for row in fleet.alive])[:SWEEPERS]


@pytest.mark.parametrize("left", [1, 3, 8])
def test_those_that_stand_still_judge_nobody_and_are_judged_by_those_that_are_left(left: int) -> None:
    fleet = Fleet([session(f"{task}.{process}", f"task-{task}") for task in range(10) for process in range(2)])
    able = [row.session for row in fleet.sessions[2 : 2 + left]]
    still = {row.session for row in fleet.sessions} - set(able)
    for name in still:
        assert fleet.duties(name, still) == (frozenset(), [])
        judges = {judge for judge in able if name in fleet.duties(judge, still)[0]}
        assert judges == set(Fleet([row for row in fleet.sessions if row.session in {*able, name}]).judges(name)[0])
        assert len(judges) == min(left, 3)


def test_knowing_the_own_part_of_a_large_fleet_takes_few_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = 0
    weights = module.weights

    def counting(key: str) -> Callable[[str], bytes]:
        weight = weights(key)

        def counted(candidate: str) -> bytes:
            nonlocal hashes
            hashes += 1
            return weight(candidate)

        return counted

    monkeypatch.setattr(module, "weights", counting)
    sessions = 500
    fleet = Fleet([session(f"s{number}") for number in range(sessions)])
    fleet.duties("s7")
    assert hashes < 60 * sessions
    hashes = 0
    for key in range(sessions):
        fleet.turn("s7", str(key))
    assert hashes < 20 * sessions


def test_an_older_revision_gets_nothing_while_a_newer_one_has_room() -> None:
    old, new = session("old", revision=1), session("new", revision=2, held=5)
    assert Fleet([old, new]).takers == [new]
    full = session("new", revision=2, held=10)
    assert Fleet([old, full]).takers == [old, full]


def test_the_draining_get_nothing() -> None:
    fleet = Fleet([session("a"), session("b", state=SessionState.DRAINING)])
    assert [row.session for row in fleet.takers] == ["a"]
    assert fleet.room == 10


def test_a_share_of_the_orphans_ends_at_the_mean() -> None:
    fleet = Fleet([session("a", held=4), session("b", held=2), session("dead", held=6, state=SessionState.DEAD)])
    assert share(fleet, "a", held=4, orphans=6) == 2
    assert share(fleet, "b", held=2, orphans=6) == 4


def test_a_share_is_by_capacity_and_never_above_the_room() -> None:
    fleet = Fleet([session("large", capacity=30), session("small", capacity=10)])
    assert share(fleet, "large", held=0, orphans=20) == 15
    assert share(fleet, "small", held=0, orphans=20) == 5
    assert share(fleet, "small", held=9, orphans=200) == 1
    assert share(fleet, "unknown", held=0, orphans=20) == 0


def test_targets_fill_evenly_and_stop_when_all_are_full() -> None:
    fleet = Fleet([session("me", held=10), session("a", held=1, capacity=4), session("b", held=3, capacity=4)])
    targets = Targets("me")
    assert [targets.choose(fleet) for _ in range(5)] == ["a", "a", "a", "b", None]


def test_a_target_that_declined_is_not_asked_again() -> None:
    fleet = Fleet([session("a"), session("b", held=5)])
    assert Targets("me").choose(fleet, declined={"a"}) == "b"


def test_promises_are_forgotten_with_a_fresh_listing() -> None:
    targets = Targets("me")
    full = Fleet([session("a", held=9)])
    assert targets.choose(full) == "a"
    assert targets.choose(full) is None
    assert targets.choose(Fleet([session("a", held=9)])) == "a"
