"""What follows the end of a process, against the emulator: the row, the hints, and outages in between."""

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from leases.dynamodb import AsyncStore, Table, to_dynamodb
from leases.events import Event, StoreFailed
from leases.rows import DeadBy, SessionRow, SessionState, connection_key, session_key
from leases.writes import open_session
from local.aws import Aws
from tests.support.proxy import UNAVAILABLE, Call, FaultProxy, Rule, to_table
from worker.assignments import Queue, QueuedHints
from worker.clients import HINTS, REAPING, Clients
from worker.exits import Exits

HELD = 25
"""More than one batch of hints."""


@dataclass
class Witness:
    """Hears what the protocol tells."""

    failures: int = 0

    def saw(self, event: Event) -> None:
        self.failures += isinstance(event, StoreFailed)


@dataclass
class Place:
    proxy: FaultProxy
    table: Table
    queue: Queue
    store: AsyncStore
    witness: Witness
    exits: Exits

    def session(self) -> str:
        """A live session with a name of its own."""
        session = uuid.uuid4().hex
        row = SessionRow(
            session=session,
            state=SessionState.LIVE,
            seq=0,
            takeover_ms=7000,
            capacity=10,
            held=0,
            rate=0,
            revision=1,
            task_arn="arn",
            inbox=frozenset(),
            opened_at=0,
        )
        self.table.write(open_session(row))
        return session

    def connection(self, owner: str) -> str:
        connection = uuid.uuid4().hex
        item = {**connection_key(connection)._asdict(), "owner": owner, "epoch": 1, "desired": "RUNNING"}
        self.table.client.put_item(TableName=self.table.name, Item=to_dynamodb(item))
        return connection

    def row(self, session: str) -> dict[str, Any]:
        return dict(self.table.get(session_key(session)) or {})

    def hinted(self, count: int) -> list[str]:
        """So many hints, waiting for them."""
        found: list[str] = []
        give_up = time.monotonic() + 30
        while len(found) < count and time.monotonic() < give_up:
            found += [json.loads(body)["connectionId"] for _, body in self.queue.receive(10)]
        return found


@pytest.fixture
def place(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with FaultProxy(aws.endpoint) as proxy, ThreadPoolExecutor(8) as threads:
        for name, value in {**aws.environment, "AWS_ENDPOINT_URL": proxy.endpoint("supervisor")}.items():
            monkeypatch.setenv(name, value)
        clients = Clients()
        dynamodb, sqs = clients.dynamodb(REAPING), clients.sqs(HINTS)
        name = f"table-{uuid.uuid4().hex}"
        dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("pk", "sk", "owner")],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "by_owner",
                    "KeySchema": [
                        {"AttributeName": "owner", "KeyType": "HASH"},
                        {"AttributeName": "pk", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
        )
        url = sqs.create_queue(QueueName=f"queue-{uuid.uuid4().hex}")["QueueUrl"]
        table, queue, witness = Table(dynamodb, name, "by_owner"), Queue(sqs, url), Witness()
        store = AsyncStore(table, threads)
        exits = Exits(store, QueuedHints(queue, threads), rng=Random(1), observer=witness, wall=lambda: 1_800_000_000.0)
        yield Place(proxy, table, queue, store, witness, exits)
        sqs.delete_queue(QueueUrl=url)
        dynamodb.delete_table(TableName=name)


async def test_the_session_is_dead_and_all_that_it_held_is_hinted_at(place: Place) -> None:
    session, other = place.session(), place.session()
    held = {place.connection(session) for _ in range(HELD)}
    place.connection(other)
    assert await place.exits.declare(session)
    row = place.row(session)
    assert (row["state"], row["dead_by"]) == (SessionState.DEAD, DeadBy.EXIT)
    assert row["ttl"] > 1_800_000_000
    assert set(place.hinted(HELD)) == held
    assert place.row(other)["state"] == SessionState.LIVE


async def test_an_outage_is_outlasted(place: Place) -> None:
    session = place.session()
    connection = place.connection(session)

    def failing(call: Call) -> bool:
        return to_table(call) or call.service == "sqs"

    with place.proxy.fault(Rule(UNAVAILABLE, failing, numbers={1, 2, 3, 5, 7})):
        assert await place.exits.declare(session)
    assert place.witness.failures == 3
    assert place.row(session)["state"] == SessionState.DEAD
    assert set(place.hinted(1)) == {connection}


async def test_a_session_that_ended_itself_or_never_began_is_left_alone(place: Place) -> None:
    session = place.session()
    assert await place.exits.declare(session)
    assert not await place.exits.declare(session)
    never = uuid.uuid4().hex
    assert not await place.exits.declare(never)
    assert place.row(never) == {}
