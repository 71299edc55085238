"""Bytes that no client library would send, through the gateway to the function: refused by name, and never 5xx.

What is in a body or a query is mostly tried on the function alone (tests/unit/lambdas); here is what a gateway might
change, hide or stumble over.
"""

import json
import socket
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

import pytest

from local.system import Deployed

TIMEOUT_SECONDS = 30.0
SIGNED = (
    b"Authorization: AWS4-HMAC-SHA256 Credential=local/20261129/us-east-1/execute-api/aws4_request, "
    b"SignedHeaders=host;x-amz-date, Signature=00\r\nX-Amz-Date: 20261129T000000Z"
)
"""The emulator asks for a signature and does not check it."""
GOOD = b'{"url":"ws://127.0.0.1:1/","desired":"PAUSED"}'


def send(
    stacks: Deployed, method: bytes, path: bytes, body: bytes = b"", headers: Sequence[bytes] = (SIGNED,)
) -> tuple[int, bytes]:
    """Send a request as it is; returns the status and the body of the answer."""
    api = urlsplit(stacks.api_url)
    lines = [
        b"%s %s%s HTTP/1.1" % (method, api.path.encode(), path),
        b"Host: %s" % api.netloc.encode(),
        b"Connection: close",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    with socket.create_connection((str(api.hostname), int(api.port or 80)), TIMEOUT_SECONDS) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), rest


def code(answer: bytes) -> str:
    """What an answer says is wrong."""
    found: str = json.loads(answer)["error"]["code"]
    return found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf" + GOOD,
        b'{"url":"wss://\xe4.example/"}',
        b'{"url":"wss://a.example/","onOpen":["\xed\xa0\x80"]}',
        b'{"url":"wss://a.example/","onOpen":["\xc0\xaf"]}',
        b'{"url":"wss://a.example/","onOpen":["\\ud800"]}',
        b'{"url":"wss://a.example/","\\ud800":1}',
        b'{"url":"wss://a.example/","staleAfterSeconds":NaN}',
        b'{"url":"wss://a.example/","staleAfterSeconds":1e400}',
        b'{"url":"wss://a.example/","staleAfterSeconds":' + b"9" * 5000 + b"}",
        b'{"url":"wss://a.example/","\\u0075rl":"wss://127.0.0.1/"}',
        b"[" * 20_000,
        GOOD + b"\x00",
        b"\x1f\x8b\x08\x00",
    ],
    ids=lambda body: ascii(body)[:40],
)
@pytest.mark.parametrize("kind", [b"application/json", b"text/plain", b"\xff", b""], ids=ascii)
def test_what_is_no_json_is_refused_whatever_it_calls_itself(stacks: Deployed, body: bytes, kind: bytes) -> None:
    status, answer = send(stacks, b"POST", b"/connections", body, (SIGNED, b"Content-Type: " + kind))

    assert (status, code(answer)) == (HTTPStatus.BAD_REQUEST, "invalid_json")


@pytest.mark.parametrize("size", [48 * 1024 + 1, 1024 * 1024, 11 * 1024 * 1024])
def test_what_is_too_large_is_refused(stacks: Deployed, size: int) -> None:
    status, answer = send(stacks, b"POST", b"/connections", b" " * size)

    assert (status, code(answer)) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large")


@pytest.mark.parametrize(
    "key", [b"", b" ", b"\xc3\xa9", b"\xff", b"a\tb", b"\x01", b"x" * 256, b"x" * 8000], ids=lambda key: ascii(key)[:20]
)
def test_keys_that_are_none_are_refused(stacks: Deployed, key: bytes) -> None:
    status, answer = send(stacks, b"POST", b"/connections", GOOD, (SIGNED, b"Idempotency-Key: " + key))

    assert (status, json.loads(answer)["error"]["field"]) == (HTTPStatus.BAD_REQUEST, "Idempotency-Key")


