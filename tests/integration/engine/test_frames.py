"""Frames of every kind, legal and not, from a raw server: what is delivered, what is answered, how it ends."""

import asyncio
import base64
import hashlib
import socket
import struct
import threading
import time
import zlib
from typing import Any

import pytest

from tests.integration.engine.recorder import Recorder, connect
from tests.support.upstream import BINARY, CLOSE, GUID, PING, PONG, TEXT, Peer, RawUpstream, close, frame, text, until
from worker.retry import Failure, Kind
from worker.upstream import READ_BYTES

MEBIBYTE = 1024 * 1024


async def receive(data: bytes, *, hang_up: bool = True, **handshake: Any) -> tuple[Recorder, Peer]:
    """What becomes of a client that is sent these bytes after its handshake."""

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(data)
        if hang_up:
            peer.writer.write_eof()
            await peer.until_closed()
        await peer.expect(CLOSE)

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url(), **handshake)
        await until(lambda: recorder.failure is not None)
        peer = upstream.peers[0]
        await until(lambda: not peer.open)
    assert recorder.handshaken == 1
    return recorder, peer


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (bytes.fromhex("810568656c6c6f"), ["hello"]),
        (bytes.fromhex("0101c38001a9"), ["é"]),
        (bytes.fromhex("8100"), [""]),
        (bytes.fromhex("8200"), [b""]),
        (bytes.fromhex("8203ff00fe"), [b"\xff\x00\xfe"]),
        (frame(TEXT, b"a", fin=False) + frame(0, b"", fin=False) + frame(0, b"b"), ["ab"]),
        (frame(BINARY, b"\x01", fin=False) + frame(0, b"\x02"), [b"\x01\x02"]),
        (frame(TEXT, b"x" * 126) + frame(TEXT, b"y" * 65536), ["x" * 126, "y" * 65536]),
        (text("one") + frame(PONG, b"unasked") + text("two"), ["one", "two"]),
        (b"\x81\x7e\x00\x05hello\x81\x7f" + struct.pack("!Q", 5) + b"world", ["hello", "world"]),  # longer than need be
    ],
)
async def test_messages_are_delivered_byte_exact(data: bytes, messages: list[str | bytes]) -> None:
    recorder, _ = await receive(data)
    assert recorder.messages == messages
    assert [type(message) for message in recorder.messages] == [type(message) for message in messages]
    assert recorder.failure == Failure(kind=Kind.LOST, code=1006, detail="end of stream")


async def test_every_split_of_a_message_over_reads_gives_the_same() -> None:
    data = text("é" * 70) + frame(PING, b"p") + text("end")

    async def script(peer: Peer) -> None:
        await peer.request()
        at = int(peer.path.removeprefix("/"))
        await peer.send(peer.switching() + data[:at])
        await asyncio.sleep(0.05)
        await peer.send(data[at:])
        await peer.expect(PONG)
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorders = [await connect(upstream.url(f"/{at}")) for at in range(len(data))]
        await until(lambda: all(recorder.failure is not None for recorder in recorders))
    assert [recorder.messages for recorder in recorders] == [["é" * 70, "end"]] * len(data)


