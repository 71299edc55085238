"""An answer that is none (a proxy's page, half a body) fails one call, and neither its caller nor the process."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from leases.conditions import Unknown
from leases.holdings import Considered
from tests.unit.worker.outputs import until
from worker.assignments import Assignments, Queue, QueuedHints
from worker.clients import HINTS, Clients
from worker.records import Entry, Header
from worker.secrets import SecretUnavailable, secrets_manager
from worker.sinks import Outcome, Sink, SinkUnavailable
from worker.sinks.kinesis import KinesisSink
from worker.sinks.sqs_fifo import SqsFifoSink

BODIES = (
    b"\xff\xfe",
    b"null",
    b"[]",
    b"5",
    b"<html>",
    b'{"Records": 5, "Successful": 5, "Failed": 5, "Messages": 5}',
    b'{"Records": [null], "Successful": [{}], "Failed": [{}], "Messages": [{}]}',
    b'{"Records": [], "Successful": [{"Id": "7"}], "Messages": [null]}',
)

answers = pytest.mark.parametrize("body", BODIES)


class Raw:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.body


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Clients:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return Clients()


def answered(client: Any, body: bytes) -> Any:
    """The client, to which every request is answered with this."""
    headers: Any = {"Content-Type": "application/x-amz-json-1.0"}
    client.meta.events.register_first("before-send", lambda **_: AWSResponse("https://aws", 200, headers, Raw(body)))
    return client


@answers
@pytest.mark.parametrize("kind", ["kinesis", "sqs_fifo"])
def test_nobody_knows_whether_a_sink_took_an_entry(made: Clients, kind: str, body: bytes) -> None:
    sink: Sink
    if kind == "kinesis":
        sink = KinesisSink(answered(made.kinesis(1.0), body), "stream")
    else:
        sink = SqsFifoSink(answered(made.fifo(1.0), body), "https://queue.fifo")
    entry = Entry(Header(connection="c", epoch=1, worker="w"), 1, 1, b"{}\n")
    try:
        outcomes = [verdict.outcome for verdict in sink.put([entry], lambda: True)]
    except SinkUnavailable:
        return
    assert outcomes == [Outcome.AGAIN]


@answers
def test_a_secret_is_unavailable(made: Clients, body: bytes) -> None:
    read = secrets_manager(answered(made.secrets(), body), "")
    with pytest.raises(SecretUnavailable, match="secret 'name'"):
        read("name")


@answers
async def test_hints_are_sent_or_not(made: Clients, body: bytes) -> None:
    with ThreadPoolExecutor(1) as executor:
        hints = QueuedHints(Queue(answered(made.sqs(HINTS), body), "https://queue"), executor)
        with suppress(Unknown):
            await hints.send(["c"])


class Member:
    """Says that what it is asked about is done."""

    room = 10
    ahead = False
    stopping = False

    def __init__(self) -> None:
        self.considered: list[str] = []

    async def consider(self, connections: list[str]) -> dict[str, Considered]:
        self.considered += connections
        return dict.fromkeys(connections, Considered.DONE)


@answers
async def test_assignments_go_on(made: Clients, body: bytes) -> None:
    class Broken:
        """A queue that answers badly once, then well, and whose deletions are answered badly."""

        def __init__(self) -> None:
            self.broken = answered(made.sqs(HINTS), body)
            self.calls = 0

        def receive_message(self, **request: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                return self.broken.receive_message(**request)
            messages = [{"ReceiptHandle": "h", "Body": '{"connectionId": "c"}'}]
            return {"Messages": messages if self.calls < 4 else []}

        def delete_message_batch(self, **request: Any) -> Any:
            return self.broken.delete_message_batch(**request)

    member: Any = Member()
    client: Any = Broken()
    calm: Any = SimpleNamespace(uniform=lambda *_: 0.001)
    with ThreadPoolExecutor(1) as pollers, ThreadPoolExecutor(1) as executor:
        taking = asyncio.create_task(
            Assignments(member, Queue(client, "https://queue"), pollers=pollers, executor=executor, rng=calm).run()
        )
        await until(lambda: len(member.considered) >= 2 or taking.done())
        assert not taking.done()
        taking.cancel()
    assert member.considered[:2] == ["c", "c"]


@pytest.mark.parametrize("body", ["[" * 100_000, "", "5", '{"connectionId": 5}', '{"connectionId": ""}'])
async def test_a_message_that_nobody_can_read_is_left_to_the_dead_letter_queue(body: str) -> None:
    class Once:
        def __init__(self) -> None:
            self.messages = [
                {"ReceiptHandle": "bad", "Body": body},
                {"ReceiptHandle": "h", "Body": '{"connectionId": "c"}'},
            ]
            self.deleted: list[str] = []

        def receive_message(self, **_: Any) -> Any:
            messages, self.messages = self.messages, []
            return {"Messages": messages}

        def delete_message_batch(self, **request: Any) -> Any:
            self.deleted += [entry["ReceiptHandle"] for entry in request["Entries"]]

    member: Any = Member()
    client: Any = Once()
    with ThreadPoolExecutor(1) as pollers, ThreadPoolExecutor(1) as executor:
        assignments = Assignments(
            member, Queue(client, "https://queue"), pollers=pollers, executor=executor, rng=Random(1)
        )
        taking = asyncio.create_task(assignments.run())
        await until(lambda: client.deleted or taking.done())
        assert not taking.done()
        taking.cancel()
    assert client.deleted == ["h"]
    assert member.considered == ["c"]