@pytest.mark.parametrize(
    "header",
    [
        b"X-Forwarded-For: \x01",
        b"Sec-WebSocket-Key: x",
        b"Upgrade: websocket",
        b"X-HTTP-Method-Override: DELETE",
        b"Content-Encoding: gzip",
        b"Cookie: \xff\xfe",
        b"Content-Type: application/json; charset=utf-16",
    ],
    ids=ascii,
)
def test_headers_that_mean_nothing_here_change_nothing(stacks: Deployed, header: bytes) -> None:
    assert send(stacks, b"POST", b"/connections", GOOD, (SIGNED, header))[0] == HTTPStatus.ACCEPTED


@pytest.mark.parametrize(
    "name",
    [
        b"x", b"%00", b"a%00", b"%0d%0aX:%20y", b"%ff", b"%ed%a0%80", b"%C3%A9", b"%", b"%zz", b"..", b"%2e%2e", b"*",
        b"~", b"'", b"%22", b"null", b"LEASE", b"CONNECTION%23x", b"%7Bid%7D", b"a;b", b"A" * 26, b"a" * 25, b"a" * 27,
        b"a" * 3000, b"a" * 20_000,
    ],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
def test_names_of_nothing_are_not_found(stacks: Deployed, name: bytes) -> None:
    for method, path, body in (
        (b"GET", b"/connections/%s", b""),
        (b"PATCH", b"/connections/%s", b"{}"),
        (b"DELETE", b"/connections/%s", b""),
        (b"POST", b"/connections/%s/force-release", b'{"killSession":true}'),
        (b"POST", b"/workers/%s/drain", b""),
    ):
        status, answer = send(stacks, method, path % name, body)
        assert (status, code(answer)) == (HTTPStatus.NOT_FOUND, "not_found"), (method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"PUT", b"/connections"),
        (b"DELETE", b"/connections"),
        (b"TRACE", b"/connections"),
        (b"FOO", b"/connections"),
        (b"GET", b""),
        (b"GET", b"/"),
        (b"GET", b"/CONNECTIONS"),
        (b"GET", b"/connections/../workers/x"),
        (b"GET", b"/connections/a%2Fb"),
        (b"POST", b"/connections/x/force-release/y"),
        (b"GET", b"/workers/x"),
        (b"GET", b"/" + b"a" * 9000),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_routes_that_are_none_end_at_the_gateway(stacks: Deployed, method: bytes, path: bytes) -> None:
    status, answer = send(stacks, method, path, b"{}")

    assert (status, code(answer)) == (HTTPStatus.FORBIDDEN, "not_signed_or_no_such_route")


def test_nothing_is_done_for_who_has_not_signed(stacks: Deployed) -> None:
    for method, path in ((b"POST", b"/connections"), (b"GET", b"/workers"), (b"GET", b"/connections/" + b"a" * 26)):
        status, answer = send(stacks, method, path, GOOD, ())
        assert (status, code(answer)) == (HTTPStatus.FORBIDDEN, "not_signed_or_no_such_route")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"%ed%a0%80=x", None),
        (b"x[]=1", "x[]"),
        (b"?", "?"),
        (b"STATUS=OPEN", "STATUS"),
        (b"status=OPEN;owner=x", "status"),
        (b"status=OPEN&status=OPEN", "status"),
        (b"cursor=%ff", "cursor"),
        (b"cursor=" + b"A" * 5000, "cursor"),
        (b"label=%00%3Dx", "label"),
        (b"label=a=%00", "label"),
        (b"x" * 5000 + b"=1", "x" * 128),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_parameters_that_are_wrong_are_named(stacks: Deployed, query: bytes, field: str | None) -> None:
    status, answer = send(stacks, b"GET", b"/connections?" + query)

    assert status == HTTPStatus.BAD_REQUEST
    assert field in (None, json.loads(answer)["error"]["field"])


@pytest.mark.parametrize(
    "query",
    [
        b"owner=%ff",
        b"owner=%ed%a0%80",
        b"owner=FREE%230",
        b"owner=" + b"x" * 3000,
        b"label=a%3D%F0%9F%98%80",
        b"&&",
        b"",
    ],
    ids=lambda query: ascii(query)[:30],
)
def test_odd_filters_find_nothing_or_everything(stacks: Deployed, query: bytes) -> None:
    assert send(stacks, b"GET", b"/connections?" + query)[0] == HTTPStatus.OK
