"""To whom connections are handed over."""

from leases.fleet import Fleet
from leases.placement import Targets
from leases.rows import SessionRow, SessionState


def session(name: str, task: str, held: int) -> SessionRow:
    return SessionRow(
        session=name,
        state=SessionState.LIVE,
        seq=1,
        takeover_ms=7000,
        capacity=100,
        held=held,
        rate=0,
        revision=1,
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
