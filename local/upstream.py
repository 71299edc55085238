"""A demo upstream: each path is a feed of numbered messages, sent to whoever has subscribed to it, and a witness.

A feed ticks once a period (`--period`, in seconds) whether or not somebody listens, so what was missed shows as missing
numbers. A socket gets messages from its first text frame on. `GET /report` says what every socket saw; its times are
those of `time.monotonic()`, which on one machine is the same clock for all processes.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

PERIOD_SECONDS = 1.0
REPORT = "/report"


@dataclass(slots=True)
class Socket:
    """What the upstream saw of one socket. Times in seconds of the monotonic clock."""

    path: str
    port: int
    """The client's port."""
    opened: float
    subscribed: float | None = None
    closed: float | None = None
    close_code: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Socket":
        """Read one back from a report."""
        return cls(**fields)


@dataclass(slots=True)
class Feed:
    """The messages of one path."""

    listeners: set[ServerConnection] = field(default_factory=set)
    number: int = 0
    """The number of the last message."""


class Upstream:
    """All feeds and sockets."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._feeds: dict[str, Feed] = {}
        self._sockets: list[Socket] = []
        self._tickers: set[asyncio.Task[None]] = set()

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one socket until it closes."""
        request = connection.request
        if request is None:
            return
        socket = Socket(request.path, connection.remote_address[1], time.monotonic())
        self._sockets.append(socket)
        feed = self._feed(request.path)
        try:
            async for _ in connection:
                if socket.subscribed is None:
                    socket.subscribed = time.monotonic()
                    feed.listeners.add(connection)
        except ConnectionClosed:
            # A worker that was killed says no goodbye.
            pass
        finally:
            feed.listeners.discard(connection)
            socket.closed = time.monotonic()
            socket.close_code = connection.close_code

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """The report for a plain request; None lets a WebSocket handshake go on."""
        if request.path != REPORT:
            return None
        report = {
            "sockets": [asdict(socket) for socket in self._sockets],
            "numbers": {path: feed.number for path, feed in self._feeds.items()},
        }
        return connection.respond(HTTPStatus.OK, json.dumps(report))

    def note_refusal(self, path: str, port: int, code: int) -> None:
        """Have the report show an attempt that was refused, with a close code of its own."""
        now = time.monotonic()
        self._sockets.append(Socket(path, port, opened=now, closed=now, close_code=code))

    def _feed(self, path: str) -> Feed:
        if path not in self._feeds:
            self._feeds[path] = Feed()
            ticker = asyncio.create_task(_tick(self._feeds[path], self._period))
            self._tickers.add(ticker)
        return self._feeds[path]


async def _tick(feed: Feed, period: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due += period
        await asyncio.sleep(due - loop.time())
        feed.number += 1
        broadcast(feed.listeners, json.dumps({"n": feed.number}))


async def main(upstream: Upstream) -> None:
    """Serve on a free port of loopback; the port is the first line of the output."""
    async with serve(
        upstream.handle, "127.0.0.1", 0, process_request=upstream.answer, compression=None, ping_interval=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await server.serve_forever()


def arguments() -> argparse.ArgumentParser:
    """What the command line may say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--period", type=float, default=PERIOD_SECONDS)
    return parser


if __name__ == "__main__":
    asyncio.run(main(Upstream(arguments().parse_args().period)))
