"""The HTTP transport of whatever emits: nothing leaves late.

The lease protocol rests on it that what a worker emits lands no later than the drain time D after its deadline. An SDK
call does much between being made and its first byte leaving (credentials, DNS, connecting, TLS, signing), each of which
can hang while a lease runs out, and a kernel goes on delivering what a dead or cut-off client left in its buffers. So:

- the permission is asked once more when the connection stands, directly before the request is written;
- writing it, and the kernel's attempts to deliver it, are bounded by D together (`TCP_USER_TIMEOUT`, tcp(7));
- a connection that is given up is reset, and what it has not yet sent is dropped (`SO_LINGER` with 0, socket(7)).
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSPreparedRequest,
)
from botocore.client import BaseClient
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

CONNECT_SHARE = 0.3
"""Of D: for connecting, which comes before the permission is asked."""

WRITE_SHARE = 0.7
"""Of D: for writing the request, and again for waiting for its answer."""

DELIVER_SHARE = 0.3
"""Of D: for the kernel to have acknowledged what was written. With WRITE_SHARE it makes the whole of D."""

_may_send: ContextVar[Callable[[], bool]] = ContextVar("may_send")


class Withheld(Exception):
    """The permission to emit ended while the request was prepared. Nothing was sent."""


@contextmanager
def permission(may_send: Callable[[], bool]) -> Iterator[None]:
    """Requests of this thread are sent only while `may_send` holds."""
    token = _may_send.set(may_send)
    try:
        yield
    finally:
        _may_send.reset(token)


class _FencedConnection(AWSHTTPConnection):
    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        if self.sock is None:
            self.connect()
        _ask()
        return super().request(method, url, *arguments, **options)


class _FencedTLSConnection(AWSHTTPSConnection):
    """Its pool connects it before the request."""

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        _ask()
        return super().request(method, url, *arguments, **options)


class _FencedPool(AWSHTTPConnectionPool):
    ConnectionCls = _FencedConnection


class _FencedTLSPool(AWSHTTPSConnectionPool):
    ConnectionCls = _FencedTLSConnection


def _ask() -> None:
    if not _may_send.get()():
        raise Withheld


class _FencedSession(URLLib3Session):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._pool_classes_by_scheme = {"http": _FencedPool, "https": _FencedTLSPool}
        self._manager.pool_classes_by_scheme = self._pool_classes_by_scheme  # type: ignore[attr-defined]


def fence(client: BaseClient, drain: float, connections: int) -> None:
    """Have a client send by this transport, with up to `connections` at a time; `drain` is D in seconds."""
    options: list[tuple[int, int, int | bytes]] = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
    ]
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(DELIVER_SHARE * drain * 1000)))
    session = _FencedSession(
        verify=os.environ.get("AWS_CA_BUNDLE") or True,
        proxies=get_environ_proxies(client.meta.endpoint_url),
        timeout=(CONNECT_SHARE * drain, WRITE_SHARE * drain),
        max_pool_connections=connections,
        socket_options=options,
    )

    # An answer from this hook takes the place of the client's own sending.
    def send(request: AWSPreparedRequest, **_: Any) -> Any:
        return session.send(request)

    client.meta.events.register("before-send", send)
