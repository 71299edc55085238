"""Room: a fleet that is exactly full works, what is beyond waits and is counted, and new workers get their share.

One fleet goes through all of it, since a connection rests for a minute before it is moved for the sake of balance.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from connections.status import State
from leases.rows import is_free
from local.processes import Processes
from tests.chaos.arena import Arena, Scale, arena
from tests.chaos.conftest import Show

EVENED_SECONDS = 120.0
STARTED_SECONDS = 60.0
WAIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Connections per worker, and how many more are asked for."""

    capacity: int
    more: int
    shared_file: bool


SMALL = Size(capacity=30, more=5, shared_file=False)
LARGE = Size(capacity=200, more=20, shared_file=True)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def test_full_beyond_full_and_evened_out(size: Size, processes: Processes, show: Show) -> None:
    scale = Scale(connections=2 * size.capacity, shared_file=size.shared_file)
    with arena(processes, scale, {"WORKER_CAPACITY": str(size.capacity)}) as fleet:
        for name in ("a", "b"):
            fleet.start(name)
        fleet.open()
        assert sorted(held(fleet).values()) == [size.capacity, size.capacity]

        beyond = frozenset(fleet.ask(range(scale.connections, scale.connections + size.more)))
        fleet.watch(WAIT_SECONDS)
        assert sorted(held(fleet).values()) == [size.capacity, size.capacity]
        audited = fleet.invoke("audit", {})
        assert {path for path, row in fleet.rows().items() if is_free(row.owner)} == beyond
        assert (audited["ConnectionsPending"], audited["ConnectionsHeld"]) == (size.more, scale.connections)
        waiting = [fleet.shown(path)["status"] for path in beyond]
        assert {(status["state"], status["reason"]) for status in waiting} == {(State.PENDING, "no_capacity")}

        before = fleet.mark()
        begun = time.monotonic()
        for name in ("c", "d"):
            fleet.start(name)
        fleet.until(lambda: beyond - fleet.report().served(), "what waited is not started", STARTED_SECONDS)
        started = time.monotonic() - begun
        mean = (scale.connections + size.more) / 4
        near = mean / 10 + 1
        fleet.until(
            lambda: any(abs(count - mean) > near for count in held(fleet).values()) or len(held(fleet)) < 4,
            "not evened out",
            EVENED_SECONDS,
        )
        took = time.monotonic() - begun
        fleet.calm()

        change, rows = fleet.since(before), fleet.rows()
        moves = sum(row.epoch - before.rows[path].epoch for path, row in rows.items()) - len(beyond)
        show(
            {
                "startedSeconds": round(started, 1),
                "evenedOutSeconds": round(took, 1),
                "moves": moves,
                "held": sorted(held(fleet).values()),
            }
        )
        assert moves <= 1.1 * scale.connections / 2
        assert max(row.epoch - before.rows[path].epoch for path, row in rows.items()) <= 1
        assert (change.lost, change.doubled, change.dual_owners, change.broken) == (frozenset(), 0, 0, ())


def held(fleet: Arena) -> Mapping[str, int]:
    """How many connections each owner has that is a session."""
    return Counter(str(row.owner) for row in fleet.rows().values() if row.owner and not is_free(row.owner))
