"""A fault proxy in front of the AWS emulator: it loses, delays, refuses and counts calls, and a test says which.

Each caller has a port of its own, so that one of them alone can be struck. A fault is a rule that can be added and
removed at any time. What is counted is what DynamoDB would bill: units by caller and operation.
"""

import asyncio
import json
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

FOREVER = 3600.0
"""A silence that every caller gives up on."""
HEAD_LIMIT = 64 * 1024
KEPT_ANSWERS = 64
"""Answers remembered of each index query, for `Stale`."""
IDLE_SECONDS = 20.0
"""A connection to the emulator that was idle for longer is replaced, well before the emulator closes it."""

READS = frozenset({"BatchGetItem", "GetItem", "Query", "Scan", "TransactGetItems"})
WRITES = frozenset({"BatchWriteItem", "DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"})


# Calls


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a caller."""

    caller: str
    service: str
    """As in the scope of its signature: dynamodb, sqs, kinesis."""
    operation: str
    body: Mapping[str, Any]

    @property
    def pk(self) -> str:
        """The partition key that it names; empty if none."""
        value: str = self.body.get("Key", {}).get("pk", {}).get("S", "")
        return value

    @property
    def attributes(self) -> frozenset[str]:
        """The attribute names in its expressions."""
        return frozenset(self.body.get("ExpressionAttributeNames", {}).values())


When = Callable[[Call], bool]


def to_table(call: Call) -> bool:
    """Any call to DynamoDB."""
    return call.service == "dynamodb"


def table_write(call: Call) -> bool:
    """Any write to DynamoDB."""
    return to_table(call) and call.operation in WRITES


def conditional_write(call: Call) -> bool:
    """A write to DynamoDB with a condition."""
    return table_write(call) and ("ConditionExpression" in call.body or call.operation == "TransactWriteItems")


def index_query(call: Call) -> bool:
    """A reading of an index."""
    return call.operation == "Query" and "IndexName" in call.body


def heartbeat(call: Call) -> bool:
    """The write with which a session shows that it lives."""
    return (
        call.operation == "UpdateItem"
        and call.pk.startswith("SESSIONS#")
        and {"seq", "held"} <= call.attributes
        and "opened_at" not in call.attributes
    )


def claim(call: Call) -> bool:
    """The write that makes a session the owner of a connection."""
    return (
        call.operation == "UpdateItem"
        and call.pk.startswith("CONNECTION#")
        and {"grant", "epoch", "desired"} <= call.attributes
    )


# Faults


@dataclass(frozen=True, slots=True)
class Drop:
    """The request never arrives. The caller hears nothing for `silence` seconds, should it wait, and then a reset."""

    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Lose:
    """The request is carried out and its answer lost. What the caller hears is as with `Drop`."""

    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Delay:
    """The request arrives late, even when its caller has given up by then."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """The service answers with an error, and has done nothing."""

    status: HTTPStatus
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Stale:
    """An index answers as it did this many seconds ago; if nobody asked then, as one that knows of no such row yet."""

    seconds: float


Fault = Drop | Lose | Delay | Fail | Stale

UNAVAILABLE = Fail(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", "Internal server error")
THROTTLED = Fail(
    HTTPStatus.BAD_REQUEST,
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    "The level of configured provisioned throughput for the table was exceeded. "
    "Consider increasing your provisioning level with the UpdateTable API.",
)
"""As DynamoDB says it (API reference, "Handling errors": HTTP 400, to be retried)."""


@dataclass(slots=True, eq=False)
class Rule:
    """Strikes calls `when` holds for: a random share of them, or those with certain numbers."""

    fault: Fault
    when: When = to_table
    share: float = 1.0
    numbers: Collection[int] | None = None
    """Which calls, counted from 1 for each value of `key`; None: all."""
    key: Callable[[Call], Hashable] = field(default=lambda call: None)
    struck: int = 0
    seen: Counter[Hashable] = field(default_factory=Counter)

    def strikes(self, call: Call, rng: Random) -> bool:
        """Whether this call is struck."""
        if not self.when(call):
            return False
        key = self.key(call)
        self.seen[key] += 1
        if self.numbers is not None and self.seen[key] not in self.numbers:
            return False
        hit = rng.random() < self.share
        self.struck += hit
        return hit


@dataclass(slots=True)
class Usage:
    """What some calls have cost."""

    calls: int = 0
    refused: int = 0
    """Conditions that did not hold. DynamoDB bills them as writes."""
    read_units: float = 0.0
    write_units: float = 0.0
    """Of the table."""
    index_units: float = 0.0
    """Write units of its indexes."""


# The proxy


@dataclass(frozen=True, slots=True)
class _Message:
    """A request or an answer: its first line and headers as they came, and its body."""

    head: bytes
    headers: Mapping[str, str]
    body: bytes

    @property
    def wire(self) -> bytes:
        return self.head + b"\r\n\r\n" + self.body


@dataclass(slots=True)
class _Upstream:
    """A connection to the emulator, used by one connection of a caller."""

    host: str
    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    used_at: float = 0.0

    async def ask(self, request: _Message) -> _Message:
        """Pass a request on."""
        if self.streams is None or self.streams[0].at_eof() or time.monotonic() - self.used_at > IDLE_SECONDS:
            self.close()
            self.streams = await asyncio.open_connection(self.host, self.port, limit=HEAD_LIMIT)
        reader, writer = self.streams
        writer.write(request.wire)
        answer = await _read(reader)
        if answer is None:
            raise ConnectionResetError("the emulator closed the connection")
        self.used_at = time.monotonic()
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Close it, if it is open."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


class FaultProxy:
    """Runs in a thread of its own, so that a test may block. All methods may be called from any thread."""

    def __init__(self, endpoint: str, seed: int = 0) -> None:
        split = urlsplit(endpoint)
        self._host, self._port = str(split.hostname), int(split.port or 80)
        self._rng = Random(seed)
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._usage: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
        self._answers: defaultdict[str, deque[tuple[float, _Message]]] = defaultdict(lambda: deque(maxlen=KEPT_ANSWERS))
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def endpoint(self, caller: str) -> str:
        """Open a port for a caller; returns the URL that it is to use as its endpoint."""
        return asyncio.run_coroutine_threadsafe(self._listen(caller), self._loop).result()

    @contextmanager
    def fault(self, *rules: Rule) -> Iterator[None]:
        """Have rules in force for a while; the first that strikes a call decides."""
        with self._lock:
            self._rules += rules
        try:
            yield
        finally:
            with self._lock:
                self._rules = tuple(rule for rule in self._rules if rule not in rules)

    def usage(self) -> dict[tuple[str, str], Usage]:
        """What callers have used so far, by caller and `service.operation`."""
        with self._lock:
            return {key: replace(used) for key, used in self._usage.items()}

    # In the proxy's thread

    async def _listen(self, caller: str) -> str:
        server = await asyncio.start_server(
            lambda reader, writer: self._accept(caller, reader, writer), "127.0.0.1", 0, limit=HEAD_LIMIT
        )
        self._servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def _accept(self, caller: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(caller, reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, caller: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = _Upstream(self._host, self._port)
        try:
            while (request := await _read(reader)) is not None:
                call = _call(caller, request)
                answer = await self._answer(call, _asking_for_units(call, request), reader, upstream)
                if answer is None:
                    _reset(writer)
                    return
                writer.write(answer.wire)
                await writer.drain()
        except OSError:
            _reset(writer)
        finally:
            upstream.close()
            writer.close()

    async def _answer(
        self, call: Call, request: _Message, reader: asyncio.StreamReader, upstream: _Upstream
    ) -> _Message | None:
        """What the caller gets; None: a reset."""
        fault = self._strike(call)
        match fault:
            case Drop(silence):
                await _silence(reader, silence)
                return None
            case Fail(status, code, message):
                return _error(status, code, message)
            case Delay(seconds):
                await asyncio.sleep(seconds)
        answer = await upstream.ask(request)
        self._note(call, answer)
        match fault:
            case Lose(silence):
                await _silence(reader, silence)
                return None
            case Stale(seconds) if index_query(call):
                return self._as_it_was(call, seconds)
        return answer

    def _strike(self, call: Call) -> Fault | None:
        with self._lock:
            return next((rule.fault for rule in self._rules if rule.strikes(call, self._rng)), None)

    def _note(self, call: Call, answer: _Message) -> None:
        if index_query(call):
            self._answers[_query(call)].append((time.monotonic(), answer))
        with self._lock:
            used = self._usage[call.caller, f"{call.service}.{call.operation}"]
            used.calls += 1
            if call.operation in READS | WRITES:
                _add_units(used, call, json.loads(answer.body))

    def _as_it_was(self, call: Call, seconds: float) -> _Message:
        until = time.monotonic() - seconds
        old = [answer for at, answer in self._answers[_query(call)] if at <= until]
        return old[-1] if old else _reply(HTTPStatus.OK, {"Items": [], "Count": 0, "ScannedCount": 0})


def _query(call: Call) -> str:
    return json.dumps(call.body, sort_keys=True)


def _add_units(used: Usage, call: Call, answer: Mapping[str, Any]) -> None:
    """The units that an answer names; what the emulator does not count is counted as DynamoDB would."""
    if answer.get("__type", "").endswith("ConditionalCheckFailedException"):
        # Billed by the size of the row that is there; rows are at most 1 KB.
        used.refused += 1
        used.write_units += 1
        return
    named = answer.get("ConsumedCapacity", [])
    parts = named if isinstance(named, list) else [named]
    units = sum(part.get("CapacityUnits", 0.0) for part in parts)
    of_index = sum(
        index.get("CapacityUnits", 0.0)
        for part in parts
        for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes")
        for index in part.get(kind, {}).values()
    )
    if call.operation == "BatchGetItem" and not parts:
        wanted = call.body["RequestItems"].values()
        units = sum(len(keys["Keys"]) * (1.0 if keys.get("ConsistentRead") else 0.5) for keys in wanted)
    if call.operation in READS:
        used.read_units += units
    else:
        used.index_units += of_index
        used.write_units += units - of_index


# The wire


async def _read(reader: asyncio.StreamReader) -> _Message | None:
    """The next message; None at the end. Only what the SDK and the emulator send: a body has a Content-Length."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        lines = head.decode("latin-1").split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "transfer-encoding" in headers:
            raise NotImplementedError("a body in chunks")
        return _Message(head, headers, await reader.readexactly(int(headers.get("content-length", 0))))
    except asyncio.IncompleteReadError:
        return None


def _call(caller: str, request: _Message) -> Call:
    scope = request.headers.get("authorization", "").partition("Credential=")[2].split(",")[0].split("/")
    service = scope[3] if len(scope) > 3 else ""
    operation = request.headers.get("x-amz-target", "").rpartition(".")[2]
    return Call(caller, service, operation, json.loads(request.body) if operation else {})


def _asking_for_units(call: Call, request: _Message) -> _Message:
    if not to_table(call) or call.operation not in READS | WRITES or "ReturnConsumedCapacity" in call.body:
        return request
    body = json.dumps({**call.body, "ReturnConsumedCapacity": "INDEXES"}).encode()
    lines = [line for line in request.head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return _Message(b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]), request.headers, body)


def _reply(status: HTTPStatus, document: Mapping[str, Any]) -> _Message:
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}"
    )
    return _Message(head.encode(), {}, body)


def _error(status: HTTPStatus, code: str, message: str) -> _Message:
    return _reply(status, {"__type": code, "message": message})


async def _silence(reader: asyncio.StreamReader, seconds: float) -> None:
    """Stay silent, but not for longer than the caller listens."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        pass


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a host does that knows nothing of the connection."""
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
