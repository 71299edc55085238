"""Workers that die, freeze or are cut off: what they held is soon open elsewhere, and they emit nothing of it again.

All scenarios strike the same fleet, one after the other, which has room enough for one task to hold everything.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from leases.rows import DeadBy
from local.processes import Processes
from tests.chaos.arena import (
    JUDGED_SECONDS,
    SKEW_SECONDS,
    SLACK_SECONDS,
    TIMINGS,
    Arena,
    Failover,
    Mark,
    Scale,
    arena,
    needs_faketime,
    served_throughout,
    set_by,
)
from tests.chaos.conftest import Show
from tests.support.proxy import FOREVER, Drop, Rule

pytestmark = pytest.mark.chaos

REAPED_SECONDS = 0.3
"""Within this a supervisor makes the end of a process known."""
STORE_RATE = 100.0
"""Claims a second that the emulator is good for at least, with all workers on the same small machine."""

EVENED_OUT_SECONDS = 180.0
"""Within this a worker with nothing has got its share of what others hold."""

HAND_OVER_SECONDS = 10.0
"""Within this a connection that is handed over is open only once again."""

SMALL = Scale(connections=60)
LARGE = Scale(connections=300)


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def fleet(request: pytest.FixtureRequest, processes: Processes) -> Iterator[Arena]:
    """Four tasks. The wall clock of one of them is slow by minutes."""
    scale: Scale = request.param
    clock = processes.scratch / "slow-clock"
    clock.write_text(f"-{SKEW_SECONDS}")
    with arena(processes, scale, {"WORKER_CAPACITY": str(scale.connections)}) as fleet:
        for name in ("a", "b", "c"):
            fleet.start(name)
        fleet.start("slow", set_by(clock))
        fleet.open()
        yield fleet


@pytest.fixture(autouse=True)
def calm(fleet: Arena) -> None:
    """Each scenario begins when the last one is over."""
    fleet.calm()


def test_a_killed_process_is_missed_at_once(fleet: Arena, show: Show) -> None:
    task = fleet.tasks["a"]
    session = fleet.session(task).session
    (pid,) = task.worker_pids
    before = fleet.mark()
    moment = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    failover = fleet.follow(session, before.owned_by(session), moment).result()

    show(failover.figures)
    check(fleet, before, [failover], DeadBy.EXIT, REAPED_SECONDS)


def test_who_freezes_or_is_cut_off_comes_back_to_nothing_and_emits_nothing(fleet: Arena, show: Show) -> None:
    sessions = [fleet.session(fleet.tasks[name]).session for name in ("b", "c")]
    (frozen_pid,) = fleet.tasks["c"].worker_pids
    moment = time.monotonic()
    with fleet.proxy.fault(Rule(Drop(FOREVER), lambda call: call.caller == "b")):
        os.kill(frozen_pid, signal.SIGSTOP)
        try:
            before = fleet.mark()
            cut_off, frozen = (fleet.follow(session, before.owned_by(session), moment) for session in sessions)
            fleet.watch(moment + 2 * TIMINGS.takeover - time.monotonic())
        finally:
            os.kill(frozen_pid, signal.SIGCONT)
        woken = left_alone(fleet, "c", frozen.result())
        fleet.watch(moment + 3 * TIMINGS.takeover - time.monotonic())
        kept = fleet.held_by(fleet.tasks["b"])
    returned = left_alone(fleet, "b", cut_off.result())

    show(
        {
            "cutOff": cut_off.result().figures | {"socketsClosedSecondsAfterReturn": returned},
            "frozen": frozen.result().figures | {"socketsClosedSecondsAfterReturn": woken},
        }
    )
    assert cut_off.result().outages.keys() <= kept, "it closed sockets though nobody had told it that it is dead"
    check(fleet, before, [cut_off.result(), frozen.result()], DeadBy.JUDGE, JUDGED_SECONDS)


def test_a_lost_task_is_missed_by_its_judges(fleet: Arena, show: Show) -> None:
    lose(fleet, ["a"], show)


@needs_faketime
def test_a_worker_with_a_slow_wall_clock_takes_over_in_time(fleet: Arena, show: Show) -> None:
    slow = fleet.session(fleet.tasks["slow"])
    assert slow.opened_at - time.time() < -0.9 * SKEW_SECONDS, "its clock is not slow"
    lose(fleet, ["b", "c"], show)

    assert {row.owner for row in fleet.rows().values()} == {slow.session}


def test_who_comes_when_all_are_dead_takes_over_after_one_watch(fleet: Arena, show: Show) -> None:
    sessions = [row.session for row in fleet.sessions().values() if row.alive]
    for task in fleet.tasks.values():
        if task.exit_code is None:
            task.kill()
    fleet.start("d")
    moment, before = time.monotonic(), fleet.mark()
    failovers = [fleet.follow(session, before.owned_by(session), moment).result() for session in sessions]

    show({"afterTheStart": [failover.figures for failover in failovers if failover.outages]})
    check(fleet, before, failovers, DeadBy.JUDGE, JUDGED_SECONDS)
    assert {row.owner for row in fleet.rows().values()} == {fleet.session(fleet.tasks["d"]).session}


def lose(fleet: Arena, names: Sequence[str], show: Show) -> None:
    """Kill whole tasks at once, as when their hosts are lost."""
    sessions = [fleet.session(fleet.tasks[name]).session for name in names]
    # Who has just come back has nothing yet.
    fleet.until(lambda: not any(map(fleet.mark().owned_by, sessions)), "they hold nothing", EVENED_OUT_SECONDS)
    moment = time.monotonic()
    for name in names:
        fleet.tasks[name].kill()
    before = fleet.mark()
    following = [fleet.follow(session, before.owned_by(session), moment) for session in sessions]
    failovers = [failover.result() for failover in following]

    show({name: failover.figures for name, failover in zip(names, failovers, strict=True)})
    check(fleet, before, failovers, DeadBy.JUDGE, JUDGED_SECONDS)


def left_alone(fleet: Arena, name: str, failover: Failover) -> float:
    """How long, in seconds, a task took to close the sockets that are not its own any more."""
    begun = time.monotonic()
    old = failover.outages.keys()
    fleet.until(lambda: old & fleet.held_by(fleet.tasks[name]), "it keeps sockets that are not its own")
    return round(time.monotonic() - begun, 2)


def check(fleet: Arena, before: Mark, failovers: Sequence[Failover], dead_by: DeadBy, detection: float) -> None:
    """What holds after any death."""
    fleet.catch_up()
    change, now = fleet.since(before), fleet.rows()
    victims = frozenset[str]().union(*(failover.outages for failover in failovers))
    claiming = len(victims) / STORE_RATE
    assert victims, "they held nothing"
    for failover in failovers:
        assert failover.session.dead_by is dead_by
        assert failover.detected <= detection + SLACK_SECONDS
        assert failover.outage(1.0) <= detection + SLACK_SECONDS + TIMINGS.drain + claiming
    report = fleet.report()
    others = before.rows.keys() - victims
    interrupted = {path for path in others if not served_throughout(report.sockets[path], before.at)}
    assert not interrupted, "others were interrupted"
    assert not change.lost - victims, "others lost messages"
    assert (change.doubled, change.dual_owners, change.broken) == (0, 0, ())
    assert not {path for path in victims if now[path].epoch != before.rows[path].epoch + 1}
    # Evening out may have opened a second socket for a moment; nothing else may.
    crowded = report.crowded()
    fleet.until(lambda: crowded & fleet.report().crowded(), "two sockets for one connection", HAND_OVER_SECONDS)
