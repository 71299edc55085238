"""The life of a connection against a raw server: open, deliver, reopen, hand over, end."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

import pytest

from bench.engine import Pump
from leases.ports import Parting
from tests.integration.engine.conftest import Bench, Lease
from tests.integration.engine.feed import numbered, numbers
from tests.support.upstream import Peer, RawUpstream, close, text, until
from worker.runner import Runner
from worker.session import Session
from worker.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


async def test_opens_runs_its_opening_steps_and_delivers(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.expect(1)
        await peer.expect(2)
        await peer.send(text("one") + text("two"))
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), onOpen=["subscribe", {"base64": "AAH/"}], headers={"X-Key": "v"})
        await until(lambda: bench.data(runner) == ["one", "two"])
        peer = upstream.peers[0]
        assert [seen.payload for seen in peer.frames] == [b"subscribe", b"\x00\x01\xff"]
        assert peer.headers["x-key"] == "v"
        assert peer.headers["host"] == f"localhost:{upstream.port}"
        assert "sec-websocket-extensions" not in peer.headers
        assert bench.kinds(runner) == ["opened", "message", "message"]
        assert [record["seq"] for record in bench.records(runner.connection)] == [1, 2, 3]
        assert lease.state == "OPEN"
        assert runner.ready.is_set()
        await runner.settle(Parting.STOPPED)
        await runner.close()
        await until(lambda: not peer.open)
        assert peer.frames[-1].close_code == 1001


async def test_a_clean_close_is_reopened(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text(f"session {len(upstream.peers)}"))
        if len(upstream.peers) <= 3:
            await peer.send([close(1000), close(1001, "bye"), close()][len(upstream.peers) - 1])
            await peer.until_closed()
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url())
        await until(lambda: bench.data(runner)[-1:] == ["session 4"], seconds=40)
        closes = [record for record in bench.records(runner.connection) if record["type"] == "closed"]
        assert [(record["code"], record["reason"]) for record in closes] == [(1000, ""), (1001, "bye"), (1005, "")]
        assert bench.kinds(runner)[:6] == ["opened", "message", "closed", "gap", "opened", "message"]
        gap = bench.record(runner, "gap")
        assert gap["from"] < gap["to"]
        assert gap["resumed"] is False
        assert upstream.peers[1].accepted_at - (upstream.peers[0].upgraded_at or 0) < 4
        assert lease.statuses[-1]["lastClose"]["code"] == 1005


async def test_settle_flushes_and_a_new_grant_goes_on_without_a_loss(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        for number in range(2000):
            await peer.send(text(str(number)))
            await asyncio.sleep(0.001)
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url())
        await until(lambda: len(bench.data(runner)) > 100)
        remains = await runner.settle(Parting.HANDED_OVER)
        emitted = len(bench.data(runner))
        assert remains.handoff.last_seq == bench.records(runner.connection)[-1]["seq"]
        second = Lease(runner.connection, epoch=2)
        runner.begin(second, None)
        await until(lambda: len(bench.data(runner)) == 2000)
        assert bench.data(runner) == [str(number) for number in range(2000)]
        epochs = [record["epoch"] for record in bench.records(runner.connection) if record["type"] == "message"]
        assert epochs == sorted(epochs)
        assert emitted < 2000
        assert len(upstream.peers) == 1


async def test_settle_reads_what_has_arrived(bench: Bench) -> None:
    """A standby has listened since before the hand-over, but not since before what waits here to be read."""
    message = "x" * 1000

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url())
        await asyncio.wait_for(runner.ready.wait(), 20)
        # Five reads' worth, on loopback in the kernel's buffer before the loop turns again.
        upstream.open_peers[0].writer.write(text(message) * 80)
        await runner.settle(Parting.STOPPED)
        assert bench.data(runner) == [message] * 80


async def test_a_standby_takes_over_where_the_old_owner_stopped(bench: Bench) -> None:
    stop = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.serve()

    async def feed(upstream: RawUpstream) -> None:
        number = 0
        while not stop.is_set():
            for peer in upstream.open_peers:
                await peer.send(text(f"m{number}"))
            number += 1
            await asyncio.sleep(0.001)

    async with RawUpstream(script) as upstream:
        old, _ = bench.run(upstream.url())
        await asyncio.wait_for(old.ready.wait(), 20)
        feeding = asyncio.create_task(feed(upstream))
        await until(lambda: len(bench.data(old)) > 50)
        old.invite()
        new = bench.engine.runner(bench.row(old.connection))
        bench.runners.append(new)
        await asyncio.wait_for(new.ready.wait(), 20)
        before = len(bench.data(old))
        await until(lambda: len(bench.data(old)) > before + 20)
        remains = await old.settle(Parting.HANDED_OVER)
        new.begin(Lease(old.connection, epoch=2), remains.handoff)
        await old.close()
        await until(lambda: len(bench.data(old)) > before + 200)
        stop.set()
        await feeding
        assert "closed" not in bench.kinds(old), "there was an open socket at every moment"
        data = bench.data(old)
        first = int(data[0][1:])
        assert data == [f"m{number}" for number in range(first, first + len(data))]


@pytest.mark.parametrize("greeting", [(), ("welcome",)], ids=["silent", "greeting"])
async def test_a_feed_that_says_the_same_again_after_a_hand_over_is_heard(
    bench: Bench, greeting: Sequence[str]
) -> None:
    says = ["door open", "door closed", "alarm"]

    async def script(peer: Peer) -> None:
        await peer.upgrade()
        for word in greeting:
            await peer.send(text(word))
        await peer.serve()

    async def say(upstream: RawUpstream, words: Sequence[str]) -> None:
        for word in words:
            for peer in upstream.open_peers:
                await peer.send(text(word))

    async with RawUpstream(script) as upstream:
        old, _ = bench.run(upstream.url())
        await asyncio.wait_for(old.ready.wait(), 20)
        await say(upstream, says)
        await until(lambda: len(bench.data(old)) == len(greeting) + 3)
        old.invite()
        new = bench.engine.runner(bench.row(old.connection))
        bench.runners.append(new)
        await asyncio.wait_for(new.ready.wait(), 20)
        remains = await old.settle(Parting.HANDED_OVER)
        new.begin(Lease(old.connection, epoch=2), remains.handoff)
        await old.close()
        await say(upstream, ["door open", "alarm", "door closed"])
        await until(lambda: bench.data(old)[-1] == "door closed" and "door open" in bench.data(old)[-3:])
        assert bench.data(old)[-3:] == ["door open", "alarm", "door closed"]


@pytest.mark.parametrize("parting", [Parting.PAUSED, Parting.STOPPED, Parting.RELEASED, Parting.FAILED])
async def test_the_last_record_says_that_the_socket_was_closed_and_why(bench: Bench, parting: Parting) -> None:
    async with numbered() as upstream:
        runner, _ = bench.run(upstream.url())
        await until(lambda: len(bench.data(runner)) > 50)
        remains = await runner.settle(parting)
        emitted = list(bench.records(runner.connection))
        await runner.close()
        peer = upstream.peers[0]
        await until(lambda: not peer.open)
        assert peer.ended_at is not None
        closed_wall = time.time() - (time.monotonic() - peer.ended_at)
        assert emitted[-1]["type"] == "closed"
        assert (emitted[-1]["code"], emitted[-1]["reason"]) == (1001, parting.value)
        assert emitted[-1]["seq"] == remains.handoff.last_seq
        assert bench.records(runner.connection) == emitted
        received = [datetime.fromisoformat(record["receivedAt"]).timestamp() for record in emitted]
        assert received == sorted(received)
        assert received[-1] <= closed_wall
        assert [record["type"] for record in emitted].count("closed") == 1
        found = numbers(bench.data(runner))
        assert found == list(range(found[0], found[0] + len(found)))


async def test_a_socket_that_nobody_will_read_closes_though_the_sink_stands_still(bench: Bench) -> None:
    async with numbered() as upstream:
        runner, _ = bench.run(upstream.url())
        await until(lambda: len(bench.data(runner)) > 10)
        bench.sink.stalled = True
        settling = asyncio.create_task(runner.settle(Parting.PAUSED))
        await until(lambda: not upstream.peers[0].open)
        assert not settling.done()
        bench.sink.stalled = False
        await settling
        assert bench.kinds(runner)[-1] == "closed"


async def test_a_socket_that_was_closed_before_is_not_said_to_close_again(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        # It may be dialled again at any moment, and then says nothing.
        if peer is upstream.peers[0]:
            await peer.upgrade()
            await peer.send(close(1013, "later"))
        await peer.until_closed()

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url())
        await until(lambda: lease.state == "BACKING_OFF")
        await runner.settle(Parting.PAUSED)
        assert bench.kinds(runner) == ["opened", "closed"]
        assert bench.record(runner, "closed")["reason"] == "later"


async def test_a_socket_whose_opening_steps_are_not_done_is_said_to_close_too(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url(), onOpen=[{"waitFor": {"contains": "never"}}])
        await until(lambda: bench.kinds(runner) == ["opened"])
        await runner.settle(Parting.PAUSED)
        assert bench.kinds(runner) == ["opened", "closed"]
        assert bench.record(runner, "closed")["reason"] == "paused"


async def test_a_request_that_became_useless_says_so_in_its_last_record(bench: Bench) -> None:
    async def deaf(peer: Peer) -> None:
        await peer.upgrade()
        await asyncio.Event().wait()

    async with RawUpstream(deaf) as upstream:
        runner, lease = bench.run(upstream.url())
        await until(lambda: bench.kinds(runner) == ["opened"])
        runner.revise(bench.row(runner.connection, generation=2))
        await until(lambda: lease.failed is not None)
        await runner.settle(Parting.FAILED)
        assert bench.kinds(runner)[-1] == "closed"
        assert bench.record(runner, "closed")["reason"] == "no_request"
        await runner.close()


async def test_a_lost_lease_emits_nothing_more_and_leaves_nothing(bench: Bench) -> None:
    tasks = len(asyncio.all_tasks())
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url())
        await asyncio.wait_for(runner.ready.wait(), 20)
        lease.allow(False)
        await upstream.peers[0].send(text("late"))
        await until(lambda: runner._outbox.buffered_messages == 1)
        runner.abort()
        lease.allow(True)
        await until(lambda: not upstream.peers[0].open)
        assert bench.data(runner) == []
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert bench.output.budget.used == 0


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_an_attempt_that_is_given_up_while_it_succeeds_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Upstream.connection_made

    def slowly(upstream: Upstream, transport: asyncio.BaseTransport) -> None:
        made(upstream, transport)
        # The answer is there before the loop has told anybody that the connection is.
        time.sleep(0.2)

    monkeypatch.setattr(Upstream, "connection_made", slowly)
    pump = Pump()
    try:
        runner, _ = bench.run(pump.url("/idle"))
        opened = Runner.opened

        def given_up(runner: Runner, session: Session) -> None:
            opened(runner, session)
            runner._stop()
            closing.append(asyncio.create_task(close()))

        async def close() -> None:
            await runner.settle(Parting.PAUSED)
            await runner.close()

        closing: list[asyncio.Task[None]] = []
        monkeypatch.setattr(Runner, "opened", given_up)
        await until(lambda: closing)
        await asyncio.wait_for(closing[0], 10)
        assert bench.kinds(runner) == ["opened", "closed"]
    finally:
        pump.stop()
