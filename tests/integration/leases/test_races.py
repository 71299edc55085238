"""Writes that race: whatever the order in which they arrive, exactly one of them wins, and everybody can tell."""

import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from leases import writes
from leases.conditions import Absent, Refused, Write, Written
from leases.dynamodb import Table
from leases.rows import ConnectionRow, DeadBy, Desired, Load, SessionRow, connection_key, free_owner, session_key
from local.aws import Aws
from tests.integration.leases import racers
from tests.integration.leases.parts import session_row, truth

PROCESSES = 4
THREADS = 8
JUDGES = 3
VERDICT_ROUNDS = 100


@pytest.fixture
def store(aws: Aws, table: str) -> Table:
    return truth(aws, table)


def create(store: Table, connection: str, epoch: int) -> ConnectionRow:
    """A free connection."""
    row = ConnectionRow(
        connection=connection, owner=free_owner(connection), epoch=epoch, desired=Desired.RUNNING, generation=1
    )
    fields = {"owner": row.owner, "epoch": row.epoch, "desired": row.desired.value, "generation": row.generation}
    assert isinstance(
        store.write(Write(name="create", key=connection_key(connection), condition=Absent("pk"), set=fields)), Written
    )
    return row


@pytest.mark.parametrize("rounds", [100, pytest.param(2000, marks=pytest.mark.soak)])
def test_one_of_32_claims_wins_each_round(aws: Aws, store: Table, rounds: int) -> None:
    row = create(store, "raced", epoch=1000)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(PROCESSES * THREADS)

    with ProcessPoolExecutor(PROCESSES, spawn, racers.line_up, (barrier,)) as pool:
        runs = [
            pool.submit(
                racers.race,
                aws.endpoint,
                store.name,
                row,
                [f"s{process}.{thread}" for thread in range(THREADS)],
                rounds,
            )
            for process in range(PROCESSES)
        ]
        won = sorted((won for run in runs for won in run.result()), key=lambda won: won.epoch)

    assert [claim.epoch for claim in won] == list(range(1001, 1001 + rounds))
    item = store.get(connection_key("raced"))
    assert item is not None
    last = ConnectionRow.from_item(item)
    assert (last.owner, last.epoch, last.grant) == (won[-1].session, won[-1].epoch, won[-1].grant)


def test_a_heartbeat_and_a_verdict_never_both_land(store: Table) -> None:
    alive = dead = 0
    with ThreadPoolExecutor(1 + JUDGES) as threads:
        for number in range(VERDICT_ROUNDS):
            session = f"session-{number}"
            store.write(writes.open_session(session_row(session)))
            contest = [
                ("holder", writes.heartbeat(session, 1, Load(), frozenset())),
                *(("judge", writes.declare_dead(session, DeadBy.JUDGE, 0, 0)) for _ in range(JUDGES)),
            ]
            random.Random(number).shuffle(contest)
            outcomes = list(threads.map(lambda entry: store.write(entry[1]), contest))

            won = [who for (who, _), outcome in zip(contest, outcomes, strict=True) if isinstance(outcome, Written)]
            item = store.get(session_key(session))
            assert item is not None
            row = SessionRow.from_item(item)
            assert len(won) == 1
            assert row.alive == (won == ["holder"])
            assert row.seq == (1 if row.alive else 0)
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    assert outcome.image == item
            alive += row.alive
            dead += not row.alive

    assert alive
    assert dead
