"""A rolling deploy: every connection moves once, and nobody who reads the stream can tell."""

import pytest

from leases.rows import DeadBy
from local.processes import Processes
from tests.chaos.arena import Scale, arena
from tests.chaos.conftest import Show

TASKS = ("a", "b", "c")
NEWER = 1000
"""A revision after any that a deployment makes here."""
STOP_SECONDS = 60.0
GOING_AWAY = 1001

SMALL = Scale(connections=60, period=0.5)
LARGE = Scale(connections=600, period=0.5, shared_file=True)


@pytest.mark.parametrize("scale", [SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def test_a_deploy_moves_each_connection_once_and_loses_nothing(scale: Scale, processes: Processes, show: Show) -> None:
    with arena(processes, scale, {"WORKER_CAPACITY": str(scale.connections)}) as fleet:
        old = [fleet.start(name) for name in TASKS]
        fleet.open()
        new = [fleet.start(f"new-{name}", revision=NEWER) for name in TASKS]
        sessions = {fleet.session(task).session for task in old}
        before, sockets = fleet.mark(), fleet.report().sockets

        ends = fleet.stop(old, STOP_SECONDS)
        fleet.calm()

        change, rows, report = fleet.since(before), fleet.rows(), fleet.report()
        moves = {path: row.epoch - before.rows[path].epoch for path, row in rows.items()}
        show({"exitSeconds": ends, "moved": len(change.moved), "movedTwice": sum(n > 1 for n in moves.values())})
        assert [task.exit_code for task in old] == [0, 0, 0]
        assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())
        assert set(moves.values()) <= {1, 2}
        assert {row.owner for row in rows.values()} <= {fleet.session(task).session for task in new}
        farewells = {path: [seen.close_code for seen in report.sockets[path][: len(sockets[path])]] for path in rows}
        assert not {path for path, codes in farewells.items() if set(codes) != {GOING_AWAY}}
        ended = [row for row in fleet.sessions().values() if row.session in sessions]
        assert {row.dead_by for row in ended} <= {DeadBy.SELF, DeadBy.EXIT}
