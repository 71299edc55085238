"""What an upstream repeats of what it was told."""

import pytest

from connections.url_policy import UrlPolicy, check_url
from worker.attempt import Attempt, Opening
from worker.redaction import REDACTED, Redactor
from worker.upstream import Handshake

POLICY = UrlPolicy.parse("localhost")
JWT = "eyJhbGciOiJIUzI1NiJ9." + "c3ViamVjdA" * 30


def redactor(
    url: str = "ws://localhost/feed",
    *,
    headers: dict[str, str] | None = None,
    subprotocols: tuple[str, ...] = (),
    said: tuple[str | bytes, ...] = (),
    app_ping: str | bytes | None = None,
    secrets: tuple[str, ...] = (),
) -> Redactor:
    handshake = Handshake(url=check_url(url, POLICY), headers=headers or {}, subprotocols=subprotocols)
    openings = tuple(Opening(None, data) for data in said)
    return Redactor(Attempt(handshake=handshake, openings=openings, app_ping=app_ping, policy=POLICY, secrets=secrets))


@pytest.mark.parametrize(
    ("knows", "said", "shown"),
    [
        (redactor("ws://localhost/?a=1&token=q%2Bx%20y7"), "no token q+x y7 here", f"no token {REDACTED} here"),
        (redactor("ws://localhost/?a=1&token=q%2Bx%20y7"), "token=q%2Bx%20y7", f"token={REDACTED}"),
        (redactor("ws://localhost/?justakey"), "justakey?", f"{REDACTED}?"),
        (redactor(headers={"Authorization": "Bearer abc7"}), "bad key abc7", f"bad key {REDACTED}"),
        (redactor(headers={"Cookie": "session=abc7; theme=dark"}), "abc7 expired", f"{REDACTED} expired"),
        (redactor(headers={"X-Key": JWT}), f"invalid: {JWT[:40]}", f"invalid: {REDACTED}"),
        (redactor(headers={"X-Key": JWT}), f"invalid: ...{JWT[-12:]}", f"invalid: ...{REDACTED}"),
        (redactor(subprotocols=("token", "s3cr3t-s3cr3t")), "unknown s3cr3t-s3cr3t", f"unknown {REDACTED}"),
        (redactor(secrets=("k",)), "k, ok", f"{REDACTED}, o{REDACTED}"),
        (redactor(secrets=("first-one", "second-one")), "first-onesecond-one", REDACTED),
        (redactor(said=('{"key": "hunter2hunter2"}',)), "hunter2hunter2!", f"{REDACTED}!"),
        (redactor(headers={"X-Key": "common-1 common-2"}, secrets=("common-3",)), "a common-3", f"a{REDACTED}"),
        (redactor(said=(b"\x10\xffpassword-of-old",)), "password-of-old", REDACTED),
        (redactor(app_ping="keep-alive-0815"), "what is keep-alive-0815?", f"what is {REDACTED}?"),
    ],
)
def test_what_was_said_in_confidence_is_not_quoted(knows: Redactor, said: str, shown: str) -> None:
    assert knows.redact(said) == shown


def test_the_vocabulary_of_an_upstream_stays_readable() -> None:
    knows = redactor(
        "ws://localhost/?v=2&on=1",
        headers={"Accept": "*/*"},
        said=('{"op": "subscribe", "channel": "trades"}',),
        secrets=("",),
    )
    told = 'unknown op "subscribe" in v2: channel trades is closed on 1 January'
    assert knows.redact(told) == told