async def test_a_ping_is_answered_with_its_payload_even_within_a_message() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(bytes.fromhex("890d31373030303030303030313233"))
        first = await peer.expect(PONG)
        await peer.send(frame(TEXT, b"half", fin=False) + frame(PING, b"\x00" * 125) + frame(0, b" whole"))
        second = await peer.expect(PONG)
        assert (first.payload, second.payload) == (b"1700000000123", b"\x00" * 125)
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None)
    assert recorder.messages == ["half whole"]


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        (frame(PING, b"x" * 126), Kind.PROTOCOL_ERROR, 1002),
        (frame(PING, b"x", fin=False), Kind.PROTOCOL_ERROR, 1002),
        (b"\x83\x00", Kind.PROTOCOL_ERROR, 1002),  # reserved opcode
        (b"\xc1\x01a", Kind.PROTOCOL_ERROR, 1002),  # RSV1 without an extension
        (b"\x81\x85\x00\x00\x00\x00hello", Kind.PROTOCOL_ERROR, 1002),  # masked
        (frame(0, b"x"), Kind.PROTOCOL_ERROR, 1002),  # continues nothing
        (frame(TEXT, b"a", fin=False) + text("b"), Kind.PROTOCOL_ERROR, 1002),
        (frame(CLOSE, b"\x03"), Kind.PROTOCOL_ERROR, 1002),
        (frame(CLOSE, struct.pack("!H", 1005)), Kind.PROTOCOL_ERROR, 1002),
        (frame(CLOSE, struct.pack("!H", 999)), Kind.PROTOCOL_ERROR, 1002),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), Kind.INVALID_DATA, 1007),
        (frame(TEXT, b"\xff"), Kind.INVALID_DATA, 1007),
        (frame(TEXT, b"\xed\xa0\x80"), Kind.INVALID_DATA, 1007),  # a lone surrogate
        (frame(TEXT, b"\xc3", fin=False) + frame(0, b"x"), Kind.INVALID_DATA, 1007),
        (frame(TEXT, b"ok \xc3"), Kind.INVALID_DATA, 1007),
        (b"\x82\x7f" + struct.pack("!Q", 2**63), Kind.MESSAGE_TOO_BIG, 1009),
        (b"\x82\x7f" + struct.pack("!Q", 2**64 - 1), Kind.MESSAGE_TOO_BIG, 1009),
    ],
)
async def test_what_breaks_the_protocol_ends_it_with_the_right_code(data: bytes, kind: Kind, code: int) -> None:
    recorder, peer = await receive(text("before") + data + text("after"), hang_up=False)
    assert recorder.messages == ["before"]
    assert recorder.failure is not None
    assert (recorder.failure.kind, recorder.failure.code) == (kind, code)
    assert [seen.close_code for seen in peer.frames if seen.opcode == CLOSE] == [code]


async def test_the_limit_is_exact_and_what_is_above_ends_with_1009_and_the_size() -> None:
    whole = b"x" * MEBIBYTE
    recorder, peer = await receive(frame(BINARY, whole) + frame(BINARY, whole + b"x"), hang_up=False)
    assert recorder.messages == [whole]
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.MESSAGE_TOO_BIG
    assert "1048577" in recorder.failure.detail
    assert peer.frames[-1].close_code == 1009


async def test_the_limit_counts_all_fragments_of_a_message() -> None:
    piece = b"x" * 600
    recorder, peer = await receive(
        frame(BINARY, piece, fin=False) + frame(0, piece), hang_up=False, max_message_bytes=1000
    )
    assert recorder.messages == []
    assert peer.frames[-1].close_code == 1009


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 1014, 3000, 4001, 4429, 4999])
async def test_the_peers_close_code_is_told_and_echoed(code: int) -> None:
    recorder, peer = await receive(text("last") + close(code, "why"), hang_up=False)
    assert recorder.messages == ["last"]
    assert recorder.failure == Failure(kind=Kind.CLOSED, code=code, detail="why")
    assert peer.frames[-1].close_code == code


async def test_an_empty_close_frame_is_1005_and_is_answered_with_an_empty_one() -> None:
    recorder, peer = await receive(close(), hang_up=False)
    assert recorder.failure == Failure(kind=Kind.CLOSED, code=1005, detail="")
    assert peer.frames[-1].payload == b""


async def test_what_comes_after_a_close_frame_is_not_delivered() -> None:
    recorder, _ = await receive(text("a") + close(1000) + text("b"))
    assert recorder.messages == ["a"]


async def test_a_reset_is_a_lost_connection_and_everything_before_it_is_delivered() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text("before"))
        await peer.expect(TEXT)
        peer.reset()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.messages == ["before"])
        assert recorder.socket is not None
        recorder.socket.send("go on")
        await until(lambda: recorder.failure is not None)
    assert recorder.failure is not None
    assert (recorder.failure.kind, recorder.failure.code) == (Kind.LOST, 1006)


