"""What a request may ask for beyond an open socket, against a raw server."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterable
from urllib.parse import parse_qs, urlsplit

import pytest

from leases.ports import Parting
from leases.rows import spec_key
from tests.integration.engine.conftest import Bench, Lease
from tests.integration.engine.feed import numbered, numbers
from tests.support.upstream import CLOSE, TEXT, Peer, RawUpstream, close, text, until
from worker.adapters import Acknowledgement, Adapter, Answer, Reply
from worker.attempt import Attempt

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("quick")]


def gapless(found: list[int]) -> bool:
    return found == list(range(found[0], found[0] + len(found)))


# Opening steps


async def test_opening_steps_wait_for_their_answers_which_are_delivered_as_well(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        # The greeting comes in the same packet as the handshake's answer.
        await peer.send(peer.switching() + text('{"type": "auth_required"}'))
        assert (await peer.expect(TEXT)).payload == b"login"
        await peer.send(text('{"type": "noise"}') + text('{"type": "auth_ok", "id": 7}'))
        assert (await peer.expect(TEXT)).payload == b"subscribe"
        await peer.send(text("subscribed to it"))
        await peer.serve()

    steps = [
        {"waitFor": {"pointer": "/type", "equals": "auth_required"}, "text": "login"},
        {"waitFor": {"pointer": "/id"}, "text": "subscribe"},
        {"waitFor": {"contains": "subscribed"}},
    ]
    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url(), onOpen=steps)
        await asyncio.wait_for(runner.ready.wait(), 20)
        await until(lambda: len(bench.data(runner)) == 4)
        assert upstream.peers[0].texts() == ["login", "subscribe"]


async def test_an_opening_step_without_its_answer_closes_and_is_tried_again(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text('{"type": "connection_error"}') + text('{"ok": 1}'))
        await peer.expect(CLOSE)

    steps = [{"waitFor": {"pointer": "/ok", "equals": True, "timeoutSeconds": 0.3}, "text": "never"}]
    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), onOpen=steps)
        await until(lambda: len(upstream.peers) == 2)
        assert not runner.ready.is_set()
        assert upstream.peers[0].frames[-1].close_code == 1001
        assert upstream.peers[0].texts() == []
        assert lease.statuses[-1]["reason"] == "wait_for: an opening step waited 0.3 s for an answer"


# Resume


async def test_a_cursor_is_sent_as_a_query_parameter_a_little_rewound(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        if len(upstream.peers) == 1:
            await peer.send(text('{"us": 100}') + text('{"us": 105}') + text('{"kind": "info"}') + close(1000))
            await peer.expect(CLOSE)
        await peer.serve()

    async with RawUpstream(script) as upstream:
        resume = {"pointer": "/us", "sendAs": "query", "name": "cursor", "rewind": 10}
        runner, _ = bench.run(upstream.url("/feed?wanted=a"), resume=resume)
        await until(lambda: len(upstream.peers) == 2)
        queries = [parse_qs(urlsplit(peer.path).query) for peer in upstream.peers]
        assert queries == [{"wanted": ["a"]}, {"wanted": ["a"], "cursor": ["95"]}]
        await until(lambda: "gap" in bench.kinds(runner))
        assert bench.record(runner, "gap")["resumed"] is True


async def test_a_cursor_of_the_row_is_sent_in_an_opening_step(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        resume = {"pointer": "/seq", "sendAs": "onOpen", "name": "seq", "initial": 0}
        fresh, _ = bench.run(upstream.url("/a"), resume=resume, onOpen=['{"from": ${seq}}'])
        known, _ = bench.run(upstream.url("/b"), row={"cursor": "42"}, resume=resume, onOpen=['{"from": ${seq}}'])
        await asyncio.gather(fresh.ready.wait(), known.ready.wait())
        await until(lambda: all(peer.frames for peer in upstream.peers))
        assert upstream.at("/a")[0].texts() == ['{"from": 0}']
        assert upstream.at("/b")[0].texts() == ['{"from": 42}']


async def test_the_cursor_that_is_stored_is_that_of_what_the_sink_has_taken(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text('{"seq": 1}') + text('{"seq": 2}') + text("pong"))
        await peer.serve()

    async with RawUpstream(script) as upstream:
        resume = {"pointer": "/seq", "sendAs": "query", "name": "from"}
        runner, _ = bench.run(upstream.url(), resume=resume)
        await until(lambda: len(bench.data(runner)) == 3)
        assert (await runner.settle(Parting.RELEASED)).cursor == "2"


async def test_a_gap_is_told_after_an_owner_that_left_without_a_word(bench: Bench) -> None:
    status = {"state": "OPEN", "since": "2026-01-01T00:00:00.000Z", "lastMessageAt": "2026-01-01T00:05:00.000Z"}
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url(), row={"status": status})
        await until(lambda: bench.kinds(runner) == ["gap", "opened"])
        gap = bench.record(runner, "gap")
        assert (gap["from"], gap["reason"]) == ("2026-01-01T00:05:00.000Z", "owner_lost")


# Replacing a WebSocket


async def test_an_old_socket_is_replaced_with_an_overlap_and_without_a_loss(bench: Bench) -> None:
    async with numbered() as upstream:
        runner, lease = bench.run(upstream.url(), maxLifetimeSeconds=10, overlapSeconds=3, onOpen=["subscribe"])
        await until(lambda: len(upstream.peers) == 2 and not upstream.peers[0].open, seconds=60)
        old, new = upstream.peers
        assert new.frames[0].payload == b"subscribe"
        assert old.ended_at is not None
        assert old.ended_at - old.accepted_at <= 10.5
        assert 2 <= old.ended_at - new.frames[0].at <= 4
        assert old.frames[-1].close_code == 1001
        count = len(bench.data(runner))
        await until(lambda: len(bench.data(runner)) > count + 100)
        assert gapless(numbers(bench.data(runner)))
        assert [kind for kind in bench.kinds(runner) if kind != "message"] == ["opened", "closed", "opened"]
        assert [status["state"] for status in lease.statuses if status["state"] != "CONNECTING"] == ["OPEN"]


async def test_a_socket_that_must_be_alone_is_closed_before_the_next_is_opened(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        bench.run(upstream.url(), maxLifetimeSeconds=10, overlapSeconds=9, handover="break_before_make")
        await until(lambda: len(upstream.peers) == 2, seconds=30)
        assert upstream.peers[0].ended_at is not None
        assert upstream.peers[0].ended_at <= upstream.peers[1].accepted_at
        assert upstream.peers[1].accepted_at - upstream.peers[0].accepted_at >= 7


async def test_an_overlap_of_nearly_the_whole_life_does_not_replace_it_at_once(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        bench.run(upstream.url(), maxLifetimeSeconds=10, overlapSeconds=9.9)
        await until(lambda: len(upstream.peers) >= 2, seconds=30)
        assert upstream.peers[1].accepted_at - upstream.peers[0].accepted_at >= 3


async def test_a_newer_request_replaces_the_socket_without_a_loss(bench: Bench) -> None:
    async with numbered() as upstream:
        runner, _ = bench.run(upstream.url("/old"), overlapSeconds=0.2)
        await until(lambda: len(bench.data(runner)) > 10)
        bench.spec(runner.connection, 2, url=upstream.url("/new"), overlapSeconds=0.2)
        runner.revise(bench.row(runner.connection, generation=2))
        await until(lambda: upstream.at("/new") and not upstream.at("/old")[0].open)
        count = len(bench.data(runner))
        await until(lambda: len(bench.data(runner)) > count + 100)
        assert gapless(numbers(bench.data(runner)))


async def test_a_newer_request_heals_one_that_cannot_work(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.path == "/wrong":
            await peer.answer("500 Internal Server Error")
            return
        await peer.upgrade()
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url("/wrong"))
        await until(lambda: lease.state == "BACKING_OFF")
        bench.spec(runner.connection, 2, url=upstream.url("/right"))
        runner.revise(bench.row(runner.connection, generation=2))
        await asyncio.wait_for(runner.ready.wait(), 20)
        await until(lambda: lease.state == "OPEN")
        assert "reason" not in lease.statuses[-1]


# On hold


async def test_on_hold_a_socket_stays_and_everything_is_emitted_afterwards(bench: Bench) -> None:
    async with numbered() as upstream:
        runner, lease = bench.run(upstream.url())
        await until(lambda: len(bench.data(runner)) > 10)
        lease.allow(False)
        runner.hold()
        await until(lambda: runner._outbox.buffered_messages > 100)
        runner.resume()
        lease.allow(True)
        count = len(bench.data(runner))
        await until(lambda: len(bench.data(runner)) > count + 100)
        assert gapless(numbers(bench.data(runner)))
        assert len(upstream.peers) == 1


async def test_on_hold_a_socket_that_must_be_alone_is_closed(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url(), handover="break_before_make")
        await asyncio.wait_for(runner.ready.wait(), 20)
        assert runner.exclusive
        runner.hold()
        await until(lambda: not upstream.peers[0].open)
        assert upstream.peers[0].frames[-1].close_code == 1001
        await asyncio.sleep(0.3)
        assert len(upstream.peers) == 1
        runner.resume()
        await until(lambda: len(upstream.peers) == 2)


# The store and the row


async def test_a_store_that_does_not_answer_is_asked_again(bench: Bench) -> None:
    bench.rows.silent = True
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url())
        await asyncio.sleep(0.2)
        assert lease.failed is None
        bench.rows.silent = False
        await asyncio.wait_for(runner.ready.wait(), 20)


async def test_a_request_that_is_not_there_or_not_valid_is_given_up(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        gone, gone_lease = bench.run(upstream.url(), row={"generation": 3})
        wrong, wrong_lease = bench.run(upstream.url())
        bench.rows.items[spec_key(wrong.connection, 1)] = {"spec": json.dumps({"url": upstream.url(), "nonsense": 1})}
        await until(lambda: gone_lease.failed and wrong_lease.failed)
        assert gone_lease.failed is not None
        assert wrong_lease.failed is not None
        assert gone_lease.failed["reason"] == "no_request"
        assert wrong_lease.failed["reason"] == "request_refused: nonsense"
        assert upstream.peers == []
        await gone.close()


async def test_a_standby_that_failed_says_so_once_it_may(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer("404 Not Found")

    async with RawUpstream(script) as upstream:
        runner = bench.standby(upstream.url())
        await until(lambda: upstream.peers and not upstream.peers[0].open)
        lease = Lease(runner.connection)
        await until(lambda: runner._failed)
        runner.begin(lease, None)
        assert lease.failed is not None
        assert lease.failed["reason"] == "http_404"


# Adapters


class Chatty(Adapter):
    async def prepare(self, attempt: Attempt) -> Attempt:
        handshake = dataclasses.replace(attempt.handshake, headers={"X-Signed": "now"})
        host = attempt.handshake.url.authority
        return dataclasses.replace(attempt, handshake=handshake).at(f"ws://{host}/fetched")

    def received(self, message: str | bytes) -> Iterable[Reply]:
        if message == "break":
            raise ZeroDivisionError
        return Answer(f"answer {message!s}"), Acknowledgement(f"taken {message!s}")


async def test_an_adapter_changes_the_attempt_and_answers(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text("1"))
        await peer.serve()

    bench.engine.adapters = {"chatty": Chatty}
    async with RawUpstream(script) as upstream:
        standby = bench.standby(upstream.url(), adapter="chatty")
        await until(lambda: upstream.peers and upstream.peers[0].texts())
        assert upstream.peers[0].path == "/fetched"
        assert upstream.peers[0].headers["x-signed"] == "now"
        assert upstream.peers[0].texts() == ["answer 1"], "a standby acknowledges nothing"
        standby.begin(Lease(standby.connection), None)
        await upstream.peers[0].send(text("2"))
        await until(lambda: upstream.peers[0].texts() == ["answer 1", "answer 2", "taken 2"])
        await upstream.peers[0].send(text("break"))
        await until(lambda: len(upstream.peers) == 2)
        assert bench.data(standby)[:3] == ["1", "2", "break"]


async def test_an_adapter_that_nobody_installed_is_given_up(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        _, lease = bench.run(upstream.url(), adapter="slack")
        await until(lambda: lease.failed is not None)
        assert lease.failed is not None
        assert lease.failed["reason"] == "unknown_adapter: slack"


# The process


async def test_a_stall_of_our_own_loop_closes_nothing(bench: Bench) -> None:
    """The upstream runs in a thread of its own: it answers while we stand still."""
    upstream = RawUpstream()
    listening, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with upstream:
            listening.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        await asyncio.to_thread(listening.wait)
        runners = [bench.run(upstream.url(), wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})[0] for _ in range(50)]
        await asyncio.gather(*(runner.ready.wait() for runner in runners))
        await until(lambda: sum(bool(peer.frames) for peer in upstream.peers) > 25)
        time.sleep(3.5)  # noqa: ASYNC251 - the stall
        await asyncio.sleep(3)
        assert len(upstream.peers) == 50
        assert all(peer.open for peer in upstream.peers)
        await asyncio.gather(*(runner.close() for runner in runners))
    finally:
        done.set()
        await asyncio.to_thread(thread.join)
