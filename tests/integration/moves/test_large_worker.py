"""One worker with a thousand connections stops: they are elsewhere within a minute."""

import pytest

from local.processes import Processes
from tests.chaos.arena import TABLE_ENDPOINT, Scale, arena
from tests.chaos.conftest import Show

STOP_SECONDS = 60.0
SCALE = Scale(connections=1000, period=5.0, shared_file=True)
"""Few messages, and no fault proxy in between: on a small machine the emulator's table alone sets the pace."""


@pytest.mark.soak
def test_a_thousand_connections_leave_within_a_minute(processes: Processes, show: Show) -> None:
    with arena(processes, SCALE, {"WORKER_CAPACITY": str(SCALE.connections)}) as fleet:
        direct = {TABLE_ENDPOINT: fleet.endpoint}
        old = fleet.start("old", direct)
        fleet.open()
        fleet.start("new-a", direct, revision=1000)
        fleet.start("new-b", direct, revision=1000)
        before = fleet.mark()

        ends = fleet.stop([old], STOP_SECONDS)
        fleet.calm()

        change, rows = fleet.since(before), fleet.rows()
        show({"exitSeconds": ends, "moved": len(change.moved)})
        assert old.exit_code == 0
        assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())
        assert {row.epoch - before.rows[path].epoch for path, row in rows.items()} <= {1, 2}
