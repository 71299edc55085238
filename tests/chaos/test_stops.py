"""A task that is told to stop while the table is away: it ends in time, and what it held goes on elsewhere.

An outage that ends before the drain deadline costs nothing: hand-overs begin when it is over. In a longer one nothing
can be let go in an orderly way; the task ends all the same, and judges find out.
"""

import time
from collections.abc import Iterator

import pytest

from leases.rows import DeadBy
from local.processes import Processes
from tests.chaos.arena import JUDGED_SECONDS, SLACK_SECONDS, TIMINGS, Arena, Scale, arena, served_throughout
from tests.chaos.conftest import Show
from tests.support.proxy import FOREVER, Drop, Rule
from worker.settings import BURIAL_SECONDS, RELEASE_SECONDS, STOP_TIMEOUT_SECONDS

pytestmark = pytest.mark.chaos

SCALE = Scale(connections=40)
OLD, NEW = 1000, 1001
"""Revisions: what is stopped hands over to the newest one."""

DRAINS = [5.0, pytest.param(90.0, marks=pytest.mark.soak)]
OUTAGES = [TIMINGS.takeover + 1, pytest.param(30.0, marks=pytest.mark.soak)]


@pytest.fixture
def fleet(request: pytest.FixtureRequest, processes: Processes) -> Iterator[Arena]:
    """Two tasks, which hold half each and have room for all. The older one is to be stopped."""
    settings = {"WORKER_CAPACITY": str(SCALE.connections), "WORKER_DRAIN_SECONDS": str(request.param)}
    with arena(processes, SCALE, settings) as fleet:
        fleet.start("old", revision=OLD)
        fleet.start("other", revision=OLD)
        fleet.open()
        yield fleet


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("fleet", [90.0], indirect=True)
def test_an_outage_that_ends_before_the_drain_deadline_costs_nothing(fleet: Arena, outage: float, show: Show) -> None:
    old, before = fleet.tasks["old"], fleet.mark()
    session = fleet.session(old).session
    with fleet.proxy.fault(Rule(Drop(FOREVER))):
        old.begin_stop()
        fleet.watch(outage)
        assert old.worker_pids, "it did not wait for the table"
    (ended,) = fleet.ends([old], time.monotonic(), STOP_TIMEOUT_SECONDS - outage)
    fleet.calm()
    change = fleet.since(before)

    show({"outageSeconds": outage, "endedSecondsAfter": ended, "moved": len(change.moved)})
    assert old.exit_code == 0
    assert change.moved == before.owned_by(session)
    assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())


@pytest.mark.parametrize("fleet", DRAINS, indirect=True)
def test_an_outage_that_outlasts_the_stop_keeps_nobody(
    fleet: Arena, request: pytest.FixtureRequest, show: Show
) -> None:
    drain = request.node.callspec.params["fleet"]
    old, other, before = fleet.tasks["old"], fleet.tasks["other"], fleet.mark()
    session = fleet.session(old).session
    victims, others = before.owned_by(session), before.owned_by(fleet.session(other).session)
    with fleet.proxy.fault(Rule(Drop(FOREVER))):
        (ended,) = fleet.stop([old], STOP_TIMEOUT_SECONDS)
        assert fleet.sessions()[session].alive, "the table was not away"
    back = fleet.follow(session, victims, fleet.mark().at).result()
    fleet.calm()
    change = fleet.since(before)

    show({"drainSeconds": drain, "endedSecondsAfter": ended, "exitCode": old.exit_code, "afterwards": back.figures})
    assert ended <= drain + RELEASE_SECONDS + BURIAL_SECONDS
    assert old.exit_code == 1, "it has lost messages, and has to say so"
    assert back.session.dead_by is DeadBy.JUDGE
    assert back.detected <= JUDGED_SECONDS + 2 * TIMINGS.heartbeat + SLACK_SECONDS
    assert change.moved == victims
    assert (change.doubled, change.dual_owners, change.broken) == (0, 0, ())
    assert not change.lost & others
    assert all(served_throughout(fleet.report().sockets[path], before.at) for path in others)
    assert not fleet.report().crowded()
