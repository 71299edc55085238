"""The Kinesis sink over real sockets: the emulator's stream, a fault proxy before it, a stream that does as told."""

import asyncio
import socket
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
import psutil
import pytest

from local.aws import Aws
from tests.integration.output.fake_stream import TAKEN, FakeStream, Record, failed, take
from tests.support.proxy import FOREVER, UNAVAILABLE, Call, Drop, FaultProxy, Lose, Rule
from tests.unit.worker.outputs import FakeGrant, until
from worker.clients import Clients
from worker.outbox import Budget, Outbox
from worker.output import Output
from worker.records import Entry, Header
from worker.sinks import Outcome, SinkUnavailable
from worker.sinks.kinesis import KinesisSink

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

DRAIN = 1.0

Connect = Callable[[str, str], KinesisSink]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a sink for a stream at an endpoint, with the worker's own client."""

    def connect(endpoint: str, stream: str) -> KinesisSink:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        return KinesisSink(Clients().kinesis(DRAIN), stream)

    return connect


@pytest.fixture
def proxy(aws: Aws) -> Iterator[FaultProxy]:
    with FaultProxy(aws.endpoint) as proxy:
        yield proxy


class Stream:
    """A stream of the emulator, read from its beginning."""

    def __init__(self, client: "KinesisClient", name: str) -> None:
        self.client = client
        self.name = name

    def records(self) -> list[Record]:
        """All output records, shard by shard."""
        return [
            orjson.loads(line)
            for shard in self.client.list_shards(StreamName=self.name)["Shards"]
            for data in self._read(shard["ShardId"])
            for line in data.splitlines()
        ]

    def _read(self, shard: str) -> Iterator[bytes]:
        iterator: str | None = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = self.client.get_records(ShardIterator=iterator)
            if not answer["Records"]:
                return
            yield from (record["Data"] for record in answer["Records"])
            iterator = answer.get("NextShardIterator")


@pytest.fixture
def stream(aws: Aws) -> Iterator[Stream]:
    client = aws.session.client("kinesis", endpoint_url=aws.endpoint, config=aws.config)
    name = f"stream-{uuid.uuid4().hex}"
    client.create_stream(StreamName=name, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    yield Stream(client, name)
    client.delete_stream(StreamName=name)
    client.close()


@asynccontextmanager
async def pumping(sink: KinesisSink) -> AsyncIterator[Output]:
    output = Output(
        sink,
        worker=lambda: "session-1",
        wall=time.time,
        budget=Budget(1 << 26, 4096, 100),
        connection_bytes=1 << 23,
    )
    task = asyncio.create_task(output.run())
    try:
        yield output
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), task.exception()


def begun(output: Output, *names: str) -> dict[str, Outbox]:
    boxes = {name: output.outbox(name) for name in names}
    for name, box in boxes.items():
        box.begin(FakeGrant(name), None)
    return boxes


def numbers(records: list[Record]) -> list[int]:
    return [int(record["data"]) for record in records if record["type"] == "message"]


def consumed(records: list[Record]) -> list[Record]:
    """What a consumer keeps: what is above the highest sequence number that it has seen."""
    kept: list[Record] = []
    for record in records:
        if not kept or record["seq"] > kept[-1]["seq"]:
            kept.append(record)
    return kept


async def flush(*boxes: Outbox) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(box.flush() for box in boxes))


async def test_every_connection_arrives_complete_and_in_order(connect: Connect, aws: Aws, stream: Stream) -> None:
    async with pumping(connect(aws.endpoint, stream.name)) as output:
        boxes = begun(output, *(f"c{n}" for n in range(30)))
        for n in range(200):
            for box in boxes.values():
                box.accept([str(n)], time.time())
            if n % 20 == 0:
                await asyncio.sleep(0.005)  # so that it goes out in several entries
        await flush(*boxes.values())
    records = stream.records()
    for name in boxes:
        own = [record for record in records if record["connectionId"] == name]
        assert [record["seq"] for record in own] == list(range(1, 201))
        assert numbers(own) == list(range(200))


@pytest.mark.parametrize(
    "fault", [Lose(), Lose(FOREVER), Drop(), Drop(FOREVER), UNAVAILABLE], ids=["lose", "hang", "drop", "mute", "500"]
)
async def test_whatever_happens_to_a_call_nothing_is_lost(
    connect: Connect, proxy: FaultProxy, stream: Stream, fault: Any
) -> None:
    def put(call: Call) -> bool:
        return call.operation == "PutRecords"

    async with pumping(connect(proxy.endpoint("worker"), stream.name)) as output:
        boxes = begun(output, "a", "b")
        with proxy.fault(Rule(fault, put, numbers={1, 2, 4})):
            for n in range(50):
                for box in boxes.values():
                    box.accept([str(n)], time.time())
                await asyncio.sleep(0.001)
            await flush(*boxes.values())
        assert output.counts().retries > 0
    records = stream.records()
    for name in boxes:
        own = [record for record in records if record["connectionId"] == name]
        assert numbers(consumed(own)) == list(range(50))


async def test_failures_of_single_records_are_sent_again_in_order(connect: Connect) -> None:
    def fail_a(records: list[Record]) -> tuple[int, Any]:
        results = [
            failed("ProvisionedThroughputExceededException") if record["PartitionKey"] == "a" else TAKEN
            for record in records
        ]
        return 200, {"FailedRecordCount": 1, "Records": results}

    def forget_last(records: list[Record]) -> tuple[int, Any]:
        return 200, {"FailedRecordCount": 0, "Records": [TAKEN] * (len(records) - 1)}

    with FakeStream(fail_a, fail_a, forget_last, forget_last) as fake:
        async with pumping(connect(fake.endpoint, "s")) as output:
            boxes = begun(output, "a", "b", "c")
            for n in range(30):
                for box in boxes.values():
                    box.accept([str(n)], 1.0)
                await asyncio.sleep(0.002)
            await flush(*boxes.values())
        for name in boxes:
            assert numbers(fake.lines(name)) == list(range(30))


