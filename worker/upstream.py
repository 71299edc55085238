"""One WebSocket, from its handshake to its end: the Sans-I/O `ClientProtocol` of `websockets` on an asyncio transport.

Messages go straight from the parser to a callback, all of one read together. There is no queue, no reader task and no
task for pings.

Nearly all frames of a feed are alike: a whole message in one frame, all of which has arrived. Such frames are taken
from the buffer where they are (`Upstream._take_whole`); every other one goes through the parser of the library, which
alone decides what is legal. Like it, they are accepted with a length in more bytes than it needs: RFC 6455 section 5.2
asks a sender for the fewest, and no receiver for a verdict.
"""

import asyncio
import logging
import re
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from io import BytesIO
from typing import Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import NegotiationError, PayloadTooBig
from websockets.exceptions import ProtocolError as FrameError
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from connections.url_policy import CheckedUrl
from worker.retry import Failure, Kind

READ_BYTES = 16 * 1024
"""The most that one read of one WebSocket takes in: what a flood may cost its neighbours in one pass of the loop."""

WRITE_BYTES = 256 * 1024
"""The most that may wait to be sent. We send little, so a peer that lets it pile up has stopped reading."""

HEAD_BYTES = 64 * 1024
"""The longest head of a handshake answer."""

INTERIM_ANSWERS = 8
"""The most answers that may come before the one that counts (RFC 9110 section 15.2)."""

LINGER_SECONDS = 1.0
"""How long the peer has for closing the TCP connection after both sides are done with it (RFC 6455 section 7.1.1
leaves that to the server); then it is aborted."""

DEFLATE_WINDOW_BITS = 12
"""4 KiB of history for each direction instead of 32: thousands of connections share the memory of a process."""

_INTERIM = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d[ \r]")
_STATUS_LENGTH = len(b"HTTP/1.1 101 ")

_TEXT, _BINARY = 0x81, 0x82
"""The first byte of a message in one frame, without extensions (RFC 6455 section 5.2)."""

_LENGTH_16, _LENGTH_64, _MASKED = 126, 127, 0x80
"""What the second byte of a frame may be, beside a length below these."""

_OPEN = State.OPEN
"""Looked up for every read, which takes longer by way of the class."""

_INVALID_DATA = 1007
_ABNORMAL = 1006
_PING = b"alive?"
_NOTHING = bytearray()
"""Stands for no fragments, once for all; the parser allows no continuation of it."""

