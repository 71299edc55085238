"""However a stream of frames is cut into reads, and whichever of the two parsers takes them, the same comes of it."""

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from connections.url_policy import UrlPolicy, check_url
from tests.support.upstream import BINARY, CLOSE, GUID, PING, TEXT, frame
from worker.retry import Failure
from worker.upstream import Handshake, Intake, Upstream

URL = check_url("ws://localhost/", UrlPolicy.parse("localhost"))
CONTINUATION = 0


@dataclass
class Listener:
    messages: list[str | bytes] = field(default_factory=list)
    failure: Failure | None = None

    def opened(self) -> None:
        pass

    def received(self, messages: Sequence[str | bytes]) -> None:
        assert messages
        self.messages += messages

    def ended(self, failure: Failure) -> None:
        self.failure = failure


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


Outcome = tuple[list[str | bytes], str | None, bytes]


async def take_in(stream: bytes, cuts: list[int], most: int) -> Outcome:
    """The messages, why it ended, and the first byte that was answered, of a stream that is read in pieces."""
    listener, wire = Listener(), Wire()
    intake = Intake()
    socket = Upstream(Handshake(url=URL, headers={}, max_message_bytes=most), listener, intake)
    socket.connection_made(cast("Any", wire))
    key = next(line for line in wire.written.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))[19:]
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
    head = b"HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n" % accept
    wire.written = b""
    stream = head + stream
    places = sorted({cut % len(stream) for cut in cuts})
    for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
        for at in range(begin, end, len(intake.buffer)):
            piece = stream[at : min(end, at + len(intake.buffer))]
            intake.buffer[: len(piece)] = piece
            socket.buffer_updated(len(piece))
    socket.connection_lost(None)
    assert listener.failure is not None
    return listener.messages, listener.failure.reason, wire.written[:1]


data = st.one_of(st.binary(max_size=140), st.just(b"\xc3\xa9" * 300), st.just(b"x" * 66_000))
texts = st.one_of(st.text(max_size=140).map(str.encode), st.just(b"\xff"), st.just(b"e" * 126))
whole = st.one_of(data.map(lambda payload: frame(BINARY, payload)), texts.map(lambda payload: frame(TEXT, payload)))
fragmented = st.builds(
    lambda pieces, ping: (
        frame(TEXT, b"<", fin=False)
        + b"".join(frame(CONTINUATION, piece, fin=False) + ping for piece in pieces)
        + frame(CONTINUATION, b">")
    ),
    st.lists(st.text(max_size=9).map(str.encode), max_size=3),
    st.sampled_from([b"", frame(PING, b"now")]),
)
odd = st.sampled_from(
    [
        frame(PING, b"?"),
        frame(CLOSE, b"\x03\xe9bye"),
        frame(CLOSE),
        frame(PING, b"p" * 126),
        frame(TEXT, b"begun", fin=False),
        frame(CONTINUATION, b"never begun"),
        b"\x82\x7f" + (2).to_bytes(8, "big") + b"hi",
        frame(BINARY, b"")[:1] + b"\x7f" + (2**63).to_bytes(8, "big"),
        b"\x81\x85maskhello",
        b"\x81\xfe",
        b"\xc1\x02hi",
        b"\x83\x00",
        b"\x81\x7e\x00\x02hi",
        b"\x81",
    ]
)
streams = st.lists(st.one_of(whole, whole, fragmented, odd), max_size=8).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(streams, st.lists(st.integers(0, 200_000), max_size=6), st.sampled_from([100, 70_000]))
@example(frame(TEXT, b"one") + frame(TEXT, b"two") + frame(CLOSE, b"\x03\xe8") + frame(TEXT, b"too late"), [], 100)
@example(frame(TEXT, b"e" * 126) + frame(TEXT, b"next"), [], 200)
@example(frame(TEXT, b"e" * 126), [], 125)
@example(frame(TEXT, b"begun", fin=False) + frame(TEXT, b"another"), [], 100)
def test_reads_do_not_matter(stream: bytes, cuts: list[int], most: int) -> None:
    async def compare() -> None:
        # Byte by byte hardly a frame is there as a whole, so that the library parses them.
        bytewise = await take_in(stream[:4000], list(range(4200)), most)
        assert await take_in(stream[:4000], cuts, most) == bytewise
        assert await take_in(stream, cuts, most) == await take_in(stream, [], most)

    asyncio.run(compare())