async def test_a_record_refused_for_good_becomes_a_gap(connect: Connect) -> None:
    def judge(records: list[Record]) -> tuple[int, Any]:
        results = [failed("ValidationException") if record["PartitionKey"] == "a" else TAKEN for record in records]
        return 200, {"FailedRecordCount": 1, "Records": results}

    with FakeStream(judge) as fake:
        async with pumping(connect(fake.endpoint, "s")) as output:
            boxes = begun(output, "a", "b")
            boxes["a"].accept(["1"], 1.0)
            boxes["b"].accept(["2"], 1.0)
            await flush(*boxes.values())
        (gap,) = fake.lines("a")
        assert (gap["type"], gap["seq"], gap["code"]) == ("gap", 1, "ValidationException")
        assert numbers(fake.lines("b")) == [2]


async def test_a_call_refused_for_one_record_spares_the_others(connect: Connect) -> None:
    def judge(records: list[Record]) -> tuple[int, Any]:
        if any(record["PartitionKey"] == "a" and b"poison" in _data(record) for record in records):
            return 400, {"__type": "InvalidArgumentException", "message": "as told"}
        return take(records)

    with FakeStream(*[judge] * 50) as fake:
        async with pumping(connect(fake.endpoint, "s")) as output:
            boxes = begun(output, "a", "b", "c")
            for n, box in enumerate(boxes.values()):
                box.accept([str(n)], 1.0)
            boxes["a"].accept(["poison"], 1.0)
            await flush(*boxes.values())
        assert [record["type"] for record in fake.lines("a")] == ["message", "gap"]
        assert numbers(fake.lines("b")) == [1]
        assert numbers(fake.lines("c")) == [2]


def _data(record: Record) -> bytes:
    return b64decode(record["Data"])


async def test_an_error_of_the_set_up_is_waited_out(connect: Connect) -> None:
    """A missing permission or stream is nobody's fault in particular, and may be mended."""

    def denied(_: list[Record]) -> tuple[int, Any]:
        return 400, {"__type": "AccessDeniedException", "message": "as told"}

    with FakeStream(denied, denied) as fake:
        async with pumping(connect(fake.endpoint, "s")) as output:
            (box,) = begun(output, "a").values()
            box.accept(["1"], 1.0)
            await flush(box)
        assert numbers(fake.lines("a")) == [1]


# The fence


def entry(size: int = 10) -> Entry:
    header = Header(connection="c", epoch=1, worker="w")
    return Entry(header=header, first_seq=1, last_seq=1, data=b"x" * size)


class Listener:
    """A server of which a test decides whether it reads."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        # Inherited by what it accepts: it decides how much the kernel takes in without anybody reading.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.socket.settimeout(20)
        self.endpoint = f"http://127.0.0.1:{self.socket.getsockname()[1]}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


def test_a_permission_that_ends_while_connecting_stops_the_request(connect: Connect, listener: Listener) -> None:
    sink = connect(listener.endpoint, "s")
    with pytest.raises(SinkUnavailable):
        sink.put([entry()], lambda: False)
    accepted, _ = listener.socket.accept()
    with accepted:
        accepted.settimeout(20)
        received = b""
        with suppress(ConnectionResetError):
            received = accepted.recv(4096)
    assert received == b""


def test_the_permission_is_asked_when_the_connection_stands(connect: Connect) -> None:
    """The last moment counts: a process that was stopped while it resolved, connected or signed must not get past."""
    asked_at: list[tuple[str, ...]] = []
    with FakeStream() as fake:
        port = int(fake.endpoint.rpartition(":")[2])

        def may_send() -> bool:
            asked_at.append(_states(port))
            return True

        verdicts = connect(fake.endpoint, "s").put([entry()], may_send)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.TAKEN]
    assert [states.count("ESTABLISHED") for states in asked_at] == [1]


def _states(port: int) -> tuple[str, ...]:
    connections = psutil.Process().net_connections("tcp")
    return tuple(found.status for found in connections if tuple(found.raddr)[1:] == (port,))


def test_a_call_that_is_given_up_delivers_no_more(connect: Connect, listener: Listener) -> None:
    """What the kernel still holds of the request is dropped, not delivered when the receiver reads again."""
    sink = connect(listener.endpoint, "s")
    began = time.monotonic()
    with pytest.raises(SinkUnavailable):
        sink.put([entry(200_000)], lambda: True)
    assert time.monotonic() - began < 3 * DRAIN
    accepted, _ = listener.socket.accept()
    received = 0
    with accepted:
        accepted.settimeout(20)
        with suppress(ConnectionResetError):
            while data := accepted.recv(65536):
                received += len(data)
    assert received < 200_000


async def test_a_sink_that_hangs_does_not_hold_up_the_loop(connect: Connect, listener: Listener) -> None:
    async with pumping(connect(listener.endpoint, "s")) as output:
        boxes = begun(output, *(f"c{n}" for n in range(10)))
        for box in boxes.values():
            box.accept(["1"], 1.0)
        await until(lambda: output._failures)
        threads = {thread.name for thread in threading.enumerate()}
        assert any(name.startswith("sink") for name in threads)
        loop = asyncio.get_running_loop()
        lags = []
        for _ in range(20):
            asked = loop.time()
            await asyncio.sleep(0.01)
            lags.append(loop.time() - asked)
        assert sorted(lags)[10] < 0.2
