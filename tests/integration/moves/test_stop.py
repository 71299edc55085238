"""A stop under bad circumstances ends well inside the stop timeout, with exit code 0 and nothing wedged.

One fleet goes through all of them: each time a task of a newer revision takes over from the one that stops.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from leases.rows import SessionState, connection_key
from local.processes import Processes
from local.tasks import Task
from tests.chaos.arena import Arena, Mark, Scale, arena
from tests.chaos.conftest import Show
from tests.support.proxy import UNAVAILABLE, Call, Delay, Rule, to_table

SCALE = Scale(connections=30, period=0.5)
FIRST_REVISION = 1000
STOP_SECONDS = 120.0
"""The stop timeout: what still runs then is killed."""
LATE = Delay(3.0)


@dataclass(slots=True)
class Relay:
    """Who holds everything, and who comes next."""

    fleet: Arena
    runner: Task
    number: int = 0

    def next(self, variables: Mapping[str, str] | None = None) -> tuple[Task, str]:
        """Start a task of a newer revision; returns the one that is to stop, and its name."""
        old, name = self.runner, str(self.number)
        self.number += 1
        self.runner = self.fleet.start(str(self.number), variables, revision=FIRST_REVISION + self.number)
        self.fleet.calm()
        return old, name

    def check(self, before: Mark, *, gaps: bool) -> None:
        """What holds after every stop. `gaps`: messages may be missing, since hand-over was impossible."""
        self.fleet.calm()
        change, session = self.fleet.since(before), self.fleet.session(self.runner).session
        assert {row.owner for row in self.fleet.rows().values()} == {session}
        assert (change.doubled, change.dual_owners) == (0, 0)
        assert gaps or (change.lost, change.broken) == (frozenset(), ())


@pytest.fixture(scope="module")
def relay(processes: Processes) -> Iterator[Relay]:
    """A fleet of one task that holds everything."""
    with arena(processes, SCALE, {"WORKER_CAPACITY": str(2 * SCALE.connections)}) as fleet:
        relay = Relay(fleet, fleet.start("0", revision=FIRST_REVISION))
        fleet.open()
        yield relay


def test_a_stop_that_is_repeated_is_one_stop(relay: Relay, show: Show) -> None:
    old, _ = relay.next()
    fleet, session, before = relay.fleet, relay.fleet.session(old).session, relay.fleet.mark()
    begun = time.monotonic()
    old.begin_stop()
    fleet.until(lambda: fleet.sessions()[session].state is SessionState.LIVE, "it does not drain")
    old.begin_stop()
    for pid in old.worker_pids:
        os.kill(pid, signal.SIGTERM)
    show({"exitSeconds": fleet.ends([old], begun, STOP_SECONDS)})
    assert old.exit_code == 0
    relay.check(before, gaps=False)


def test_a_connection_that_ends_meanwhile_is_stopped(relay: Relay, show: Show) -> None:
    old, _ = relay.next()
    fleet = relay.fleet
    (path,) = fleet.ask([SCALE.connections])
    fleet.calm()
    name, before = fleet.rows()[path].connection, fleet.mark()
    begun = time.monotonic()
    old.begin_stop()
    fleet.delete(path)
    show({"exitSeconds": fleet.ends([old], begun, STOP_SECONDS)})
    fleet.until(lambda: "owner" in (fleet.table.get(connection_key(name)) or {}), "it is not stopped")
    fleet.until(lambda: path in fleet.report().served(), "its socket is open")
    assert old.exit_code == 0
    relay.check(before, gaps=False)


@pytest.mark.parametrize("share", [pytest.param(0.2, marks=pytest.mark.soak), 1.0], ids=["some", "all"])
def test_answers_that_come_late_change_nothing(relay: Relay, share: float, show: Show) -> None:
    old, name = relay.next()
    fleet, before = relay.fleet, relay.fleet.mark()
    rule = Rule(LATE, lambda call: call.caller == name, share=share)
    with fleet.proxy.fault(rule):
        ends = fleet.stop([old], STOP_SECONDS)
    show({"exitSeconds": ends, "lateAnswers": rule.struck})
    assert rule.struck
    assert old.exit_code == 0
    relay.check(before, gaps=False)


@pytest.mark.soak
def test_a_table_that_is_late_for_everybody_changes_nothing(relay: Relay, show: Show) -> None:
    old, _ = relay.next()
    fleet, before = relay.fleet, relay.fleet.mark()
    rule = Rule(LATE)
    with fleet.proxy.fault(rule):
        ends = fleet.stop([old], STOP_SECONDS)
    show({"exitSeconds": ends, "lateAnswers": rule.struck})
    assert old.exit_code == 0
    relay.check(before, gaps=False)


def test_a_release_beside_a_standby_loses_and_doubles_nothing(relay: Relay, show: Show) -> None:
    """Who cannot find out that the target is alive releases; the target has buffered since before, and claims."""
    old, name = relay.next()
    fleet, before = relay.fleet, relay.fleet.mark()
    rule = Rule(UNAVAILABLE, lambda call: call.caller == name and session_read(call))
    with fleet.proxy.fault(rule):
        ends = fleet.stop([old], STOP_SECONDS)
    show({"exitSeconds": ends, "unanswered": rule.struck})
    assert rule.struck
    assert old.exit_code == 0
    relay.check(before, gaps=False)


def session_read(call: Call) -> bool:
    """The look at one session before a transfer."""
    return call.operation == "GetItem" and call.pk.startswith("SESSIONS#")


@pytest.mark.soak
def test_a_table_that_never_answers_keeps_nobody_and_the_exit_code_says_so(relay: Relay, show: Show) -> None:
    fleet = relay.fleet
    fleet.stop([relay.next({"WORKER_DRAIN_SECONDS": "2"})[0]], STOP_SECONDS)
    old, name = relay.next()
    before = fleet.mark()
    with fleet.proxy.fault(Rule(UNAVAILABLE, lambda call: call.caller == name and to_table(call))):
        ends = fleet.stop([old], STOP_SECONDS)
    show({"exitSeconds": ends})
    assert old.exit_code == 1
    relay.check(before, gaps=True)


def test_peers_that_never_answer_the_close_keep_nobody(relay: Relay, show: Show) -> None:
    old, _ = relay.next()
    fleet, before = relay.fleet, relay.fleet.mark()
    with fleet.freeze_upstream():
        ends = fleet.stop([old], STOP_SECONDS)
    show({"exitSeconds": ends})
    assert old.exit_code == 0
    relay.check(before, gaps=True)


def _has_process(fleet: Arena, task: Task) -> bool:
    return bool(task.worker_pids)


def _has_session(fleet: Arena, task: Task) -> bool:
    return any(row.task_arn == task.arn for row in fleet.sessions().values())


@pytest.mark.parametrize("far_enough", [_has_process, _has_session])
def test_a_stop_during_the_start(relay: Relay, far_enough: Callable[[Arena, Task], bool]) -> None:
    fleet, before = relay.fleet, relay.fleet.mark()
    task = fleet.begin()
    fleet.until(lambda: not far_enough(fleet, task), "it does not get that far")
    fleet.stop([task], STOP_SECONDS)
    assert task.exit_code == 0
    assert not [row for row in fleet.sessions().values() if row.task_arn == task.arn and row.alive]
    fleet.catch_up()
    assert not fleet.since(before).moved
