"""One attempt as data: the request with its placeholders filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlencode

from connections.placeholders import fill, fill_url
from connections.refusal import Refusal
from connections.spec import ConnectionSpec, Frame, WaitFor
from connections.url_policy import CheckedUrl, UrlPolicy, check_url
from worker.pointer import rewound
from worker.retry import AttemptFailed, Failure, Kind
from worker.upstream import Handshake


@dataclass(frozen=True, slots=True)
class Opening:
    """One step after the handshake: wait for a message if asked to, then send one if there is one."""

    wait_for: WaitFor | None
    data: str | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is said to open a WebSocket and to keep it. Holds secrets: never log it."""

    handshake: Handshake
    openings: tuple[Opening, ...]
    app_ping: str | bytes | None
    policy: UrlPolicy
    secrets: tuple[str, ...]
    """The values that were filled in, and what an adapter adds: an upstream that repeats them is not quoted."""

    def at(self, url: str) -> Self:
        """The same at another URL, which the URL policy must allow. Raises `AttemptFailed`."""
        return replace(self, handshake=replace(self.handshake, url=_checked(url, self.policy)))


def render(spec: ConnectionSpec, policy: UrlPolicy, secrets: Mapping[str, str], cursor: str | None) -> Attempt:
    """Fill in secrets and cursor.

    `cursor` is that of the last message accepted; None if there is none yet. Raises `AttemptFailed` if the result
    cannot be sent: the URL policy refuses it, or a secret breaks a header.
    """
    values = dict(secrets)
    query = {}
    if spec.resume is not None:
        position = spec.resume.initial if cursor is None else rewound(cursor, spec.resume.rewind)
        if position is not None and spec.resume.send_as == "query":
            query[spec.resume.name] = str(position)
        elif position is not None:
            values[spec.resume.name] = str(position)
    url = fill_url(spec.url, values)
    if query:
        url += ("&" if "?" in url else "?") + urlencode(query)
    return Attempt(
        handshake=Handshake(
            url=_checked(url, policy),
            headers={name: _header(name, fill(value, values)) for name, value in spec.headers.items()},
            subprotocols=spec.subprotocols,
            max_message_bytes=spec.limits.max_message_bytes,
            compression=spec.limits.compression,
        ),
        openings=tuple(
            Opening(step.wait_for, None if step.frame is None else _message(step.frame, values))
            for step in spec.on_open
        ),
        app_ping=None if spec.app_ping is None else _message(spec.app_ping.payload, values),
        policy=policy,
        secrets=tuple(secrets.values()),
    )


def group_name(spec: ConnectionSpec, policy: UrlPolicy) -> str:
    """The group of a request: what it names, or else its host, with the port unless it is the scheme's own.

    Raises `AttemptFailed` if the URL policy refuses the URL.
    """
    return spec.group or _checked(spec.url, policy).authority


def _message(frame: Frame, values: Mapping[str, str]) -> str | bytes:
    return frame.binary if frame.binary is not None else fill(frame.text or "", values)


def _header(name: str, value: str) -> str:
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise AttemptFailed(Failure(kind=Kind.SECRET, detail=f"the secret in header {name} is not printable ASCII"))
    return value


def _checked(url: str, policy: UrlPolicy) -> CheckedUrl:
    try:
        return check_url(url, policy)
    except Refusal as refusal:
        raise AttemptFailed(Failure(kind=Kind.BLOCKED, detail=refusal.message)) from None
