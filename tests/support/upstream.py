"""A WebSocket server on raw TCP that says exactly what a script tells it to, legal or not, and logs what it sees.

async def script(peer: Peer) -> None:
    await peer.upgrade()
    await peer.send(bytes.fromhex("810568656c6c6f"))
    await peer.until_closed()

async with RawUpstream(script) as upstream:
    ...  # connect to upstream.url("/feed")
"""

import asyncio
import base64
import contextlib
import hashlib
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the client, unmasked, and when it came."""

    opcode: int
    payload: bytes
    at: float

    @property
    def close_code(self) -> int | None:
        """The code of a close frame."""
        return struct.unpack("!H", self.payload[:2])[0] if self.opcode == CLOSE and self.payload else None


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame as a server sends it."""
    length = len(payload)
    head = bytes([(0x80 if fin else 0) | opcode])
    if length < 126:
        head += bytes([length])
    elif length < 65536:
        head += b"\x7e" + struct.pack("!H", length)
    else:
        head += b"\x7f" + struct.pack("!Q", length)
    return head + payload


def text(message: str) -> bytes:
    """A text message in one frame."""
    return frame(TEXT, message.encode())


def close(code: int | None = None, reason: str = "") -> bytes:
    """A close frame."""
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason.encode())


@dataclass(eq=False)
class Peer:
    """One accepted TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    accepted_at: float
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    upgraded_at: float | None = None
    ended_at: float | None = None
    ended_by: str = ""
    """`eof` or `reset`."""

    async def request(self) -> None:
        """Read the handshake request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        self.path = line.split(" ")[1]
        self.headers = {
            name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines if each)
        }

    @property
    def accept_key(self) -> str:
        """What the client wants to see in Sec-WebSocket-Accept."""
        return base64.b64encode(hashlib.sha1(self.headers["sec-websocket-key"].encode() + GUID).digest()).decode()

    async def answer(self, status: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Answer the handshake with a status and a body of known length."""
        fields = {"Content-Length": str(len(body))} | dict(headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await self.send(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)

    def switching(self, headers: Mapping[str, str] | None = None) -> bytes:
        """The 101 answer as bytes."""
        fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": self.accept_key}
        fields |= dict(headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode()

    async def upgrade(self, headers: Mapping[str, str] | None = None) -> None:
        """Read the request if that was not done, and open the WebSocket."""
        if not self.path:
            await self.request()
        await self.send(self.switching(headers))
        self.upgraded_at = time.monotonic()

    async def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> Frame:
        """Read the client's next frame, and log it. Raises `EOFError` or `ConnectionError` at the end."""
        first, second = await self.reader.readexactly(2)
        assert second & 0x80, "a client must mask"
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        mask = await self.reader.readexactly(4)
        payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await self.reader.readexactly(length)))
        seen = Frame(first & 0x0F, payload, time.monotonic())
        self.frames.append(seen)
        return seen

    async def expect(self, opcode: int) -> Frame:
        """Read until a frame of that kind comes."""
        while True:
            seen = await self.frame()
            if seen.opcode == opcode:
                return seen

    async def serve(self) -> None:
        """Behave: answer pings, and the close frame, until the end."""
        while True:
            seen = await self.frame()
            if seen.opcode == PING:
                await self.send(frame(PONG, seen.payload))
            elif seen.opcode == CLOSE:
                await self.send(frame(CLOSE, seen.payload))
                return

    async def until_closed(self) -> None:
        """Log frames until the client hangs up; answer none of them."""
        while True:
            await self.frame()

    def reset(self) -> None:
        """Hang up with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
        self.writer.transport.abort()

    @property
    def open(self) -> bool:
        """Whether the TCP connection is, as far as this side knows."""
        return self.ended_at is None

    def texts(self) -> list[str]:
        """The text messages of the client."""
        return [seen.payload.decode() for seen in self.frames if seen.opcode == TEXT]


Script = Callable[[Peer], Awaitable[None]]


async def behave(peer: Peer) -> None:
    """A script: a server without faults."""
    await peer.upgrade()
    await peer.serve()


class RawUpstream:
    """Runs a script for every connection that it accepts. `peers` has them all, in order."""

    def __init__(self, script: Script = behave, *, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.script = script
        """Change it to change what the next connection meets."""
        self.peers: list[Peer] = []
        self.errors: list[BaseException] = []
        self._context = context
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.deaf()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None and self.errors:
            raise self.errors[0]

    async def listen(self) -> None:
        """Accept connections (again)."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self._port, ssl=self._context, backlog=4096
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def deaf(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def url(self, path: str = "/feed") -> str:
        """Where to connect to."""
        return f"{'wss' if self._context else 'ws'}://localhost:{self._port}{path}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def open_peers(self) -> list[Peer]:
        """The connections whose TCP connection is open."""
        return [peer for peer in self.peers if peer.open]

    def at(self, path: str) -> list[Peer]:
        """The connections that asked for a path (without its query), in order."""
        return [peer for peer in self.peers if peer.path.partition("?")[0] == path]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer, time.monotonic())
        self.peers.append(peer)
        try:
            await self.script(peer)
            peer.ended_by = "script"
        except EOFError:
            peer.ended_by = "eof"
        except ConnectionError:
            peer.ended_by = "reset"
        except asyncio.CancelledError:
            peer.ended_by = "cancelled"
        except Exception as error:  # noqa: BLE001 - a script that breaks is the test's failure, raised at its end
            self.errors.append(error)
        finally:
            peer.ended_at = time.monotonic()
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()


async def until(condition: Callable[[], object], *, seconds: float = 20.0, what: str = "") -> None:
    """Wait until a condition holds. Raises `AssertionError` if it does not within a generous time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what or "the condition did not come true")
        await asyncio.sleep(0.01)
