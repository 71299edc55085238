"""The FIFO queue sink against the emulator, through a fault proxy."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from local.aws import Aws
from tests.support.proxy import UNAVAILABLE, Call, FaultProxy, Lose, Rule
from worker.clients import HINTS, Clients
from worker.records import Entry, Header
from worker.sinks import Outcome, SinkUnavailable
from worker.sinks.sqs_fifo import SqsFifoSink

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


@dataclass
class Place:
    proxy: FaultProxy
    sink: SqsFifoSink
    client: "SQSClient"
    url: str

    def received(self, messages: int) -> list[list[dict[str, Any]]]:
        """The records of so many messages, as a consumer of the queue reads them."""
        found: list[list[dict[str, Any]]] = []
        give_up = time.monotonic() + 30
        while len(found) < messages and time.monotonic() < give_up:
            answer = self.client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10)
            for message in answer.get("Messages", ()):
                found.append([orjson.loads(line) for line in message["Body"].splitlines()])
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        return found

    def empty(self) -> bool:
        return "Messages" not in self.client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10)


@pytest.fixture
def place(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with FaultProxy(aws.endpoint) as proxy:
        for name, value in {**aws.environment, "AWS_ENDPOINT_URL": proxy.endpoint("worker")}.items():
            monkeypatch.setenv(name, value)
        clients = Clients()
        client = clients.sqs(HINTS)
        url = client.create_queue(QueueName=f"out-{uuid.uuid4().hex}.fifo", Attributes={"FifoQueue": "true"})[
            "QueueUrl"
        ]
        yield Place(proxy, SqsFifoSink(clients.fifo(1.0), url), client, url)
        client.delete_queue(QueueUrl=url)


def entry(connection: str, first: int, last: int, text: str = "x") -> Entry:
    lines = [
        orjson.dumps({"seq": seq, "data": text}, option=orjson.OPT_APPEND_NEWLINE) for seq in range(first, last + 1)
    ]
    header = Header(connection=connection, epoch=3, worker="w")
    return Entry(header=header, first_seq=first, last_seq=last, data=b"".join(lines))


def seqs(messages: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[record["seq"] for record in message] for message in messages]


def test_entries_become_messages(place: Place) -> None:
    verdicts = place.sink.put([entry("a", 1, 3), entry("b", 1, 1)], lambda: True)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.TAKEN] * 2
    assert sorted(seqs(place.received(2))) == [[1], [1, 2, 3]]


def test_what_was_taken_though_its_answer_was_lost_is_not_doubled(place: Place) -> None:
    def put(call: Call) -> bool:
        return call.operation == "SendMessageBatch"

    with place.proxy.fault(Rule(Lose(), put)), pytest.raises(SinkUnavailable):
        place.sink.put([entry("a", 1, 2)], lambda: True)
    place.sink.put([entry("a", 1, 2)], lambda: True)
    assert seqs(place.received(1)) == [[1, 2]]
    assert place.empty()


def test_a_repetition_with_more_behind_it_is_not_taken_for_the_same(place: Place) -> None:
    place.sink.put([entry("a", 1, 2)], lambda: True)
    place.sink.put([entry("a", 1, 4)], lambda: True)
    assert seqs(place.received(2)) == [[1, 2], [1, 2, 3, 4]]


def test_an_outage_is_unavailability(place: Place) -> None:
    with place.proxy.fault(Rule(UNAVAILABLE, lambda call: call.service == "sqs")), pytest.raises(SinkUnavailable):
        place.sink.put([entry("a", 1, 1)], lambda: True)


def test_characters_that_the_queue_refuses_arrive_all_the_same(place: Place) -> None:
    text = 'a\uffff\ufffe\x00\x1f"\\\U0001f600'
    place.sink.put([entry("a", 1, 1, text)], lambda: True)
    ((record,),) = place.received(1)
    assert record["data"] == text


def test_nothing_is_sent_without_permission(place: Place) -> None:
    with pytest.raises(SinkUnavailable):
        place.sink.put([entry("a", 1, 1)], lambda: False)
    assert place.empty()
