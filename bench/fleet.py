"""What knowing the fleet costs each worker process: `python -m bench.fleet [--sessions N ...]`.

CPU milliseconds of one listing of n live and n dead sessions: reading its rows, what follows when nobody came or went,
working out whom this process judges when somebody did, and finding its part of the sweeps, of the free shards every
5 s and of all dead sessions every minute. Prints JSON and a table.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random

from leases.dynamodb import from_dynamodb, to_dynamodb
from leases.fleet import Fleet
from leases.judge import Judge
from leases.judging import LIST_SECONDS
from leases.rows import OWNER_SHARDS, SessionRow, SessionState, free_shard, readable, session_key
from leases.timings import Timings
from leases.writes import open_session

SESSIONS = (100, 300, 1000, 2000)
PROCESSES = 2
"""Of a task."""
REPEATS = 5
SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU milliseconds, each the least of a few."""

    sessions: int
    read: float
    unchanged: float
    changed: float
    free_shards: float
    dead_sessions: float


def rows(count: int) -> Sequence[SessionRow]:
    """So many live sessions and as many dead ones, with ids and tasks as real ones have."""
    rng = Random(SEED)
    return [
        SessionRow(
            session=f"{rng.getrandbits(128):032x}",
            state=SessionState.LIVE if number < count else SessionState.DEAD,
            seq=number,
            takeover_ms=Timings().takeover_ms,
            capacity=1000,
            held=500,
            rate=100,
            revision=1,
            task_arn=f"arn:aws:ecs:eu-central-1:123456789012:task/fleet/{number // PROCESSES:032x}",
            inbox=frozenset(),
            opened_at=1_800_000_000,
        )
        for number in range(2 * count)
    ]


def least(work: Callable[[], object]) -> float:
    """The CPU milliseconds of the cheapest of a few runs."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return round(1000 * best, 2)


def measure(count: int) -> Costs:
    """The costs at one size of the fleet."""
    listed, listed_again = rows(count), rows(count)
    own = listed[0].session
    items = [to_dynamodb({**session_key(row.session)._asdict(), **open_session(row).set}) for row in listed]
    before = Fleet(listed).tasks
    everybody = Judge(gap=2 * LIST_SECONDS, own_gap=2.0)

    def unchanged() -> None:
        fleet = Fleet(listed_again)
        for row in fleet.alive:
            everybody.read(row, 0.0)
        everybody.verdicts(0.0)
        assert fleet.tasks == before

    def dead_sessions() -> None:
        fleet = Fleet(listed)
        for session in fleet.dead:
            fleet.turn(own, session)

    def free_shards() -> None:
        fleet = Fleet(listed)
        for number in range(OWNER_SHARDS):
            fleet.turn(own, free_shard(number))

    return Costs(
        sessions=count,
        read=least(lambda: readable(SessionRow.from_item, map(from_dynamodb, items))),
        unchanged=least(unchanged),
        changed=least(lambda: Fleet(listed).duties(own)),
        free_shards=least(free_shards),
        dead_sessions=least(dead_sessions),
    )


def table(found: Sequence[Costs]) -> str:
    """For people."""
    lines = ["| sessions | read | unchanged | changed | free shards | dead sessions |", "|---|---|---|---|---|---|"]
    for costs in found:
        values = (costs.read, costs.unchanged, costs.changed, costs.free_shards, costs.dead_sessions)
        lines.append(f"| {costs.sessions} | {' | '.join(f'{value:.1f}' for value in values)} |")
    return "\n".join(lines)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, action="append")
    found = [measure(count) for count in parser.parse_args().sessions or SESSIONS]
    print(json.dumps(list(map(asdict, found))))
    print(table(found))


if __name__ == "__main__":
    main()