_quiet = logging.getLogger(f"{__name__}.frames")
# At DEBUG the library writes handshakes and frames to its log, and these hold the user's secrets.
_quiet.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What is said to open a WebSocket."""

    url: CheckedUrl
    headers: Mapping[str, str]
    subprotocols: tuple[str, ...] = ()
    max_message_bytes: int = 1024 * 1024
    compression: bool = False


class Listener(Protocol):
    """Whoever wants to know what happens on a WebSocket. Called on the loop; must not block, and must not raise."""

    def opened(self) -> None:
        """The handshake succeeded. Messages that came with its answer follow at once."""
        ...

    def received(self, messages: Sequence[str | bytes]) -> None:
        """Messages came: one or more, in order, whole, in one read."""
        ...

    def ended(self, failure: Failure) -> None:
        """The socket is closed and nothing will follow; the handshake may not have succeeded. Called exactly once."""
        ...


class Intake:
    """What all sockets of one loop share: the buffer that they read into, one after the other, and what came in."""

    __slots__ = ("buffer", "bytes", "messages")

    def __init__(self, size: int = READ_BYTES) -> None:
        self.buffer = memoryview(bytearray(size))
        self.messages = 0
        """Messages delivered so far."""
        self.bytes = 0
        """Their payload."""


class _Answer:
    """What has come of the answer to the handshake. Interim ones before it are passed over."""

    __slots__ = ("head", "interim", "parsed")

    def __init__(self) -> None:
        self.head = bytearray()
        self.interim = 0
        self.parsed = 0
        """How many bytes of the head the library has."""

    def begins(self) -> bool:
        """Whether the answer that counts has begun."""
        while _INTERIM.match(self.head):
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return False
            del self.head[: end + 4]
            self.interim += 1
        return len(self.head) >= _STATUS_LENGTH or b"\n" in self.head


class Upstream(asyncio.BufferedProtocol):
    """A WebSocket. Give it to `loop.create_connection`, and it does the handshake by itself."""

    __slots__ = (
        "_aborting",
        "_answer",
        "_buffer",
        "_failure",
        "_intake",
        "_listener",
        "_loop",
        "_max_bytes",
        "_muted",
        "_owed",
        "_partial",
        "_partial_is_text",
        "_paused",
        "_protocol",
        "_start",
        "_transport",
        "ended_at",
        "heard_at",
    )

    def __init__(self, handshake: Handshake, listener: Listener, intake: Intake) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._intake = intake
        self._buffer = intake.buffer
        self._transport: asyncio.Transport | None = None
        self._aborting: asyncio.TimerHandle | None = None
        self._failure: Failure | None = None
        self._muted = False
        self._paused = False
        self._partial = _NOTHING
        self._partial_is_text = False
        self._max_bytes = handshake.max_message_bytes
        self._start = b""
        """The beginning of a frame's header, the rest of which is yet to come."""
        self._owed = 0
        """How many bytes of the frame that the library has begun to parse are yet to come."""
        self.heard_at = self._loop.time()
        """When the last byte came in, on the loop's clock."""
        self.ended_at: float | None = None
        """When it became clear that no message will follow, on the loop's clock."""
        deflate = ClientPerMessageDeflateFactory(
            server_max_window_bits=DEFLATE_WINDOW_BITS, client_max_window_bits=DEFLATE_WINDOW_BITS
        )
        url = handshake.url
        self._protocol = ClientProtocol(
            WebSocketURI(url.scheme == "wss", url.host, url.port, url.target, ""),
            extensions=[deflate] if handshake.compression else None,
            subprotocols=[Subprotocol(name) for name in handshake.subprotocols] or None,
            max_size=handshake.max_message_bytes,
            logger=_quiet,
        )
        request = self._protocol.connect()
        for name, value in handshake.headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._answer: _Answer | None = _Answer()

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent and may come."""
        return self._protocol.state is _OPEN and self._failure is None

    def send(self, data: str | bytes) -> None:
        """Send a message; nothing happens if the WebSocket is not open any more."""
        if not self.is_open:
            return
        if isinstance(data, str):
            self._protocol.send_text(data.encode())
        else:
            self._protocol.send_binary(data)
        self._flush()

    def ping(self) -> None:
        """Send a ping. The answer shows in `heard_at`."""
        if self.is_open:
            self._protocol.send_ping(_PING)
            self._flush()

    @property
    def has_unread(self) -> bool:
        """Whether the kernel has something of the peer that was not read yet."""
        if self._transport is None or self._transport.is_closing():
            return False
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    def pause(self) -> None:
        """Read nothing until `resume` or `close`."""
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self, failure: Failure, *, within: float) -> None:
        """Send a close frame with `failure.code`, deliver nothing more, and abort after `within` seconds.

        Reading goes on, since the peer may have to get rid of much before it sees the frame and hangs up; what comes is
        thrown away unparsed.
        """
        self._muted = True
        if not self.is_open or failure.code is None:
            self.abort(failure)
            return
        self._protocol.fail(failure.code)
        self._over(failure, within)
        self._flush()
        if self._paused:
            self.resume()

    def abort(self, failure: Failure) -> None:
        """Drop the socket, now and without a word. `ended` follows in the next pass of the loop."""
        self._muted = True
        self._over(failure, 0)
        if self._transport is not None:
            self._transport.abort()

    def forsake(self, failure: Failure) -> None:
        """`loop.create_connection` was cancelled. uvloop closes the transport then without telling its protocol."""
        self.abort(failure)
        self.connection_lost(None)

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        if self._failure is not None:
            self._transport.abort()
            return
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._loop.time()
        data = bytes(self._buffer[:nbytes])
        if self._answer is not None:
            data = self._receive_head(self._answer, data)
        if data:
            self._receive(data)
        if self._protocol.state is _OPEN:
            if nbytes == len(self._buffer):
                self._give_way()
        elif self.ended_at is None:
            self._over(self._failure, LINGER_SECONDS)

    def pause_writing(self) -> None:
        self.abort(Failure(kind=Kind.NOT_READING, code=_ABNORMAL, detail=f"{WRITE_BYTES} bytes wait to be sent"))

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            # Never connected, or forsaken.
            return
        self._protocol.receive_eof()
        self._over(self._failure, 0)
        if self._aborting is not None:
            self._aborting.cancel()
        failure = self._failure or self._judge(exc)
        self._transport = None
        self._partial = _NOTHING
        self._listener.ended(failure)

    # What came in

    def _receive_head(self, answer: _Answer, data: bytes) -> bytes:
        """Take in a part of the handshake's answer; returns what came behind it."""
        head = answer.head
        head += data
        begins = answer.begins()
        refused = _refusal(head) if begins else None
        if refused is None and len(head) > HEAD_BYTES:
            refused = Failure(kind=Kind.HANDSHAKE, detail=f"the answer's head is above {HEAD_BYTES} bytes")
        if answer.interim > INTERIM_ANSWERS:
            refused = Failure(kind=Kind.HANDSHAKE, detail=f"more than {INTERIM_ANSWERS} interim answers")
        if refused is not None:
            # The library would wait for the body, which nobody needs and some servers never end.
            self.abort(refused)
            return b""
        if not begins:
            return b""
        end = head.find(b"\r\n\r\n")
        stop = end + 4 if end >= 0 else len(head)
        self._protocol.receive_data(bytes(head[answer.parsed : stop]))
        answer.parsed = stop
        if self._protocol.handshake_exc is not None:
            self.abort(_handshake_failure(self._protocol.handshake_exc))
            return b""
        if not self._protocol.events_received():
            return b""
        self._answer = None
        offered = self._protocol.available_subprotocols
        if offered and self._protocol.subprotocol is None:
            self.abort(Failure(kind=Kind.SUBPROTOCOL, detail="the server chose none of those offered"))
            return b""
        self._listener.opened()
        return bytes(head[stop:])

    def _receive(self, data: bytes) -> None:
        """Take in a part of the stream of frames."""
        at = 0
        if self._owed:
            at = min(self._owed, len(data))
            self._owed -= at
            self._parse(data[:at])
        elif self._start:
            data, self._start = self._start + data, b""
        while at < len(data):
            at = self._take_whole(data, at)
            if at < len(data):
                at = self._take_any(data, at)

    def _take_whole(self, data: bytes, at: int) -> int:
        """Deliver the whole messages that stand here; returns where something else begins."""
        if self._muted or self._protocol.state is not _OPEN or self._partial is not _NOTHING:
            return at
        messages: list[str | bytes] = []
        payload, last, most = 0, len(data) - 1, self._max_bytes
        # With READ_BYTES at a time, a frame with a length of 64 bits is never whole.
        while at < last:
            length = data[at + 1]
            begin = at + 2
            if length == _LENGTH_16 and at + 2 < last:
                length = data[at + 2] << 8 | data[at + 3]
                begin = at + 4
            elif length >= _LENGTH_16:
                break
            stop = begin + length
            if stop > last + 1 or length > most:
                break
            if data[at] == _TEXT:
                try:
                    messages.append(data[begin:stop].decode())
                except UnicodeDecodeError:
                    # The one that is not to be delivered, after those before it.
                    break
            elif data[at] == _BINARY:
                messages.append(data[begin:stop])
            else:
                break
            payload += length
            at = stop
        if messages:
            self._intake.messages += len(messages)
            self._intake.bytes += payload
            self._listener.received(messages)
        return at

    def _take_any(self, data: bytes, at: int) -> int:
        """Have the library take in one frame, or what is there of it; returns where the next one begins."""
        end = len(data)
        if self._muted or self._protocol.state is not _OPEN:
            self._parse(data[at:])
            return end
        begin = at + 2
        length = data[at + 1] if begin <= end else _LENGTH_64
        if length >= _LENGTH_16:
            begin += 2 if length == _LENGTH_16 else 8
            if begin > end and length < _MASKED:
                self._start = data[at:]
                return end
            length = int.from_bytes(data[at + 2 : begin], "big") if length < _MASKED else end
        stop = begin + length
        self._owed = max(0, stop - end)
        self._parse(data[at:stop])
        return stop

    def _parse(self, data: bytes) -> None:
        """Have the library take in a frame, or a part of one, and send what it answers."""
        self._protocol.receive_data(data)
        self._deliver(self._protocol.events_received())
        self._flush()

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            frame = cast("Frame", event)
            opcode = frame.opcode
            if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                if frame.fin:
                    data, is_text = frame.data, opcode is Opcode.TEXT
                else:
                    self._partial, self._partial_is_text = bytearray(frame.data), opcode is Opcode.TEXT
                    continue
            elif opcode is Opcode.CONT:
                self._partial += frame.data
                if not frame.fin:
                    continue
                data, is_text = self._partial, self._partial_is_text
                self._partial = _NOTHING
            else:
                continue
            self._tell(data, is_text=is_text)

    def _tell(self, data: bytes | bytearray | memoryview, *, is_text: bool) -> None:
        """A whole message has come."""
        if self._muted:
            return
        self._intake.messages += 1
        self._intake.bytes += len(data)
        if not is_text:
            self._listener.received((bytes(data),))
            return
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            detail = f"{error.reason} at position {error.start}"
            self._muted = True
            self._protocol.fail(_INVALID_DATA, detail)
            self._over(Failure(kind=Kind.INVALID_DATA, code=_INVALID_DATA, detail=detail), LINGER_SECONDS)
            return
        self._listener.received((text,))

    def _flush(self) -> None:
        writes = self._protocol.data_to_send()
        transport = self._transport
        if writes and transport is not None and not transport.is_closing():
            for data in writes:
                # An empty one asks for a half-close, which the transport's own close brings.
                if data:
                    transport.write(data)

    def _give_way(self) -> None:
        """There is more to read. The event loop would read on and on; the neighbours come first."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # The end

    def _over(self, failure: Failure | None, abort_after: float) -> None:
        """No message will follow: note why, if it is ours to say, and give the peer a moment to hang up."""
        if self._failure is None:
            self._failure = failure
        if self.ended_at is None:
            self.ended_at = self._loop.time()
        if self._aborting is None and abort_after and self._transport is not None:
            self._aborting = self._loop.call_later(abort_after, self._transport.abort)

    def _judge(self, exc: Exception | None) -> Failure:
        """What ended it, if it was not us."""
        protocol = self._protocol
        if self._answer is not None:
            detail = type(exc or protocol.handshake_exc or EOFError()).__name__
            return Failure(kind=Kind.TCP, detail=f"the connection ended before the handshake's answer ({detail})")
        broken = protocol.parser_exc
        sent = protocol.close_sent.code if protocol.close_sent is not None else _ABNORMAL
        if isinstance(broken, PayloadTooBig):
            return Failure(kind=Kind.MESSAGE_TOO_BIG, code=sent, detail=str(broken))
        if isinstance(broken, FrameError):
            return Failure(kind=Kind.PROTOCOL_ERROR, code=sent, detail=str(broken))
        if isinstance(broken, UnicodeDecodeError):
            return Failure(kind=Kind.INVALID_DATA, code=sent, detail=f"{broken.reason} in a close frame")
        if protocol.close_rcvd is not None:
            return Failure(kind=Kind.CLOSED, code=protocol.close_rcvd.code, detail=protocol.close_rcvd.reason)
        return Failure(kind=Kind.LOST, code=_ABNORMAL, detail=type(exc).__name__ if exc else "end of stream")


def _refusal(head: bytearray) -> Failure | None:
    """The refusal that an answer's head states as soon as it is complete; None for 101 and for what is not HTTP/1.1."""
    line, _, rest = head.partition(b"\r\n")
    version, _, status = line[:12].partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(status) != len(b"404") or not status.isdigit() or status == b"101":
        return None
    fields, complete, _ = rest.partition(b"\r\n\r\n")
    if not complete and not rest.startswith(b"\r\n"):
        return None
    # Bytes that are not ASCII make it an object that is no text.
    retry_after = BytesHeaderParser().parse(BytesIO(fields)).get("Retry-After")
    return Failure(
        kind=Kind.HTTP,
        status=int(status),
        retry_after=None if retry_after is None else str(retry_after),
        detail="a redirect is not followed" if status.startswith(b"3") else "",
    )


def _handshake_failure(error: Exception) -> Failure:
    """Name what is wrong with a 101 answer, or with something that is no HTTP."""
    if isinstance(error, NegotiationError):
        kind = Kind.SUBPROTOCOL if "subprotocol" in str(error) else Kind.HANDSHAKE
        return Failure(kind=kind, detail=str(error))
    cause = f": {type(error.__cause__).__name__}" if error.__cause__ is not None else ""
    return Failure(kind=Kind.HANDSHAKE, detail=f"{error}{cause}")
