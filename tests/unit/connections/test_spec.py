"""The connection request: every field, every limit, and what a refusal says."""

import base64
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connections.placeholders import fill, fill_url
from connections.refusal import Refusal
from connections.spec import (
    FORBIDDEN_HEADERS,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_LABELS,
    MAX_MESSAGE_BYTES,
    MAX_STEPS,
    ConnectionRequest,
    ConnectionSpec,
    spec_of,
    validate,
)
from connections.strict_json import canonical

URL = "wss://feed.example.com/ws"

EVERYTHING: dict[str, Any] = {
    "url": URL + "?token=${feedToken}",
    "headers": {"Authorization": "Bearer ${feedToken}", "Origin": "https://example.com", "X-Empty": ""},
    "secretRefs": {"feedToken": "websocket-fleet/feed#token"},
    "subprotocols": ["graphql-transport-ws", "mqtt"],
    "onOpen": [
        "plain text",
        {"text": '{"auth":"${feedToken}"}', "waitFor": {"contains": "auth_required", "timeoutSeconds": 5}},
        {"base64": "AAEC", "waitFor": {"pointer": "/type", "equals": "auth_ok"}},
        {"text": "${cursor}", "waitFor": {"pointer": "/n"}},
        {"waitFor": {"pointer": "", "equals": 1.5}},
    ],
    "wsPing": {"intervalSeconds": 15, "timeoutSeconds": 10},
    "appPing": {"payload": {"base64": "wAA="}, "intervalSeconds": 5},
    "staleAfterSeconds": 60,
    "maxLifetimeSeconds": 86000,
    "overlapSeconds": 10,
    "handover": "break_before_make",
    "resume": {"pointer": "/time_us", "sendAs": "onOpen", "name": "cursor", "rewind": 5000000, "initial": 0},
    "retry": {"maxAttempts": 10, "capSeconds": 30, "fatalCloseCodes": [4400, 4409], "fatalHttpStatuses": [401]},
    "limits": {"maxMessageBytes": 1000, "compression": True},
    "group": "feed.example.com:account-1",
    "labels": {"team": "markets", "app.kubernetes.io/name": ""},
    "adapter": "engine-io",
    "desired": "PAUSED",
}


def read(**fields: Any) -> ConnectionRequest:
    return validate(ConnectionRequest, canonical({"url": URL} | fields))


def refusal(**fields: Any) -> tuple[str, str | None]:
    with pytest.raises(Refusal) as refused:
        read(**fields)
    return refused.value.code, refused.value.field


def test_the_whole_request_is_stored_and_read_back() -> None:
    request = read(**EVERYTHING)
    assert request.desired == "PAUSED"
    spec = spec_of(request)
    assert ConnectionSpec.from_json(spec.to_json()) == spec
    assert spec.on_open[0].text == "plain text"
    assert spec.on_open[2].frame is not None
    assert spec.on_open[2].frame.binary == b"\x00\x01\x02"
    assert spec.on_open[4].frame is None
    assert spec.app_ping is not None
    assert spec.app_ping.payload.binary == b"\xc0\x00"
    assert spec.retry.fatal_close_codes == (4400, 4409)


def test_the_defaults() -> None:
    spec = spec_of(read())
    assert spec.to_json() == '{"url":"wss://feed.example.com/ws"}'
    assert spec.ws_ping is not None
    assert (spec.ws_ping.interval_seconds, spec.ws_ping.timeout_seconds) == (20, 20)
    assert spec.limits.max_message_bytes == 1_048_576
    assert spec.limits.compression is False
    assert spec.handover == "make_before_break"
    assert spec.stale_after_seconds is None
    assert spec.retry.fatal_http_statuses == (401, 403, 404, 410)
    assert read(wsPing=None).ws_ping is None


def test_equal_requests_have_one_text() -> None:
    explicit = read(wsPing={"timeoutSeconds": 20, "intervalSeconds": 20.0}, desired="RUNNING", labels={}, group=None)
    assert explicit.to_json() == read().to_json()
    assert read(onOpen=["a"]).to_json() == read(onOpen=[{"text": "a"}]).to_json()
    assert read(onOpen=["a", "b"]).to_json() != read(onOpen=["b", "a"]).to_json()


