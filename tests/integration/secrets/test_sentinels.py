"""Words that stand for secrets go through every path that can fail, and are then looked for in all that can be read.

The query of a URL, header values, subprotocols and frames may be in the row that holds the request, and nowhere else;
what `secretRefs` refer to nowhere at all.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from local.api import Answer
from local.processes import Processes
from local.reader import records
from tests.support.certificates import Authority
from tests.support.proxy import UNAVAILABLE, Call, Rule
from tests.support.upstream import CLOSE, TEXT, Peer, RawUpstream, close, frame, text
from tests.support.watched import Watched, until, watched

QUERY, HEADER, PROTOCOL, FRAME, PING, REFERENCE, FIELD = (
    f"SENTINEL-{name}" for name in ("93f1q", "77aah", "5c0dp", "b21ef", "0e4dg", "d8d8r", "41ccf")
)
IN_REQUESTS = (QUERY, HEADER, PROTOCOL, FRAME, PING)
REFERRED_TO = (REFERENCE, FIELD)
ALL = (*IN_REQUESTS, *REFERRED_TO)
SECRETS = {
    "websocket-fleet/plain": REFERENCE,
    "websocket-fleet/json": json.dumps({"token": FIELD}),
    "websocket-fleet/broken": f"{REFERENCE}\r\nX-Evil: {FIELD}",
}

Respond = Callable[[Peer], Any]


async def ok(peer: Peer) -> None:
    await peer.upgrade({"Sec-WebSocket-Protocol": PROTOCOL})
    await peer.serve()


async def unauthorized(peer: Peer) -> None:
    """A status line, headers and a body that repeat what was sent."""
    await peer.answer(f"401 {HEADER}", {"WWW-Authenticate": peer.headers["x-key"]}, peer.path.encode())


async def busy(peer: Peer) -> None:
    await peer.answer("503 Service Unavailable", {"Retry-After": QUERY, "X-Path": peer.path})


async def elsewhere(peer: Peer) -> None:
    await peer.answer("302 Found", {"Location": peer.path})


async def other_protocol(peer: Peer) -> None:
    await peer.upgrade({"Sec-WebSocket-Protocol": f"not-{PROTOCOL}"})
    await peer.until_closed()


async def broken_handshake(peer: Peer) -> None:
    await peer.send(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: {HEADER}\r\n{QUERY}\r\n\r\n".encode())


async def too_big(peer: Peer) -> None:
    await peer.upgrade({"Sec-WebSocket-Protocol": PROTOCOL})
    await peer.send(text(f"{QUERY} {REFERENCE}" * 100))
    await peer.until_closed()


async def not_utf8(peer: Peer) -> None:
    await peer.upgrade({"Sec-WebSocket-Protocol": PROTOCOL})
    await peer.send(frame(TEXT, f"{QUERY} {REFERENCE}".encode() + b"\xff"))
    await peer.until_closed()


async def echo(peer: Peer) -> None:
    """Close with a reason that repeats what was sent."""
    await peer.upgrade({"Sec-WebSocket-Protocol": PROTOCOL})
    said = (await peer.expect(TEXT)).payload.decode()
    await peer.send(close(4000, f"bad: {peer.path.partition('?')[2]} {peer.headers['x-key']} {said}"[:120]))
    await peer.expect(CLOSE)


async def silent(peer: Peer) -> None:
    await peer.upgrade({"Sec-WebSocket-Protocol": PROTOCOL})
    await peer.until_closed()


RESPONSES: Mapping[str, Respond] = {
    f"/{respond.__name__}": respond
    for respond in (
        ok, unauthorized, busy, elsewhere, other_protocol, broken_handshake, too_big, not_utf8, echo, silent
    )
}  # fmt: skip


async def no_tls(peer: Peer) -> None:
    """Answers a TLS greeting in plain HTTP."""
    await peer.reader.read(1)
    await peer.answer("400 Bad Request")


async def script(peer: Peer) -> None:
    await peer.request()
    await RESPONSES[peer.path.partition("?")[0]](peer)


def request(url: str, **fields: Any) -> dict[str, Any]:
    """A request with every sentinel in it."""
    return {
        "url": f"{url}?token={QUERY}&key=${{plain}}",
        "headers": {"X-Key": f"{HEADER} ${{json}}"},
        "secretRefs": {"plain": "websocket-fleet/plain", "json": "websocket-fleet/json#token"},
        "subprotocols": [PROTOCOL],
        "onOpen": [f"{FRAME} ${{plain}}"],
        "appPing": {"payload": f"{PING} ${{json}}", "intervalSeconds": 1},
        "limits": {"maxMessageBytes": 1024},
        **fields,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """All that the fleet has left to be read."""

    replies: Sequence[Answer]
    log: str
    records: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    calls: Sequence[Call]
    statuses: Mapping[str, Mapping[str, Any]]
    """The last observed state, by the name of the path that failed."""
    arrived: str
    """What the upstreams were sent."""


class Run:
    """Sends requests to the API, and keeps the answers."""

    def __init__(self, fleet: Watched) -> None:
        self.fleet = fleet
        self.replies: list[Answer] = []
        self.connections: dict[str, str] = {}

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Answer:
        answer = self.fleet.api.call(method, path, body, headers={"Idempotency-Key": key} if key else None)
        self.replies.append(answer)
        return answer

    def connect(self, name: str, body: Mapping[str, Any]) -> None:
        # The answer 503 holds up a whole group.
        answer = self.call("POST", "/connections", {**body, "group": name}, key=name)
        assert answer.status == HTTPStatus.ACCEPTED, answer
        self.connections[name] = answer.body["connectionId"]

    def status(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.call("GET", f"/connections/{self.connections[name]}").body["status"]
        return found


def work(fleet: Watched, plain: RawUpstream, encrypted: RawUpstream, without: RawUpstream) -> Run:
    """Every path that a request can take, the failures above all."""
    run = Run(fleet)
    for name, value in SECRETS.items():
        fleet.client("secretsmanager").create_secret(Name=name, SecretString=value)
    (task,) = fleet.start(1)
    for path in RESPONSES:
        run.connect(path, request(plain.url(path)))
    run.connect("dns", request("wss://no-such-host.example.com/"))
    run.connect("tls", request(without.url("/ok").replace("ws://", "wss://")))
    run.connect("certificate", request(encrypted.url("/ok")))
    run.connect("refused", request("ws://127.0.0.1:1/"))
    run.connect("no-secret", request(plain.url("/ok"), secretRefs=refs("websocket-fleet/none")))
    run.connect("no-field", request(plain.url("/ok"), secretRefs=refs("websocket-fleet/json#other")))
    run.connect("no-document", request(plain.url("/ok"), secretRefs=refs("websocket-fleet/plain#token")))
    run.connect("broken-header", request(plain.url("/ok"), secretRefs=refs("websocket-fleet/broken")))
    patient = {"waitFor": {"contains": PING, "timeoutSeconds": 1}}
    run.connect("wait-for", request(plain.url("/silent"), onOpen=[FRAME, patient]))
    for name in run.connections.keys() - {"/ok", "/silent"}:
        fails(run, name)
    opens(run)
    refuse(run, plain)
    run.call("PATCH", f"/connections/{run.connections['/ok']}", {"headers": {"X-Key": HEADER, "X-New": HEADER}})
    os.kill(task.worker_pids[0], signal.SIGKILL)
    opens(run)
    for query in ("", "?status=FAILED", f"?owner={next(iter(fleet.workers()))}"):
        run.call("GET", f"/connections{query}")
    fleet.invoke("audit", {})
    return run


def refs(secret: str) -> dict[str, str]:
    return {"plain": secret, "json": secret}


def fails(run: Run, name: str) -> None:
    until(lambda: {"reason", "lastClose"} & run.status(name).keys(), f"{name} has not failed")


def opens(run: Run) -> None:
    until(lambda: run.status("/ok")["state"] == "OPEN", "not open")


def refuse(run: Run, plain: RawUpstream) -> None:
    """Requests that are not accepted, for whatever reason."""
    good = request(plain.url("/ok"), group="/ok")
    bad: list[tuple[HTTPStatus, dict[str, Any]]] = [
        (HTTPStatus.CONFLICT, {**good, "headers": {"X-Key": f"{HEADER}-2"}}),
        (HTTPStatus.BAD_REQUEST, {**good, "headers": {"X-Key": f"{HEADER}\n{QUERY}"}}),
        (HTTPStatus.BAD_REQUEST, {**good, "subprotocols": [f"{PROTOCOL} {QUERY}"]}),
        (HTTPStatus.BAD_REQUEST, {**good, "onOpen": [{"base64": FRAME}]}),
        (HTTPStatus.BAD_REQUEST, {**good, "url": f"wss://{QUERY}:{HEADER}@feed.example.com/"}),
        (HTTPStatus.BAD_REQUEST, {**good, "url": f"wss://feed.example.com/#{QUERY}"}),
        (HTTPStatus.BAD_REQUEST, {**good, "url": f"ws://10.0.0.1/?token={QUERY}"}),
        (HTTPStatus.BAD_REQUEST, {**good, "desired": FRAME}),
        (HTTPStatus.BAD_REQUEST, {**good, "appPing": PING}),
    ]
    for status, body in bad:
        assert run.call("POST", "/connections", body, key="/ok").status == status
    with run.fleet.proxy.fault(Rule(UNAVAILABLE, lambda call: call.caller == "api")):
        assert run.call("POST", "/connections", good, key="new").status == HTTPStatus.SERVICE_UNAVAILABLE
    failed = run.fleet.invoke("api", {"body": json.dumps(good), "headers": {"x-key": HEADER}})
    assert "errorType" in failed
    run.replies.append(Answer(HTTPStatus.INTERNAL_SERVER_ERROR, {}, failed))


async def collect(fleet: Watched, folder: Path) -> Traces:
    """Do the work, and gather what it has left behind."""
    context = Authority(folder).server("localhost")
    async with (
        RawUpstream(script) as plain,
        RawUpstream(script, context=context) as encrypted,
        RawUpstream(no_tls) as without,
    ):
        run = await asyncio.to_thread(work, fleet, plain, encrypted, without)
        arrived = [(peer.path, peer.headers, peer.texts()) for peer in plain.peers]
        statuses = await asyncio.to_thread(lambda: {name: run.status(name) for name in run.connections})
    for task in fleet.running.tasks.started:
        await asyncio.to_thread(task.stop, 30.0)
    found = []
    for batch in records(fleet.stacks.aws, fleet.stacks.outputs["StreamName"]):
        if not batch:
            break
        found += batch
    return Traces(
        replies=run.replies,
        log=fleet.logged(),
        records=found,
        rows=fleet.rows(),
        calls=fleet.calls,
        statuses=statuses,
        arrived=json.dumps(arrived),
    )


@pytest.fixture(scope="module")
def traces(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    with watched(processes, {"POWERTOOLS_LOG_LEVEL": "DEBUG"}) as fleet:
        yield asyncio.run(collect(fleet, tmp_path_factory.mktemp("certificates")))


def shown(things: object) -> set[str]:
    """The sentinels in something."""
    return set(re.findall("|".join(ALL), things if isinstance(things, str) else json.dumps(things, default=str)))


@pytest.mark.parametrize("word", ALL)
def test_the_upstream_is_told(traces: Traces, word: str) -> None:
    assert word in traces.arrived


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/unauthorized", "auth"),
        ("/busy", "http_503"),
        ("/elsewhere", "http_302"),
        ("/other_protocol", "subprotocol"),
        ("/broken_handshake", "handshake"),
        ("/too_big", "message_too_big"),
        ("/not_utf8", "invalid_data"),
        # It may be open again by now.
        ("/echo", '"code": 4000'),
        ("dns", "dns"),
        ("tls", "tls"),
        ("certificate", "certificate"),
        ("refused", "tcp"),
        ("no-secret", "secret"),
        ("no-field", "secret"),
        ("no-document", "secret"),
        ("broken-header", "secret"),
        ("wait-for", "wait_for"),
    ],
)
def test_each_path_fails_as_it_is_meant_to(traces: Traces, name: str, reason: str) -> None:
    assert reason in json.dumps(traces.statuses[name])


def test_no_reply_shows_a_secret(traces: Traces) -> None:
    assert not shown([(answer.headers, answer.body) for answer in traces.replies])


def test_no_log_line_and_no_metric_shows_a_secret(traces: Traces) -> None:
    assert '"level":"DEBUG"' in traces.log or '"level":"INFO"' in traces.log
    assert "_aws" in traces.log
    assert not [line for line in traces.log.splitlines() if shown(line)]


def test_no_output_record_shows_a_secret(traces: Traces) -> None:
    assert {"opened", "closed"} <= {record["type"] for record in traces.records}
    assert not [record for record in traces.records if shown(record)]


def test_no_row_but_that_of_the_request_shows_a_secret(traces: Traces) -> None:
    requests = [row for row in traces.rows if row["sk"]["S"].startswith("SPEC#")]

    assert shown(requests) == set(IN_REQUESTS)
    assert not [row for row in traces.rows if row not in requests and shown(row)]


def test_nothing_is_sent_to_a_service_but_the_row_of_the_request(traces: Traces) -> None:
    """Queue messages among it, those that are gone included."""
    sent = [part for call in traces.calls for part in parts(call)]
    requests = [
        part for part in sent if part.get("Update", {}).get("Key", {}).get("sk", {}).get("S", "")[:5] == "SPEC#"
    ]

    assert {"SendMessageBatch", "PutRecords"} <= {call.operation for call in traces.calls}
    assert shown(requests) == set(IN_REQUESTS)
    assert not [part for part in sent if part not in requests and shown(part)]


def parts(call: Call) -> Sequence[Mapping[str, Any]]:
    """What a call asks for: the parts of a transaction one by one."""
    transaction: Sequence[Mapping[str, Any]] = call.body.get("TransactItems", [call.body])
    return transaction
