"""A WebSocket server as cheap as Python allows, in a process of its own, for benchmarks of clients.

The path says what a connection gets: `/idle` nothing, `/burst` 16 messages twenty times a second, `/tick` one a second,
`/numbered` fifty a second of 2 KB that count up and a ping a second, `/slow` pongs after a second, `/deaf` no answer,
`/flap` a close frame (1013) at once, `/brief` a message and a close frame (1000). `/control` takes commands as text
messages and answers with JSON: `one` sends one message to every `/idle`, `drop` closes all of them with 1001, `away 60
20` does that, refuses connections for 60 seconds, and then resets those above 20 a second, `accepts` tells when
connections came in, how many ended, and how many seconds the slowest pong took, `forget` clears that.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import uvloop

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PAYLOAD_BYTES = 200
FRAMES_PER_WRITE = 16


def text(payload: bytes) -> bytes:
    """A text message of a server."""
    if len(payload) < 126:
        return bytes((0x81, len(payload))) + payload
    return b"\x81\x7e" + len(payload).to_bytes(2, "big") + payload


NUMBERED_BYTES = 2048
NUMBERED_SECONDS = 0.02
ONE = text(b"x" * PAYLOAD_BYTES)
MANY = ONE * FRAMES_PER_WRITE


class Pump:
    """What all connections of the server share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open: dict[str, set[Connection]] = {}
        self.accepts: list[float] = []
        self.ended = 0
        self.slowest_pong = 0.0
        self.leaving: asyncio.Task[None] | None = None
        self.listen: Callable[[], Awaitable[asyncio.Server]]
        self.server: asyncio.Server
        self.rate = 0
        """Connections a second above which more are reset; 0 for none."""
        self.admitted: deque[float] = deque()

    async def send(self, path: str, data: bytes, period: float, slices: int) -> None:
        """Send the same to every connection of a path once in a period, in slices spread over it."""
        while True:
            started = self.loop.time()
            members = list(self.open.get(path, ()))
            for number in range(slices):
                for member in members[number::slices]:
                    member.transport.write(data)
                await asyncio.sleep(max(0.0, started + period * (number + 1) / slices - self.loop.time()))

    async def count(self) -> None:
        """Send numbered messages, and a ping with each fiftieth."""
        number, due = 0, self.loop.time()
        while True:
            number += 1
            data = text((b'{"n": %d, "x": "' % number).ljust(NUMBERED_BYTES - 2, b"x") + b'"}')
            if number % 50 == 0:
                data += b"\x89\x08" + struct.pack("!d", self.loop.time())
            for member in list(self.open.get("/numbered", ())):
                member.transport.write(data)
            due += NUMBERED_SECONDS
            await asyncio.sleep(max(0.0, due - self.loop.time()))

    async def leave(self, seconds: float, rate: int) -> None:
        """Close everything, be away, and come back with less to spare."""
        self.server.close()
        for member in list(self.open.get("/idle", ())):
            member.transport.write(b"\x88\x02\x03\xe9")
            member.transport.close()
        await asyncio.sleep(seconds)
        self.rate = rate
        self.server = await self.listen()

    def admits(self) -> bool:
        """Whether one more connection is within the rate."""
        now = self.loop.time()
        while self.admitted and self.admitted[0] <= now - 1:
            self.admitted.popleft()
        if self.rate and len(self.admitted) >= self.rate:
            return False
        self.admitted.append(now)
        return True


