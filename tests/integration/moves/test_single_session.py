"""Upstreams that allow one session per key: a planned move breaks before it makes, and is over soon."""

import pytest

from local.processes import Processes
from tests.chaos.arena import Scale, arena
from tests.chaos.conftest import Show
from tests.integration.moves.single_session import KICKED, REFUSED

OUTAGE_SECONDS = 3.0
"""Promised are 5; so long it takes only if the hints are lost on the way, and a sweep has to find the rows."""
REFUSALS = 2
STOP_SECONDS = 60.0
SCALE = Scale(connections=20, period=0.5)


@pytest.mark.parametrize("second", ["refuse", "kick"])
def test_a_planned_move_never_has_two_sessions(second: str, processes: Processes, show: Show) -> None:
    upstream = ("tests.integration.moves.single_session", "--second", second)
    with arena(processes, SCALE, {"WORKER_CAPACITY": str(SCALE.connections)}, upstream) as fleet:
        old = [fleet.start(name) for name in ("a", "b")]
        fleet.open(handover="break_before_make")
        fleet.start("new-a")
        fleet.start("new-b")
        before = fleet.mark()

        ends = fleet.stop(old, STOP_SECONDS)
        fleet.calm()

        change, report = fleet.since(before), fleet.report()
        outages = sorted(report.outage(path, before.at, planned=True) for path in change.moved)
        codes = {path: [seen.close_code for seen in sockets] for path, sockets in report.sockets.items()}
        refused = max(seen.count(REFUSED) for seen in codes.values())
        show({"exitSeconds": ends, "longestOutageSeconds": round(outages[-1], 2), "refusedAtMost": refused})
        assert [task.exit_code for task in old] == [0, 0]
        assert len(change.moved) == SCALE.connections
        assert outages[-1] <= OUTAGE_SECONDS
        assert refused <= REFUSALS
        assert not {path for path, seen in codes.items() if KICKED in seen}, "our workers kicked each other"
        assert (change.doubled, change.dual_owners, change.broken) == (0, 0, ())
