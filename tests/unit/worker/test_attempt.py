"""A request with its placeholders filled in."""

import json
from typing import Any

import pytest

from connections.spec import ConnectionSpec
from connections.url_policy import UrlPolicy
from worker.attempt import Attempt, group_name, render
from worker.retry import AttemptFailed, Kind

RESUME = {"pointer": "/seq", "sendAs": "query", "name": "cursor", "rewind": 5}


def rendered(secrets: dict[str, str] | None = None, cursor: str | None = None, **fields: Any) -> Attempt:
    spec = ConnectionSpec.from_json(json.dumps({"url": "wss://feed.example.com/ws"} | fields))
    return render(spec, UrlPolicy(), secrets or {}, cursor)


def test_secrets_are_put_into_query_headers_and_frames_as_each_needs_it() -> None:
    attempt = rendered(
        {"t": "a&b c"},
        url="wss://feed.example.com/ws?token=${t}",
        headers={"X-T": "<${t}>"},
        secretRefs={"t": "name"},
        onOpen=["auth ${t} ${other}", {"base64": "AA=="}],
        appPing={"payload": "ping ${t}", "intervalSeconds": 5},
    )
    assert attempt.handshake.url.target == "/ws?token=a%26b%20c"
    assert attempt.handshake.headers == {"X-T": "<a&b c>"}
    assert [opening.data for opening in attempt.openings] == ["auth a&b c ${other}", b"\x00"]
    assert attempt.app_ping == "ping a&b c"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("wss://h.example?feed=0", "h.example"),
        ("wss://h.example:443/a?token=${t}", "h.example"),
        ("WSS://H.Example./b", "h.example"),
        ("wss://h.example:8443?a=b/c", "h.example:8443"),
        ("ws://[2606:4700:0::1]/", "[2606:4700::1]"),
    ],
)
def test_the_default_group_is_the_host_however_it_is_written(url: str, name: str) -> None:
    secrets = {"secretRefs": {"t": "name"}} if "${t}" in url else {}
    spec = ConnectionSpec.from_json(json.dumps({"url": url} | secrets))
    assert group_name(spec, UrlPolicy.parse("2606:4700::/32")) == name
    assert group_name(spec.model_copy(update={"group": "venue"}), UrlPolicy()) == "venue"


@pytest.mark.parametrize(
    ("cursor", "initial", "target"),
    [
        (None, None, "/ws"),
        (None, 7, "/ws?cursor=7"),
        ("100", 7, "/ws?cursor=95"),
        ("a b&c", None, "/ws?cursor=a+b%26c"),
    ],
)
def test_a_cursor_goes_into_the_query(cursor: str | None, initial: int | None, target: str) -> None:
    resume = RESUME | ({} if initial is None else {"initial": initial})
    assert rendered(cursor=cursor, resume=resume).handshake.url.target == target


def test_an_existing_query_is_kept() -> None:
    attempt = rendered(cursor="10", url="wss://feed.example.com/ws?a=1", resume=RESUME)
    assert attempt.handshake.url.target == "/ws?a=1&cursor=5"


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\x00b", "ü"])
def test_a_secret_that_breaks_a_header_fails_the_attempt_unseen(value: str) -> None:
    with pytest.raises(AttemptFailed) as caught:
        rendered({"t": value}, headers={"X-T": "${t}"}, secretRefs={"t": "name"})
    assert caught.value.failure.kind is Kind.SECRET
    assert value not in str(caught.value)


def test_another_url_has_to_be_permitted_as_well() -> None:
    attempt = rendered()
    assert attempt.at("wss://other.example.com/x").handshake.url.host == "other.example.com"
    with pytest.raises(AttemptFailed) as caught:
        attempt.at("ws://127.0.0.1/")
    assert caught.value.failure.kind is Kind.BLOCKED