class Connection(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, pump: Pump) -> None:
        self.pump = pump
        self.path = ""
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self.pump.admits():
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature of asyncio
        self.pump.open.get(self.path, set()).discard(self)
        self.pump.ended += self.path != "/control"

    def data_received(self, data: bytes) -> None:
        if not self.path:
            self.buffer += data
            if b"\r\n\r\n" in self.buffer:
                self.handshake()
            return
        if self.path == "/deaf":
            return
        self.buffer += data
        while (frame := self.frame()) is not None:
            self.answer(*frame)

    def handshake(self) -> None:
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        key = next(field[19:] for field in fields if field[:19].lower() == b"sec-websocket-key: ")
        accept = base64.b64encode(hashlib.sha1(key.strip() + GUID).digest())  # noqa: S324 - RFC 6455 section 4.2.2
        self.path = line.split(b" ")[1].decode()
        if self.path != "/control":
            self.pump.accepts.append(time.time())
        self.pump.open.setdefault(self.path, set()).add(self)
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        if self.path == "/flap":
            self.transport.write(b"\x88\x02\x03\xf5")
        elif self.path == "/brief":
            self.transport.write(ONE + b"\x88\x02\x03\xe8")

    def frame(self) -> tuple[int, bytes] | None:
        """The next frame of the client: all are short here."""
        if len(self.buffer) < 6 or len(self.buffer) < 6 + (length := self.buffer[1] & 0x7F):
            return None
        mask, masked = self.buffer[2:6], self.buffer[6 : 6 + length]
        opcode = self.buffer[0] & 0x0F
        self.buffer = self.buffer[6 + length :]
        return opcode, bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))

    def answer(self, opcode: int, payload: bytes) -> None:
        if opcode == 9:
            pong = bytes((0x8A, len(payload))) + payload
            self.pump.loop.call_later(1.0 if self.path == "/slow" else 0.0, self.transport.write, pong)
        elif opcode == 10 and len(payload) == 8:
            took = self.pump.loop.time() - struct.unpack("!d", payload)[0]
            self.pump.slowest_pong = max(self.pump.slowest_pong, took)
        elif opcode == 8 and self.path == "/brief":
            self.transport.close()
        elif opcode == 8:
            self.transport.write(bytes((0x88, len(payload))) + payload)
            self.transport.close()
        elif self.path == "/control":
            self.transport.write(text(self.command(payload.decode()).encode()))

    def command(self, name: str) -> str:
        members = list(self.pump.open.get("/idle", ()))
        if name == "one":
            for member in members:
                member.transport.write(ONE)
        elif name == "drop":
            for member in members:
                member.transport.write(b"\x88\x02\x03\xe9")
                member.transport.close()
        elif name.startswith("away "):
            _, seconds, rate = name.split()
            self.pump.leaving = self.pump.loop.create_task(self.pump.leave(float(seconds), int(rate)))
        elif name == "forget":
            self.pump.accepts.clear()
            self.pump.ended = 0
            self.pump.slowest_pong = 0.0
        accepts = self.pump.accepts
        counts: dict[int, int] = {}
        for at in accepts:
            counts[int(at - accepts[0])] = counts.get(int(at - accepts[0]), 0) + 1
        told = {
            "open": len(members),
            "ended": self.pump.ended,
            "seconds": sorted(counts.items()),
            "slowest pong": self.pump.slowest_pong,
        }
        return json.dumps(told)


async def serve(context: ssl.SSLContext | None) -> None:
    """Listen on a free port, print it, and serve until standard input ends."""
    loop = asyncio.get_running_loop()
    pump = Pump(loop)
    listener = socket.create_server(("127.0.0.1", 0), backlog=8192)
    port: int = listener.getsockname()[1]

    async def listen() -> asyncio.Server:
        sock = socket.create_server(("127.0.0.1", port), backlog=8192)
        return await loop.create_server(lambda: Connection(pump), sock=sock, ssl=context, backlog=8192)

    pump.listen = listen
    pump.server = await loop.create_server(lambda: Connection(pump), sock=listener, ssl=context, backlog=8192)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    feeds = (pump.send("/tick", ONE, 1.0, 50), pump.send("/burst", MANY, 0.05, 5), pump.count())
    sending = [loop.create_task(feed) for feed in feeds]
    await loop.run_in_executor(None, sys.stdin.read)
    for task in sending:
        task.cancel()
    pump.server.close()


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--certificate", help="PEM file with key and certificate: serve TLS")
    certificate = parser.parse_args().certificate
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    uvloop.run(serve(context))


if __name__ == "__main__":
    main()
