"""What ECS says of a stopped task: with an exit code it is dead at once, without one the judges have the last word.

The task only stands still, so that nobody but the function behind the event can know better than the judges.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leases.rows import DeadBy
from local.processes import Processes
from local.tasks import Task
from tests.chaos.arena import JUDGED_SECONDS, SLACK_SECONDS, TIMINGS, Arena, Scale, arena
from tests.chaos.conftest import Show
from tests.integration.moves.task_events import stopped

SCALE = Scale(connections=20)
KILLED = 137


@pytest.fixture(scope="module")
def fleet(processes: Processes) -> Iterator[Arena]:
    """Two tasks."""
    with arena(processes, SCALE, {"WORKER_CAPACITY": str(SCALE.connections)}) as fleet:
        fleet.start("a")
        fleet.start("b")
        fleet.open()
        yield fleet


@contextmanager
def frozen(task: Task) -> Iterator[float]:
    """A task of which not even the supervisor does anything; gives the moment since when."""
    pids = [task.supervisor_pid, *task.worker_pids]
    moment = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield moment
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_an_exit_code_is_proof(fleet: Arena, show: Show) -> None:
    task, before = fleet.tasks["a"], fleet.mark()
    session = fleet.session(task).session
    victims = frozenset(path for path, row in fleet.rows().items() if row.owner == session)
    with frozen(task) as moment:
        following = fleet.follow(session, victims, moment)
        counted = fleet.invoke("task_stopped", stopped(task.arn, KILLED))
        failover = following.result()
    show(failover.figures)
    assert counted["SessionsDeclaredDead"] == 1
    assert failover.session.dead_by is DeadBy.EXIT
    assert failover.detected < TIMINGS.takeover
    assert failover.outage(1.0) <= TIMINGS.takeover, "its connections waited for the judges"
    fleet.calm()
    change = fleet.since(before)
    assert (change.doubled, change.dual_owners) == (0, 0)
    assert not change.lost - victims


def test_without_an_exit_code_nothing_happens_before_the_judges_are_sure(fleet: Arena, show: Show) -> None:
    task = fleet.tasks["b"]
    session = fleet.session(task).session
    victims = frozenset(path for path, row in fleet.rows().items() if row.owner == session)
    with frozen(task) as moment:
        following = fleet.follow(session, victims, moment)
        counted = fleet.invoke("task_stopped", stopped(task.arn, None))
        failover = following.result()
    show(failover.figures)
    assert counted == {}
    assert failover.session.dead_by is DeadBy.JUDGE
    assert TIMINGS.takeover - TIMINGS.heartbeat <= failover.detected <= JUDGED_SECONDS + SLACK_SECONDS
    fleet.calm()
