"""Bad weather between healthy workers and their table: nobody loses a connection, a message, or a lease.

All scenarios strike the same fleet, one after the other. It has exactly the room that it needs, so that nothing moves
but for a fault.
"""

import os
import signal
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from local.processes import Processes
from tests.chaos.arena import (
    JUDGED_SECONDS,
    SKEW_SECONDS,
    SLACK_SECONDS,
    TIMINGS,
    UNTOUCHED,
    Arena,
    Scale,
    arena,
    needs_faketime,
    set_by,
)
from tests.chaos.conftest import Show
from tests.support.proxy import (
    FOREVER,
    THROTTLED,
    UNAVAILABLE,
    Drop,
    Lose,
    Rule,
    Stale,
    conditional_write,
    heartbeat,
    index_query,
    table_write,
)

pytestmark = pytest.mark.chaos

TASKS = 3
CALM_SECONDS = 2.0
API_SECONDS = 3.0
"""Within this the API says that the table does not answer."""

SMALL = Scale(connections=60, lost_answers=15, throttled=15, outage=30, stale=12)
LARGE = Scale(connections=300, lost_answers=120, throttled=300, outage=60, stale=60)


@pytest.fixture(scope="module")
def clock(processes: Processes) -> Path:
    """Says by how many seconds the wall clock of one task is off."""
    path = processes.scratch / "clock"
    path.write_text("+0")
    return path


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def fleet(request: pytest.FixtureRequest, processes: Processes, clock: Path) -> Iterator[Arena]:
    """Three tasks that are exactly full. The third lives by a clock that a test can set."""
    scale: Scale = request.param
    with arena(processes, scale, {"WORKER_CAPACITY": str(scale.connections // TASKS)}) as fleet:
        fleet.start("a")
        fleet.start("b")
        fleet.start("c", set_by(clock))
        fleet.open()
        yield fleet


def test_a_heartbeat_that_fails_once_changes_nothing(fleet: Arena, show: Show) -> None:
    rule = Rule(UNAVAILABLE, heartbeat, numbers={1}, key=lambda call: call.caller)
    before = fleet.mark()
    with fleet.proxy.fault(rule):
        fleet.until(lambda: TASKS - rule.struck, "not every session has had its fault")
        fleet.watch(CALM_SECONDS)
    fleet.catch_up()
    change = fleet.since(before)

    show({"heartbeatsFailed": rule.struck})
    assert change == UNTOUCHED


def test_lost_answers_cost_nobody_a_lease(fleet: Arena, show: Show) -> None:
    # A fifth of all: each second one is a reset, and the others the caller waits for until it gives up.
    resets = Rule(Lose(), conditional_write, share=1 / 10)
    silences = Rule(Lose(FOREVER), conditional_write, share=1 / 9)
    before = fleet.mark()
    with fleet.proxy.fault(resets, silences):
        fleet.watch(fleet.scale.lost_answers)
    fleet.catch_up()
    change = fleet.since(before)

    lost = resets.struck + silences.struck
    show({"seconds": fleet.scale.lost_answers, "writes": resets.seen.total(), "answersLost": lost})
    assert lost > 0
    assert change == UNTOUCHED


def test_throttling_costs_nobody_a_lease(fleet: Arena, show: Show) -> None:
    rule = Rule(THROTTLED, table_write, share=0.5)
    before = fleet.mark()
    with fleet.proxy.fault(rule):
        fleet.watch(fleet.scale.throttled)
    fleet.watch(JUDGED_SECONDS)
    fleet.catch_up()
    change = fleet.since(before)

    show(
        {
            "seconds": fleet.scale.throttled,
            "writes": rule.seen.total(),
            "throttled": rule.struck,
            "moved": len(change.moved),
        }
    )
    assert rule.struck > 0
    assert len(change.moved) < 0.01 * fleet.scale.connections
    assert not change.lost
    assert not change.dual_owners


def test_an_index_that_tells_of_the_past_moves_nothing(fleet: Arena, show: Show) -> None:
    rule = Rule(Stale(10.0), index_query)
    before = fleet.mark()
    with fleet.proxy.fault(rule):
        fleet.watch(fleet.scale.stale)
    fleet.catch_up()
    change = fleet.since(before)

    show({"seconds": fleet.scale.stale, "staleAnswers": rule.struck})
    assert rule.struck > 0
    assert change == UNTOUCHED


def test_an_outage_of_the_table_costs_nothing(fleet: Arena, show: Show) -> None:
    rule = Rule(Drop(FOREVER))
    answered = []
    before = fleet.mark()
    with fleet.proxy.fault(rule):
        for fault in (Drop(FOREVER), UNAVAILABLE):
            rule.fault = fault
            begun = time.monotonic()
            refused = fleet.post("/refused")
            answered.append(round(time.monotonic() - begun, 2))
            assert refused.status == HTTPStatus.SERVICE_UNAVAILABLE
            fleet.watch(begun + fleet.scale.outage / 2 - time.monotonic())
        held_back = fleet.backlog(fleet.report().numbers)
    back = time.monotonic()
    fleet.catch_up()
    emitted = time.monotonic() - back
    fleet.watch(JUDGED_SECONDS)
    fleet.catch_up()
    change = fleet.since(before)

    show(
        {
            "seconds": fleet.scale.outage,
            "apiAnsweredSeconds": answered,
            "messagesHeldBack": held_back,
            "allEmittedSecondsAfterReturn": round(emitted, 2),
        }
    )
    assert max(answered) <= API_SECONDS + SLACK_SECONDS
    assert "/refused" not in fleet.report().sockets
    assert held_back > 0
    assert change == UNTOUCHED


def test_a_short_pause_changes_nothing(fleet: Arena, show: Show) -> None:
    pid = fleet.tasks["b"].worker_pids[0]
    pause = 0.5 * TIMINGS.self_fence
    before = fleet.mark()
    os.kill(pid, signal.SIGSTOP)
    fleet.watch(pause)
    os.kill(pid, signal.SIGCONT)
    fleet.watch(JUDGED_SECONDS)
    fleet.catch_up()
    change = fleet.since(before)

    show({"seconds": pause})
    assert change == UNTOUCHED


@needs_faketime
def test_a_wall_clock_that_jumps_changes_nothing(fleet: Arena, show: Show, clock: Path) -> None:
    before = fleet.mark()
    for skew in (SKEW_SECONDS, -SKEW_SECONDS, 0):
        clock.write_text(f"{skew:+}")
        fleet.watch(JUDGED_SECONDS if skew else CALM_SECONDS)
    fleet.catch_up()
    change = fleet.since(before)

    show({"skews": [SKEW_SECONDS, -SKEW_SECONDS]})
    assert change == UNTOUCHED
