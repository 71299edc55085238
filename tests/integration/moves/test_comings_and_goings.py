"""A fleet that shrinks to one worker, workers that come and go, and targets that die: nobody moves without a reason.

One fleet goes through all of it; each test leaves one task that holds everything.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from leases.rows import SessionState, is_free
from local.processes import Processes
from local.tasks import Task
from tests.chaos.arena import Arena, Scale, arena
from tests.chaos.conftest import Show

pytestmark = pytest.mark.soak

SCALE = Scale(connections=40, period=0.5)
STOP_SECONDS = 60.0
SHORT_LIFE_SECONDS = 30.0
ROUNDS = 3
NEWER = 1000
IDLE_SECONDS = 10.0
IDLE_CALLS_PER_SECOND = 40.0
"""Of one worker that holds everything, while others wait for room: heartbeats, watching, sweeps, status."""


@pytest.fixture(scope="module")
def fleet(processes: Processes) -> Iterator[Arena]:
    """Four tasks, each with room for all."""
    with arena(processes, SCALE, {"WORKER_CAPACITY": str(SCALE.connections)}) as fleet:
        for name in ("a", "b", "c", "d"):
            fleet.start(name)
        fleet.open()
        yield fleet


def running(fleet: Arena) -> list[Task]:
    """The tasks that have not ended."""
    return [task for task in fleet.tasks.values() if task.exit_code is None]


def test_scaling_in_to_one_worker(fleet: Arena, show: Show) -> None:
    before, leaving = fleet.mark(), [fleet.tasks[name] for name in ("b", "c", "d")]
    ends = fleet.stop(leaving, STOP_SECONDS)
    fleet.calm()
    change, rows = fleet.since(before), fleet.rows()
    moves = {path: row.epoch - before.rows[path].epoch for path, row in rows.items()}
    show({"exitSeconds": ends, "moves": sum(moves.values()), "mostMoves": max(moves.values())})
    assert [task.exit_code for task in leaving] == [0, 0, 0]
    assert {row.owner for row in rows.values()} == {fleet.session(fleet.tasks["a"]).session}
    assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())
    # One that leaves may be handed what another leaves before it says so.
    assert max(moves.values()) <= 3


def test_who_comes_and_goes_every_half_minute_moves_nothing(fleet: Arena, show: Show) -> None:
    before = fleet.mark()
    for number in range(ROUNDS):
        visitor = fleet.start(f"visitor-{number}")
        fleet.watch(SHORT_LIFE_SECONDS)
        fleet.stop([visitor], STOP_SECONDS)
        assert visitor.exit_code == 0
    fleet.calm()
    change = fleet.since(before)
    show({"moved": len(change.moved)})
    assert (change.moved, change.reconnected) == (frozenset(), frozenset())
    assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())


def test_a_target_that_dies_when_it_is_ready(fleet: Arena, show: Show) -> None:
    """What was handed to it before is an unplanned move; the rest goes to whoever is left."""
    (old,) = running(fleet)
    target, spare = fleet.start("target", revision=NEWER), fleet.start("spare", revision=NEWER)
    target_session = fleet.session(target).session
    before = fleet.mark()
    old.begin_stop()

    def not_ready() -> bool:
        offers = [row.offer for row in fleet.rows().values() if row.offer is not None]
        return not any(offer.ready and offer.session == target_session for offer in offers)

    fleet.until(not_ready, "no standby is ready")
    for pid in target.worker_pids:
        os.kill(pid, signal.SIGKILL)
    fleet.until(lambda: old.exit_code is None, "it does not end", STOP_SECONDS)
    fleet.calm()
    change, rows = fleet.since(before), fleet.rows()
    struck = {path for path, row in rows.items() if row.epoch - before.rows[path].epoch > 1}
    show({"exitCode": old.exit_code, "movedTwice": len(struck), "lost": len(change.lost), "broken": len(change.broken)})
    assert old.exit_code == 0
    live = {fleet.session(task).session for task in (target, spare)}
    assert {row.owner for row in rows.values()} <= live
    assert (change.doubled, change.dual_owners) == (0, 0)
    assert change.lost <= struck
    fleet.stop([target], STOP_SECONDS)
    fleet.calm()


def test_a_drain_of_a_full_fleet_releases_and_room_starts_what_waits(fleet: Arena, show: Show) -> None:
    """Drained by the API with nobody to take over: nothing is left, nobody runs in circles, and room ends the wait."""
    (old,) = running(fleet)
    session = fleet.session(old).session
    fleet.start("small", {"WORKER_CAPACITY": "1"}, revision=2 * NEWER)
    before = fleet.mark()
    fleet.drain(old)
    fleet.until(lambda: old.exit_code is None, "it does not end", STOP_SECONDS)
    assert old.exit_code == 0
    shown = fleet.workers()[session]
    assert (shown["state"], shown["held"]) == (SessionState.DEAD, 0)
    fleet.until(lambda: sum(not is_free(row.owner) for row in fleet.rows().values()) != 1, "the small one is not full")
    calls = _calls(fleet)
    fleet.watch(IDLE_SECONDS)
    rate = (_calls(fleet) - calls) / IDLE_SECONDS
    waiting = [path for path, row in fleet.rows().items() if is_free(row.owner)]
    assert {fleet.shown(path)["status"]["reason"] for path in waiting} == {"no_capacity"}
    fleet.start("large", revision=2 * NEWER)
    fleet.calm()
    change = fleet.since(before)
    show({"waited": len(waiting), "idleCallsPerSecond": round(rate, 1)})
    assert rate <= IDLE_CALLS_PER_SECOND
    assert (change.doubled, change.dual_owners) == (0, 0)


def _calls(fleet: Arena) -> int:
    """Calls of the small worker to the table."""
    return sum(used.calls for (caller, _), used in fleet.proxy.usage().items() if caller == "small")
