"""To whom connections are handed over."""

from leases.fleet import Fleet
from leases.placement import Targets, outdated
from leases.rows import SessionRow, SessionState


def session(name: str, task: str, held: int, revision: int = 1, state: SessionState = SessionState.LIVE) -> SessionRow:
    return SessionRow(
        session=name,
        state=state,
        seq=1,
        takeover_ms=7000,
        capacity=100,
        held=held,
        rate=0,
        revision=revision,
        task_arn=task,
        inbox=frozenset(),
        opened_at=0,
    )


def test_a_task_that_stops_does_not_pass_its_connections_around_among_its_own_processes() -> None:
    """All its processes are told at once, but a listing may be older than that."""
    fleet = Fleet([*(session(f"own{number}", "task", 10) for number in range(4)), session("other", "else", 90)])
    assert Targets("own0").choose(fleet) == "other"


def test_with_nobody_else_a_process_of_the_own_task_will_do() -> None:
    fleet = Fleet([session("me", "task", 10), session("beside", "task", 50), session("full", "else", 100)])
    assert Targets("me").choose(fleet) == "beside"
    assert Targets("me").choose(fleet, {"beside"}) is None


def test_an_older_revision_takes_no_new_work_while_a_newer_one_has_room() -> None:
    old, full = session("old", "a", 10), session("full", "b", 100, revision=2)
    assert not outdated(Fleet([old]), 1)
    assert not outdated(Fleet([old, full]), 1)
    assert not outdated(Fleet([old, session("leaves", "c", 0, revision=2, state=SessionState.DRAINING)]), 1)
    roomy = Fleet([old, full, session("new", "d", 99, revision=2)])
    assert outdated(roomy, 1)
    assert not outdated(roomy, 2)