async def test_a_burst_of_small_messages_keeps_its_order_and_pongs_come_in_between() -> None:
    count = 100_000

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        burst = b"".join(frame(TEXT, b"%d" % (number % 10)) for number in range(count))
        half = count // 2 * 3
        await peer.send(burst[:half] + frame(PING, b"now") + burst[half:])
        await peer.expect(PONG)
        assert len(recorder.messages) < count, "the ping had to wait for the whole burst"
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None, seconds=60)
    assert recorder.messages == [str(number % 10) for number in range(count)]


async def test_a_flood_takes_about_one_read_in_a_pass_of_the_loop() -> None:
    count = 300_000
    go = threading.Event()

    def flood(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += client.recv(4096)
            key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
            client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
            client.sendall(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            go.wait(20)
            client.sendall(text("x") * count)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=flood, args=(listener,))
        thread.start()
        recorder = await connect(f"ws://localhost:{listener.getsockname()[1]}/")
        await until(lambda: recorder.handshaken == 1)
        go.set()
        time.sleep(0.5)  # noqa: ASYNC251 - so that much is there to be read
        most = before = 0
        while recorder.failure is None:
            await asyncio.sleep(0)
            most = max(most, len(recorder.messages) - before)
            before = len(recorder.messages)
        thread.join()
    assert len(recorder.messages) == count
    # Two of our turns may have one read more between them than passes of the loop.
    assert most <= 2 * READ_BYTES // len(text("x")) + 1


async def test_a_peer_that_never_answers_the_close_is_aborted_in_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.expect(CLOSE)
        while True:
            await peer.send(text("still talking"))
            await asyncio.sleep(0.01)

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.handshaken)
        assert recorder.socket is not None
        recorder.socket.close(Failure(kind=Kind.LOCAL, code=1001), within=0.3)
        await until(lambda: recorder.failure is not None, seconds=5)
        await until(lambda: not upstream.peers[0].open)
    assert recorder.messages == []
    assert recorder.failure == Failure(kind=Kind.LOCAL, code=1001)


async def test_a_paused_reader_still_sees_the_answer_to_its_close() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text("x") * 100_000)
        await peer.serve()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.messages)
        assert recorder.socket is not None
        recorder.socket.pause()
        delivered = len(recorder.messages)
        recorder.socket.close(Failure(kind=Kind.LOCAL, code=1001), within=30)
        await until(lambda: recorder.failure is not None)
        assert len(recorder.messages) == delivered
        assert upstream.peers[0].ended_by == "script"


async def test_a_peer_that_pings_but_reads_nothing_is_dropped() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        pings = frame(PING, b"x" * 125) * 1000
        while True:
            await peer.send(pings)

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None, seconds=60)
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.NOT_READING


async def compressed(data: bytes, **handshake: Any) -> tuple[Recorder, Peer]:
    async def script(peer: Peer) -> None:
        await peer.request()
        assert "permessage-deflate" in peer.headers["sec-websocket-extensions"]
        extension = "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12"
        await peer.send(peer.switching({"Sec-WebSocket-Extensions": extension}))
        await peer.send(data)
        await peer.expect(CLOSE)

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url(), compression=True, **handshake)
        await until(lambda: recorder.failure is not None)
        await until(lambda: not upstream.peers[0].open)
    return recorder, upstream.peers[0]


def deflate(payload: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-12)
    packed = (deflater.compress(payload) + deflater.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")
    packed_frame = bytearray(frame(TEXT, packed))
    packed_frame[0] |= 0x40
    return bytes(packed_frame)


async def test_a_compressed_message_is_delivered() -> None:
    recorder, _ = await compressed(deflate(b"hello " * 1000) + close(1000))
    assert recorder.messages == ["hello " * 1000]


async def test_a_compression_bomb_is_too_big() -> None:
    recorder, peer = await compressed(deflate(b"\x00" * 50 * MEBIBYTE))
    assert recorder.messages == []
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.MESSAGE_TOO_BIG
    assert peer.frames[-1].close_code == 1009


async def test_broken_compression_breaks_the_protocol() -> None:
    broken = bytearray(frame(TEXT, b"\xff\xff\xff\xff"))
    broken[0] |= 0x40
    _, peer = await compressed(bytes(broken))
    assert peer.frames[-1].close_code == 1002
