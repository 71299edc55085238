"""More comes in than fits: reading waits a moment for the sink, and what was read is emitted, whole and in order."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from tests.integration.engine.conftest import MEBIBYTE, Bench, ListSink, running
from tests.support.upstream import PING, PONG, TEXT, Peer, RawUpstream, frame, text, until
from worker import session
from worker.outbox import Budget
from worker.records import Entry
from worker.sinks import Verdict

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("quick")]

LARGEST = 16 * MEBIBYTE
"""The highest `limits.maxMessageBytes`."""


class PacedSink(ListSink):
    """Takes everything, a call at a time."""

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        time.sleep(0.02)
        return super().put(entries, may_send)


@pytest.mark.parametrize("bound", [MEBIBYTE, 24 * MEBIBYTE], ids=["past the bound", "within the bound"])
async def test_a_burst_of_one_byte_messages_is_delivered_in_order_and_pings_are_answered(bound: int) -> None:
    count, pongs = 100_000, list[float]()

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        for write in range(100):
            peer.writer.write(b"".join(text(str(number % 10)) for number in range(write * 1000, write * 1000 + 1000)))
        for _ in range(3):
            asked = time.monotonic()
            await peer.send(frame(PING, b"?"))
            await peer.expect(PONG)
            pongs.append(time.monotonic() - asked)
        await peer.serve()

    sink = PacedSink()
    bench = Bench(sink=sink, connection_bytes=bound)
    bench.sink = sink
    async with running(bench), RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), limits={"maxMessageBytes": 1000})
        await until(lambda: len(pongs) == 3 and len(sink.records) > count, seconds=60)
        assert bench.data(runner) == [str(number % 10) for number in range(count)]
        assert bench.kinds(runner).count("opened") == 1
        assert len(upstream.peers) == 1
        assert lease.state == "OPEN"
        assert bench.output.counts().stalls == 0
        if bound > MEBIBYTE:
            assert max(pongs) < 5


@pytest.mark.parametrize("bound", [4 * MEBIBYTE, 24 * MEBIBYTE])
async def test_messages_of_the_largest_size_and_small_ones_behind_them_are_delivered(bound: int) -> None:
    large = b"x" * LARGEST

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(frame(TEXT, large) + text("a") + frame(TEXT, large) + text("b"))
        await peer.serve()

    bench = Bench(connection_bytes=bound)
    async with running(bench), RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url(), limits={"maxMessageBytes": LARGEST})
        await until(lambda: "b" in bench.data(runner), seconds=60)
        joined = "".join(bench.data(runner))
        assert len(joined) == 2 * LARGEST + 2
        assert joined == "x" * LARGEST + "a" + "x" * LARGEST + "b"
        assert bench.kinds(runner).count("opened") == 1
        assert len(upstream.peers) == 1


async def test_silence_is_not_held_against_the_peer_while_nothing_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "EASE_SECONDS", 60)

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        reading = asyncio.create_task(peer.serve())
        for number in range(5000):
            peer.writer.write(text(f"{number:06} " + "x" * 2000))
        await reading

    bench.sink.stalled = True
    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})
        await until(lambda: runner._outbox.buffered_bytes > 4 * MEBIBYTE)
        paused = time.monotonic()
        await until(lambda: time.monotonic() > paused + 4)
        bench.sink.stalled = False
        await until(lambda: len(bench.data(runner)) == 5000)
        assert lease.state == "OPEN"
        assert len(upstream.peers) == 1


async def test_a_full_process_eases_reading_before_it_refuses_a_message() -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        for number in range(2000):
            peer.writer.write(text(f"{number:06} " + "x" * 2000))
        await peer.serve()

    sink = PacedSink()
    bench = Bench(sink=sink, budget=Budget(2 * MEBIBYTE, 16 * 1024, 10), connection_bytes=24 * MEBIBYTE)
    bench.sink = sink
    async with running(bench), RawUpstream(script) as upstream:
        runners = [bench.run(upstream.url())[0] for _ in range(3)]
        await until(lambda: all(len(bench.data(runner)) == 2000 for runner in runners))
        assert bench.output.counts().stalls == 0
        assert len(upstream.peers) == 3