def encoded(length: int) -> str:
    return base64.b64encode(bytes(length)).decode()


WAIT = {"contains": "a"}
RESUME = {"pointer": "/a", "sendAs": "query", "name": "c"}

REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"url": None}, "invalid_type", "url"),
    ({"url": 5}, "invalid_type", "url"),
    ({"url": ""}, "invalid_value", "url"),
    ({"url": "w" * 4097}, "invalid_value", "url"),
    ({"bogus": 1}, "unknown_field", "bogus"),
    ({"Url": "x"}, "unknown_field", "Url"),
    ({"max_lifetime_seconds": 60}, "unknown_field", "max_lifetime_seconds"),
    ({"limits": {"bogus": 1}}, "unknown_field", "limits.bogus"),
    ({"onOpen": ["a", {"text": "b", "wait": 1}]}, "unknown_field", "onOpen[1].wait"),
    ({"onOpen": [{"text": "b", "waitFor": {"contains": "x", "y": 1}}]}, "unknown_field", "onOpen[0].waitFor.y"),
    # Headers
    ({"headers": []}, "invalid_type", "headers"),
    ({"headers": {"A": 1}}, "invalid_type", "headers.A"),
    ({"headers": {"A": None}}, "invalid_type", "headers.A"),
    ({"headers": {"A": "x\r\nHost: evil"}}, "invalid_value", "headers.A"),
    ({"headers": {"A": "x\n"}}, "invalid_value", "headers.A"),
    ({"headers": {"A": "x\u0000"}}, "invalid_value", "headers.A"),
    ({"headers": {"A": "é"}}, "invalid_value", "headers.A"),
    ({"headers": {"A": " x"}}, "invalid_value", "headers.A"),
    ({"headers": {"": "x"}}, "invalid_value", "headers."),
    ({"headers": {"A B": "x"}}, "invalid_value", "headers.A B"),
    ({"headers": {"A:": "x"}}, "invalid_value", "headers.A:"),
    ({"headers": {"A\r\nB": "x"}}, "invalid_value", "headers.A\r\nB"),
    ({"headers": {"A\n": "x"}}, "invalid_value", "headers.A\n"),
    ({"headers": {"Ä": "x"}}, "invalid_value", "headers.Ä"),
    ({"headers": {"Sec-WebSocket-Key": "x"}}, "invalid_value", "headers.Sec-WebSocket-Key"),
    ({"headers": {"sec-websocket-anything": "x"}}, "invalid_value", "headers.sec-websocket-anything"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, "invalid_value", "headers"),
    ({"headers": {"A": "x" * MAX_HEADER_BYTES}}, "invalid_value", "headers"),
    ({"headers": {f"A{n}": "" for n in range(MAX_HEADERS + 1)}}, "invalid_value", "headers"),
    *(({"headers": {name: "x"}}, "invalid_value", f"headers.{name}") for name in sorted(FORBIDDEN_HEADERS)),
    ({"headers": {"HOST": "x"}}, "invalid_value", "headers.HOST"),
    # Subprotocols
    ({"subprotocols": "mqtt"}, "invalid_type", "subprotocols"),
    ({"subprotocols": ["a b"]}, "invalid_value", "subprotocols[0]"),
    ({"subprotocols": ["mqtt", "mqtt"]}, "invalid_value", "subprotocols"),
    ({"subprotocols": ["a\r\nX: y"]}, "invalid_value", "subprotocols[0]"),
    ({"subprotocols": [""]}, "invalid_value", "subprotocols[0]"),
    # Frames
    ({"onOpen": "text"}, "invalid_type", "onOpen"),
    ({"onOpen": [1]}, "invalid_type", "onOpen[0]"),
    ({"onOpen": [{}]}, "invalid_value", "onOpen[0]"),
    ({"onOpen": [{"text": "a", "base64": "AA=="}]}, "invalid_value", "onOpen[0]"),
    ({"onOpen": [{"base64": "AA="}]}, "invalid_value", "onOpen[0].base64"),
    ({"onOpen": [{"base64": "not base64!"}]}, "invalid_value", "onOpen[0].base64"),
    ({"onOpen": [{"base64": "AAé="}]}, "invalid_value", "onOpen[0].base64"),
    ({"onOpen": [{"base64": "-_-_"}]}, "invalid_value", "onOpen[0].base64"),
    ({"onOpen": ["x" * (MAX_FRAME_BYTES + 1)]}, "invalid_value", "onOpen[0].text"),
    ({"onOpen": ["é" * (MAX_FRAME_BYTES // 2) + "x"]}, "invalid_value", "onOpen[0].text"),
    ({"onOpen": [{"base64": encoded(MAX_FRAME_BYTES + 1)}]}, "invalid_value", "onOpen[0].base64"),
    ({"appPing": {"payload": "é" * MAX_FRAME_BYTES, "intervalSeconds": 5}}, "invalid_value", "appPing.payload.text"),
    ({"onOpen": ["x"] * (MAX_STEPS + 1)}, "invalid_value", "onOpen"),
    ({"onOpen": [{"waitFor": {}}]}, "invalid_value", "onOpen[0].waitFor"),
    ({"onOpen": [{"waitFor": {"contains": "a", "pointer": "/a"}}]}, "invalid_value", "onOpen[0].waitFor"),
    ({"onOpen": [{"waitFor": {"contains": "a", "equals": "b"}}]}, "invalid_value", "onOpen[0].waitFor"),
    ({"onOpen": [{"waitFor": {"contains": ""}}]}, "invalid_value", "onOpen[0].waitFor.contains"),
    ({"onOpen": [{"waitFor": {"pointer": "a"}}]}, "invalid_value", "onOpen[0].waitFor.pointer"),
    ({"onOpen": [{"waitFor": {"pointer": "/~2"}}]}, "invalid_value", "onOpen[0].waitFor.pointer"),
    ({"onOpen": [{"waitFor": {"pointer": "/a", "equals": []}}]}, "invalid_value", "onOpen[0].waitFor.equals"),
    ({"onOpen": [{"waitFor": WAIT | {"timeoutSeconds": 61}}]}, "invalid_value", "onOpen[0].waitFor.timeoutSeconds"),
    # Keepalive and life
    ({"wsPing": {"intervalSeconds": 0}}, "invalid_value", "wsPing.intervalSeconds"),
    ({"wsPing": {"intervalSeconds": 301}}, "invalid_value", "wsPing.intervalSeconds"),
    ({"wsPing": {"intervalSeconds": "20"}}, "invalid_type", "wsPing.intervalSeconds"),
    ({"wsPing": {"intervalSeconds": True}}, "invalid_type", "wsPing.intervalSeconds"),
    ({"wsPing": False}, "invalid_type", "wsPing"),
    ({"appPing": {"payload": "x"}}, "missing_field", "appPing.intervalSeconds"),
    ({"appPing": {"intervalSeconds": 5}}, "missing_field", "appPing.payload"),
    ({"staleAfterSeconds": 0}, "invalid_value", "staleAfterSeconds"),
    ({"maxLifetimeSeconds": 9}, "invalid_value", "maxLifetimeSeconds"),
    ({"maxLifetimeSeconds": 10, "overlapSeconds": 10}, "invalid_value", "overlapSeconds"),
    ({"overlapSeconds": -1}, "invalid_value", "overlapSeconds"),
    ({"handover": "none"}, "invalid_value", "handover"),
    # Resume
    ({"resume": {"pointer": "/a", "sendAs": "header", "name": "c"}}, "invalid_value", "resume.sendAs"),
    ({"resume": {"pointer": "/a", "sendAs": "query"}}, "missing_field", "resume.name"),
    ({"resume": RESUME | {"rewind": -1}}, "invalid_value", "resume.rewind"),
    ({"resume": RESUME | {"rewind": 1.5}}, "invalid_type", "resume.rewind"),
    ({"resume": RESUME | {"initial": "x" * 257}}, "invalid_value", "resume.initial"),
    ({"resume": RESUME | {"initial": True}}, "invalid_value", "resume.initial"),
    ({"resume": {"pointer": "/a", "sendAs": "onOpen", "name": "c"}}, "invalid_value", "resume"),
    ({"resume": {"pointer": "/a", "sendAs": "onOpen", "name": "c", "initial": 0}}, "invalid_value", "resume.name"),
    # Retry and limits
    ({"retry": {"maxAttempts": 0}}, "invalid_value", "retry.maxAttempts"),
    ({"retry": {"fatalCloseCodes": [999]}}, "invalid_value", "retry.fatalCloseCodes[0]"),
    ({"retry": {"fatalCloseCodes": [5000]}}, "invalid_value", "retry.fatalCloseCodes[0]"),
    ({"retry": {"fatalHttpStatuses": [401, 401]}}, "invalid_value", "retry.fatalHttpStatuses"),
    ({"retry": {"fatalHttpStatuses": ["401"]}}, "invalid_type", "retry.fatalHttpStatuses[0]"),
    ({"limits": {"maxMessageBytes": 0}}, "invalid_value", "limits.maxMessageBytes"),
    ({"limits": {"maxMessageBytes": MAX_MESSAGE_BYTES + 1}}, "invalid_value", "limits.maxMessageBytes"),
    ({"limits": {"maxMessageBytes": 1e3}}, "invalid_type", "limits.maxMessageBytes"),
    ({"limits": {"compression": "yes"}}, "invalid_type", "limits.compression"),
    ({"subprotocols": ["a" * 129]}, "invalid_value", "subprotocols[0]"),
    ({"headers": {"A" * 129: ""}}, "invalid_value", "headers." + "A" * 128),
    ({"adapter": "a" * 65}, "invalid_value", "adapter"),
    ({"labels": {"a" * 64: ""}}, "invalid_value", "labels." + "a" * 64),
    ({"onOpen": [{"waitFor": {"contains": "a" * 1025}}]}, "invalid_value", "onOpen[0].waitFor.contains"),
    ({"onOpen": [{"waitFor": {"pointer": "/" + "a" * 256}}]}, "invalid_value", "onOpen[0].waitFor.pointer"),
    ({"onOpen": [{"waitFor": {"pointer": "/", "equals": "a" * 1025}}]}, "invalid_value", "onOpen[0].waitFor.equals"),
    ({"retry": {"capSeconds": 3601}}, "invalid_value", "retry.capSeconds"),
    ({"retry": {"maxAttempts": 1_000_001}}, "invalid_value", "retry.maxAttempts"),
    ({"staleAfterSeconds": 86_401}, "invalid_value", "staleAfterSeconds"),
    ({"maxLifetimeSeconds": 30 * 86_400 + 1}, "invalid_value", "maxLifetimeSeconds"),
    ({"overlapSeconds": 301}, "invalid_value", "overlapSeconds"),
    ({"group": "g" * 129}, "invalid_value", "group"),
    ({"group": ""}, "invalid_value", "group"),
    ({"group": "a b"}, "invalid_value", "group"),
    # Labels
    ({"labels": {"": "x"}}, "invalid_value", "labels."),
    ({"labels": {"a b": "x"}}, "invalid_value", "labels.a b"),
    ({"labels": {"a": 1}}, "invalid_type", "labels.a"),
    ({"labels": {"a": "x\n"}}, "invalid_value", "labels.a"),
    ({"labels": {"a": "x" * 129}}, "invalid_value", "labels.a"),
    ({"labels": {f"a{n}": "" for n in range(MAX_LABELS + 1)}}, "invalid_value", "labels"),
    # Secrets
    ({"secretRefs": {"t": "websocket-fleet/x"}}, "invalid_value", "secretRefs"),
    ({"secretRefs": {"1": "websocket-fleet/x"}}, "invalid_value", "secretRefs.1"),
    ({"secretRefs": {"t": "arn:aws:secretsmanager:x"}}, "invalid_value", "secretRefs.t"),
    ({"secretRefs": {"t": "x#"}, "headers": {"A": "${t}"}}, "invalid_value", "secretRefs.t"),
    ({"url": "wss://${t}.example.com/", "secretRefs": {"t": "x"}}, "invalid_value", "url"),
    ({"url": "wss://example.com/${t}", "secretRefs": {"t": "x"}}, "invalid_value", "url"),
    ({"desired": "STOPPED"}, "invalid_value", "desired"),
    ({"desired": "running"}, "invalid_value", "desired"),
    ({"desired": None}, "invalid_value", "desired"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "field"), REFUSED, ids=lambda value: ascii(value)[:60])
def test_what_is_wrong_is_named(fields: dict[str, Any], code: str, field: str | None) -> None:
    assert refusal(**fields) == (code, field)


def test_what_is_just_within_the_limits() -> None:
    read(headers={"A": "x" * (MAX_HEADER_BYTES - 1)})
    read(headers={f"A{n}": "\t x".strip() for n in range(MAX_HEADERS)})
    read(onOpen=["x" * MAX_FRAME_BYTES])
    read(onOpen=["é" * (MAX_FRAME_BYTES // 2)])
    read(onOpen=[{"base64": encoded(MAX_FRAME_BYTES)}])
    read(onOpen=[{"waitFor": {"contains": "é" * 1024, "timeoutSeconds": 60}}])
    read(onOpen=[{"waitFor": {"pointer": "/" + "a" * 255, "equals": "é" * 1024}}])
    read(subprotocols=["a" * 128], group="g" * 128, headers={"A" * 128: ""}, adapter="a" * 64)
    read(labels={"a" * 63: "é" * 128})
    read(secretRefs={"t" * 64: "s" * 512 + "#" + "k" * 128}, headers={"A": "${" + "t" * 64 + "}"})
    read(retry={"maxAttempts": 1_000_000, "capSeconds": 3600, "fatalCloseCodes": [1000, 4999]})
    read(wsPing={"intervalSeconds": 1, "timeoutSeconds": 300}, staleAfterSeconds=86_400)
    read(maxLifetimeSeconds=30 * 86_400, overlapSeconds=300)
    read(onOpen=["x"] * MAX_STEPS)
    read(labels={f"a{n}": "x" * 128 for n in range(MAX_LABELS)})
    read(limits={"maxMessageBytes": MAX_MESSAGE_BYTES})
    read(maxLifetimeSeconds=10, overlapSeconds=9.9)
    read(resume={"pointer": "", "sendAs": "query", "name": "c", "initial": "x" * 256})


@pytest.mark.parametrize("document", [[], "x", 5, None, True])
def test_the_body_must_be_an_object(document: Any) -> None:
    with pytest.raises(Refusal) as refused:
        validate(ConnectionRequest, canonical(document))
    assert refused.value.code == "invalid_type"


SENTINEL = "SENTINEL-77aa"


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"Authorization": f"Bearer {SENTINEL}\n"}},
        {"headers": {"Authorization": [SENTINEL]}},
        {"headers": {"Host": SENTINEL}},
        {"headers": SENTINEL},
        {"onOpen": [{"text": SENTINEL, "base64": SENTINEL}]},
        {"onOpen": [{"base64": SENTINEL + "!"}]},
        {"onOpen": [[SENTINEL]]},
        {"appPing": {"payload": [SENTINEL], "intervalSeconds": SENTINEL}},
        {"subprotocols": [f"{SENTINEL} x"]},
        {"secretRefs": {"t": f"{SENTINEL} x"}},
        {"labels": {"a": f"{SENTINEL}\n"}},
        {"handover": SENTINEL},
        {"group": f"{SENTINEL} x"},
        {"bogus": SENTINEL},
        {"resume": {"pointer": SENTINEL, "sendAs": "query", "name": "c"}},
    ],
    ids=ascii,
)
def test_no_value_of_the_request_is_repeated(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        read(**fields)
    assert SENTINEL not in repr(refused.value) + str(refused.value.field) + refused.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(EVERYTHING)), JSON, max_size=4))
def test_any_value_in_any_field_is_accepted_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = validate(ConnectionRequest, canonical({"url": URL} | fields))
    except Refusal:
        return
    spec = spec_of(request)
    assert ConnectionSpec.from_json(spec.to_json()) == spec


def test_placeholders_are_filled_where_they_have_a_value() -> None:
    assert fill("Bearer ${t} ${u} $t ${}", {"t": "a${u}"}) == "Bearer a${u} ${u} $t ${}"
    assert fill_url("wss://h/${t}?a=${t}&b=${u}", {"t": "x&y=ü"}) == "wss://h/${t}?a=x%26y%3D%C3%BC&b=${u}"
