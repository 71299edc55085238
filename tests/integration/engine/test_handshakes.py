"""Answers to the handshake of every kind, from a raw server: what the attempt fails with."""

import asyncio
import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine.recorder import Recorder, connect
from tests.support.certificates import Authority
from tests.support.upstream import Peer, RawUpstream, text, until
from worker.retry import Failure, Kind


async def outcome(answer: bytes | None, *, hang_up: bool = False, **handshake: Any) -> Failure:
    """How the attempt ends if the server answers with these bytes; `{key}` is filled in."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if answer is not None:
            await peer.send(answer.replace(b"{key}", peer.accept_key.encode()))
        if not hang_up:
            await peer.until_closed()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url(), **handshake)
        await until(lambda: recorder.failure is not None, seconds=10)
        await until(lambda: not upstream.peers[0].open)
    assert recorder.failure is not None
    assert recorder.handshaken == 0
    assert recorder.messages == []
    return recorder.failure


SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        SWITCHING + b"Sec-WebSocket-Accept: wrong\r\n\r\n",
        SWITCHING + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {key}\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {key}\r\n\r\n",
        SWITCHING + b"Sec-WebSocket-Accept: {key}\r\nSec-WebSocket-Extensions: permessage-evil\r\n\r\n",
        SWITCHING + b"Sec-WebSocket-Accept: {key}\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        SWITCHING + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"HTTP/2 101\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28" * 4 + b"\r\n",
        b"x" * 70_000,
    ],
)
async def test_a_broken_answer_is_a_failed_handshake(answer: bytes) -> None:
    assert (await outcome(answer)).kind is Kind.HANDSHAKE


@pytest.mark.parametrize("chosen", [b"", b"Sec-WebSocket-Protocol: evil\r\n"])
async def test_no_or_a_foreign_subprotocol_is_an_error(chosen: bytes) -> None:
    failure = await outcome(SWITCHING + b"Sec-WebSocket-Accept: {key}\r\n" + chosen + b"\r\n", subprotocols=("mqtt",))
    assert failure.kind is Kind.SUBPROTOCOL


async def test_a_subprotocol_that_nobody_offered_is_an_error() -> None:
    answer = SWITCHING + b"Sec-WebSocket-Accept: {key}\r\nSec-WebSocket-Protocol: evil\r\n\r\n"
    assert (await outcome(answer)).kind is Kind.SUBPROTOCOL


@pytest.mark.parametrize("status", [200, 301, 307, 400, 401, 403, 404, 410, 429, 500, 502, 503, 504, 520, 522])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 2\r\n\r\nno",
        b"\r\n",  # no length, and the connection stays open
        b"Content-Length: 500\r\n\r\nnever complete",
        b"Transfer-Encoding: chunked\r\n\r\nzz",
        b"Location: ws://elsewhere/\r\n\r\n",
    ],
)
async def test_a_status_is_told_at_once_whatever_becomes_of_the_body(status: int, body: bytes) -> None:
    failure = await outcome(b"HTTP/1.1 %d Reason\r\nRetry-After: 7\r\n" % status + body)
    assert (failure.kind, failure.status, failure.retry_after) == (Kind.HTTP, status, "7")


async def test_an_answer_in_single_bytes_is_put_together() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in peer.switching() + text("hello"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None)
    assert recorder.messages == ["hello"]


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


@pytest.mark.parametrize("interim", [HINTS, HINTS * 3, b"HTTP/1.1 100 Continue\r\n\r\n" + HINTS])
@pytest.mark.parametrize("pace", ["at once", "in turn", "in single bytes"])
async def test_an_interim_answer_before_the_final_one_is_passed_over(interim: bytes, pace: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        answer = interim + peer.switching() + text("hello")
        size = {"at once": len(answer), "in turn": len(interim), "in single bytes": 1}[pace]
        for at in range(0, len(answer), size):
            await peer.send(answer[at : at + size])
            await asyncio.sleep(0.02 if size > 1 else 0)
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None)
    assert recorder.messages == ["hello"]
    assert recorder.handshaken == 1


async def test_a_refusal_after_an_interim_answer_is_the_answer() -> None:
    failure = await outcome(HINTS + b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n")
    assert (failure.kind, failure.status, failure.retry_after) == (Kind.HTTP, 503, "7")


@pytest.mark.parametrize("interim", [HINTS * 10_000, b"HTTP/1.1 103 Hints\r\nX: " + b"x" * 70_000])
async def test_interim_answers_without_end_are_a_failed_handshake(interim: bytes) -> None:
    assert (await outcome(interim)).kind is Kind.HANDSHAKE


async def test_messages_in_the_packet_of_the_answer_are_delivered() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(peer.switching() + text("a") + text("b"))
        peer.writer.write_eof()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None)
    assert recorder.messages == ["a", "b"]


@pytest.mark.parametrize("answer", [None, b"", SWITCHING])
async def test_hanging_up_before_the_answer_is_a_transport_failure(answer: bytes | None) -> None:
    assert (await outcome(answer, hang_up=True)).kind is Kind.TCP


async def test_a_reset_before_the_answer_is_a_transport_failure() -> None:
    async def script(peer: Peer) -> None:
        peer.reset()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url())
        await until(lambda: recorder.failure is not None)
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.TCP


async def test_a_refused_port_is_a_transport_failure() -> None:
    async with RawUpstream() as upstream:
        await upstream.deaf()
        recorder = await connect(upstream.url())
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.TCP


async def test_the_request_is_what_was_asked_for() -> None:
    async with RawUpstream() as upstream:
        recorder = await connect(
            upstream.url("/päth?q=ü&x=1"), headers={"Authorization": "Bearer t"}, subprotocols=(), compression=False
        )
        await until(lambda: recorder.handshaken)
        peer = upstream.peers[0]
        assert peer.path == "/p%C3%A4th?q=%C3%BC&x=1"
        assert peer.headers["authorization"] == "Bearer t"
        assert peer.headers["host"] == f"localhost:{upstream.port}"
        assert peer.headers["sec-websocket-version"] == "13"
        assert "sec-websocket-protocol" not in peer.headers
        assert recorder.socket is not None
        recorder.socket.abort(Failure(kind=Kind.LOCAL))


async def over_tls(authority: Authority, host: str, **validity: datetime.datetime) -> tuple[Recorder, RawUpstream]:
    async with RawUpstream(context=authority.server(host, **validity)) as upstream:
        recorder = await connect(upstream.url(), context=authority.client())
        await until(lambda: recorder.failure is not None or recorder.handshaken)
        if recorder.socket is not None and recorder.failure is None:
            recorder.socket.abort(Failure(kind=Kind.LOCAL))
            await until(lambda: recorder.failure is not None)
    return recorder, upstream


async def test_tls_with_the_right_name_is_opened(tmp_path: Path) -> None:
    recorder, upstream = await over_tls(Authority(tmp_path), "localhost")
    assert recorder.handshaken == 1
    assert upstream.peers[0].headers["host"] == f"localhost:{upstream.port}"


async def test_a_certificate_for_another_name_is_a_certificate_error(tmp_path: Path) -> None:
    recorder, _ = await over_tls(Authority(tmp_path), "elsewhere.example")
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.CERTIFICATE


async def test_an_expired_certificate_is_a_certificate_error(tmp_path: Path) -> None:
    recorder, _ = await over_tls(
        Authority(tmp_path), "localhost", until=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    )
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.CERTIFICATE


async def test_an_unknown_authority_is_a_certificate_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with RawUpstream(context=Authority(tmp_path / "a").server("localhost")) as upstream:
        recorder = await connect(upstream.url(), context=ssl.create_default_context())
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.CERTIFICATE


async def test_plain_http_on_a_tls_port_is_a_tls_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.reader.read()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url().replace("ws:", "wss:"), context=ssl.create_default_context())
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.TLS


async def test_a_tls_alert_is_a_tls_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(bytes.fromhex("15030300020228"))
        await peer.reader.read()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url().replace("ws:", "wss:"), context=ssl.create_default_context())
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.TLS


async def test_silence_before_the_tls_handshake_is_a_time_out() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read()

    async with RawUpstream(script) as upstream:
        recorder = await connect(upstream.url().replace("ws:", "wss:"), context=ssl.create_default_context())
    assert recorder.failure is not None
    assert recorder.failure.kind is Kind.TIMEOUT
