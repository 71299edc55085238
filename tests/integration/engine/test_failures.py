"""What becomes of a connection when its upstream misbehaves: what is tried again, what is given up, what is told."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worker.admission
import worker.retry
import worker.session
from connections.url_policy import check_url
from leases.ports import Parting
from telemetry import metrics
from tests.integration.engine.conftest import Bench, Lease
from tests.support.certificates import Authority
from tests.support.upstream import BINARY, CLOSE, TEXT, Peer, RawUpstream, Script, behave, close, frame, text, until
from worker.dial import Dialer, Resolver
from worker.retry import Kind
from worker.runner import Runner
from worker.upstream import READ_BYTES

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("quick")]


async def given_up(runner: Runner, lease: Lease) -> str:
    """The reason of a connection that has FAILED."""
    await until(lambda: lease.failed is not None)
    assert lease.failed is not None
    assert lease.failed["state"] == lease.state == "FAILED"
    await runner.settle(Parting.FAILED)
    await runner.close()
    return str(lease.failed["reason"])


def refuse(status: str, **headers: str) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.answer(status, {name.replace("_", "-"): value for name, value in headers.items()})

    return script


async def test_a_secret_is_read_at_every_attempt_and_unauthorised_gets_one_more(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.headers["authorization"] != "Bearer t2" or peer.path != "/feed?key=a%26b":
            bench.secrets["token"] = "t2"
            await peer.answer("401 Unauthorized")
            return
        await behave(peer)

    bench.secrets |= {"token": "t1", "keys": '{"feed": "a&b"}'}
    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(
            upstream.url("/feed?key=${key}"),
            headers={"Authorization": "Bearer ${token}"},
            secretRefs={"token": "token", "key": "keys#feed"},
        )
        await asyncio.wait_for(runner.ready.wait(), 20)
        assert len(upstream.peers) == 2
        assert lease.failed is None


async def test_unauthorised_twice_is_given_up(bench: Bench) -> None:
    async with RawUpstream(refuse("403 Forbidden")) as upstream:
        runner, lease = bench.run(upstream.url())
        assert await given_up(runner, lease) == "auth"
        assert len(upstream.peers) == 2


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
async def test_what_is_not_there_is_given_up_at_once(bench: Bench, status: str) -> None:
    async with RawUpstream(refuse(status)) as upstream:
        runner, lease = bench.run(upstream.url())
        assert await given_up(runner, lease) == f"http_{status[:3]}"
        assert len(upstream.peers) == 1


async def test_a_certificate_error_is_given_up_at_once(bench: Bench, tmp_path: Path) -> None:
    async with RawUpstream(context=Authority(tmp_path).server("localhost")) as upstream:
        runner, lease = bench.run(upstream.url())
        assert (await given_up(runner, lease)).startswith("certificate: ")


async def test_a_name_that_resolves_to_what_is_not_public_is_given_up(bench: Bench) -> None:
    def lookup(host: str, port: int) -> list[str]:
        return ["10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "169.254.170.2"]

    bench.engine.dialer = Dialer(Resolver(bench.engine._executor, lookup), bench.engine.dialer._context)
    runner, lease = bench.run("wss://feed.example.com/")
    assert (await given_up(runner, lease)).startswith("blocked: ")


async def test_only_the_permitted_address_is_dialled_with_the_name_in_host_and_sni(bench: Bench) -> None:
    def lookup(host: str, port: int) -> list[str]:
        assert host == "localhost"
        return ["169.254.169.254", "127.0.0.1"]

    bench.engine.dialer = Dialer(Resolver(bench.engine._executor, lookup), bench.engine.dialer._context)
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url())
        await asyncio.wait_for(runner.ready.wait(), 5)
        assert upstream.peers[0].headers["host"].startswith("localhost:")
        assert await bench.engine.dialer._checked(check_url(upstream.url(), bench.engine.policy)) == ["127.0.0.1"]


async def test_a_message_above_the_limit_is_given_up_at_the_third_time_with_its_size(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text("fits") + frame(BINARY, b"x" * 1001))
        await peer.expect(CLOSE)

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), limits={"maxMessageBytes": 1000})
        reason = await given_up(runner, lease)
        assert reason.startswith("message_too_big: ")
        assert "1001" in reason
        assert len(upstream.peers) == 3
        assert [peer.frames[-1].close_code for peer in upstream.peers] == [1009] * 3
        assert bench.data(runner) == ["fits"] * 3
        assert bench.record(runner, "closed")["code"] == 1009
        assert any("message_too_big" in status.get("reason", "") for status in lease.statuses[:-1])


async def test_a_policy_violation_is_given_up_at_the_third_time(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(text("invalid API key") + close(1008, "no"))
        await peer.expect(CLOSE)

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url())
        assert await given_up(runner, lease) == "closed_1008: no"
        assert len(upstream.peers) == 3


async def test_close_codes_and_statuses_that_the_request_calls_fatal_are(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        await peer.send(close(4401))
        await peer.expect(CLOSE)

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url(), retry={"fatalCloseCodes": [4401]})
        assert await given_up(runner, lease) == "closed_4401"
        upstream.script = refuse("418 I'm a teapot")
        runner, lease = bench.run(upstream.url(), retry={"fatalHttpStatuses": [418]})
        assert await given_up(runner, lease) == "http_418"
        runner, lease = bench.run(upstream.url(), retry={"maxAttempts": 2})
        assert await given_up(runner, lease) == "max_attempts: http_418"
        assert len(upstream.peers) == 4


async def test_no_subprotocol_is_shown_and_given_up_at_the_third_time(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url(), subprotocols=["mqtt", "mqttv3.1"])
        assert "chose none of those offered" in await given_up(runner, lease)
        assert len(upstream.peers) == 3
        assert lease.statuses[-2]["state"] == "BACKING_OFF"


async def test_a_redirect_is_not_followed(bench: Bench) -> None:
    async with RawUpstream() as target, RawUpstream(refuse("307 Temporary", Location=target.url())) as upstream:
        _, lease = bench.run(upstream.url())
        await until(lambda: len(upstream.peers) >= 3)
        assert target.peers == []
        assert lease.statuses[-1]["state"] == "BACKING_OFF"
        assert lease.statuses[-1]["reason"] == "http_307: a redirect is not followed"


async def test_a_handshake_in_slow_motion_is_a_time_out(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in peer.switching():
            await peer.send(bytes([byte]))
            await asyncio.sleep(0.2)

    bench.engine.dialer.attempt_seconds = 0.5
    async with RawUpstream(script) as upstream:
        _, lease = bench.run(upstream.url())
        await until(lambda: len(upstream.peers) >= 2)
        assert lease.statuses[-1]["reason"].startswith("timeout: ")
        assert bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.TIMEOUT) >= 1


async def test_the_whole_group_honours_retry_after(bench: Bench) -> None:
    async with RawUpstream() as upstream, RawUpstream() as other:
        first, _ = bench.run(upstream.url(), group="venue")
        await asyncio.wait_for(first.ready.wait(), 20)
        upstream.script = refuse("429 Too Many Requests", Retry_After="2")
        _, second = bench.run(upstream.url(), group="venue")
        await until(lambda: len(upstream.peers) == 2)
        refused_at = upstream.peers[1].accepted_at
        upstream.script = behave
        third, _ = bench.run(upstream.url(), group="venue")
        elsewhere, _ = bench.run(other.url(), group="elsewhere")
        await asyncio.wait_for(elsewhere.ready.wait(), 1)
        await until(lambda: second.state == "BACKING_OFF")
        assert second.statuses[-1]["reason"] == "http_429"
        await asyncio.wait_for(third.ready.wait(), 20)
        await until(lambda: len(upstream.peers) == 4)
        assert all(peer.accepted_at - refused_at >= 1.9 for peer in upstream.peers[2:])
        assert bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.RATE_LIMITED) == 1


async def test_what_differs_in_its_query_only_honours_retry_after_together(bench: Bench) -> None:
    async with RawUpstream(refuse("429 Too Many Requests", Retry_After="2")) as upstream:
        _, first = bench.run(upstream.url("?token=1"))
        await until(lambda: first.state == "BACKING_OFF")
        upstream.script = behave
        second, _ = bench.run(upstream.url("?token=2"))
        await asyncio.wait_for(second.ready.wait(), 20)
        refused, *others = upstream.peers
        assert all(peer.accepted_at - refused.accepted_at >= 1.9 for peer in others)


@pytest.mark.parametrize("value", ["30 \xe9", "Fri, 01 Jan 9999999999 00:00:00 GMT", "soon"])
async def test_a_retry_after_that_makes_no_sense_is_the_back_off_of_the_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr(worker.admission, "RATE_LIMITED_FIRST_WAIT", 2.0)

    async def script(peer: Peer) -> None:
        await peer.request()
        head = f"HTTP/1.1 429 Too Many Requests\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n"
        await peer.send(head.encode("latin-1"))

    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(upstream.url())
        await until(lambda: lease.state == "BACKING_OFF")
        assert (lease.statuses[-1]["reason"], lease.statuses[-1]["attempts"]) == ("http_429", 1)
        upstream.script = behave
        await asyncio.wait_for(runner.ready.wait(), 20)
        assert upstream.peers[1].accepted_at - upstream.peers[0].accepted_at >= 1.9
        assert bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.INTERNAL) == 0


async def test_a_secret_that_is_not_there_is_shown_and_tried_again(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        runner, lease = bench.run(
            upstream.url(), headers={"Authorization": "${token}"}, secretRefs={"token": "websocket-fleet/t"}
        )
        await until(lambda: lease.state == "BACKING_OFF")
        assert lease.statuses[-1]["reason"] == "secret: secret 'websocket-fleet/t': ResourceNotFoundException"
        assert upstream.peers == []
        bench.secrets["websocket-fleet/t"] = "x"
        await asyncio.wait_for(runner.ready.wait(), 20)


async def test_a_secret_cannot_break_a_header(bench: Bench) -> None:
    bench.secrets["token"] = "x\r\nX-Evil: 1"
    async with RawUpstream() as upstream:
        _, lease = bench.run(upstream.url(), headers={"Authorization": "${token}"}, secretRefs={"token": "token"})
        await until(lambda: lease.state == "BACKING_OFF")
        assert lease.statuses[-1]["reason"] == "secret: the secret in header Authorization is not printable ASCII"
        assert upstream.peers == []


@pytest.mark.parametrize("fault", ["none", "401", "dns", "tls", "1008"])
async def test_no_secret_reaches_a_log_or_a_status(bench: Bench, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: Peer) -> None:
        if fault == "401":
            await refuse("401 Unauthorized")(peer)
        elif fault == "tls":
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif fault == "1008":
            await peer.upgrade()
            await peer.send(close(1008))
            await peer.expect(CLOSE)
        else:
            await behave(peer)

    bench.secrets["token"] = "SENTINEL-77aa"
    async with RawUpstream(script) as upstream:
        url = upstream.url("/?token=SENTINEL-93f1&also=${token}")
        if fault in ("dns", "tls"):
            url = url.replace("ws:", "wss:")
        if fault == "dns":
            url = url.replace("localhost", "nowhere.invalid")
        with caplog.at_level(logging.DEBUG):
            runner, lease = bench.run(
                url,
                headers={"Authorization": "Bearer ${token}", "X-Plain": "SENTINEL-aaaa"},
                secretRefs={"token": "token"},
                onOpen=["login ${token}", "SENTINEL-bbbb"],
            )
            await until(lambda: len(lease.statuses) >= 3 or runner.ready.is_set())
            await runner.settle(Parting.STOPPED)
            await runner.close()
    said = caplog.text + repr([record.__dict__ for record in caplog.records]) + repr(lease.statuses)
    assert "SENTINEL" not in said + repr(bench.records(runner.connection))


async def test_a_close_reason_that_repeats_a_secret_is_not_quoted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        if len(upstream.peers) == 1:
            await peer.expect(TEXT)
            await peer.send(close(4001, "no SENTINEL-93f1, SENTINEL-77aa, SENTINEL-aaaa or SENTINEL-0b"))
            await peer.expect(CLOSE)
            return
        await peer.serve()

    bench.secrets["token"] = "SENTINEL-77aa"
    async with RawUpstream(script) as upstream:
        runner, lease = bench.run(
            upstream.url("/?token=SENTINEL-93f1"),
            headers={"X-Plain": "SENTINEL-aaaa"},
            secretRefs={"token": "token"},
            onOpen=["login ${token}", "SENTINEL-0b0d"],
        )
        await until(lambda: bench.kinds(runner)[-1:] == ["opened"] and len(upstream.peers) == 2)
        shown = "no [redacted], [redacted], [redacted] or [redacted]"
        assert bench.record(runner, "closed")["reason"] == shown
        assert lease.statuses[-1]["lastClose"]["reason"] == shown
        logged = caplog.text + repr([record.__dict__ for record in caplog.records])
        assert "closed_4001" in logged
        assert "SENTINEL" not in logged + repr(lease.statuses) + repr(bench.records(runner.connection))


async def test_a_silent_peer_is_pinged_and_then_aborted_without_a_good_bye(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        if len(upstream.peers) == 1:
            await peer.until_closed()
        await peer.serve()

    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url(), wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})
        await until(lambda: len(upstream.peers) == 2)
        assert [seen.opcode for seen in upstream.peers[0].frames] == [9]
        await until(lambda: "closed" in bench.kinds(runner))
        told = bench.record(runner, "closed")
        assert (told["code"], told["reason"]) == (1006, "ping_timeout")
        pings = upstream.peers[1].frames
        await until(lambda: len(pings) >= 3)
        assert upstream.peers[1].open


async def test_a_feed_without_messages_is_reopened_even_if_pongs_come(bench: Bench) -> None:
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url(), staleAfterSeconds=2, wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})
        await until(lambda: len(upstream.peers) == 2)
        assert bench.record(runner, "closed")["reason"] == "stale"
        assert upstream.peers[0].frames[-1].close_code == 1001


@pytest.mark.parametrize("ping", [None, {"intervalSeconds": 20, "timeoutSeconds": 20}])
async def test_a_feed_is_reopened_when_it_is_stale_however_it_is_pinged(
    bench: Bench, ping: dict[str, float] | None
) -> None:
    async with RawUpstream() as upstream:
        runner, _ = bench.run(upstream.url(), staleAfterSeconds=2, wsPing=ping)
        await until(lambda: upstream.peers and upstream.peers[0].frames)
        first = upstream.peers[0]
        assert first.upgraded_at is not None
        assert 1.9 < first.frames[0].at - first.upgraded_at < 5
        await until(lambda: "closed" in bench.kinds(runner))
        assert bench.record(runner, "closed")["reason"] == "stale"


async def test_application_pings_go_on_while_the_sink_is_stalled_and_data_flows(bench: Bench) -> None:
    async def script(peer: Peer) -> None:
        await peer.upgrade()
        reading = asyncio.create_task(peer.serve())
        while not reading.done():
            await peer.send(text("tick"))
            await asyncio.sleep(0.01)
        await reading

    bench.sink.stalled = True
    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url(), appPing={"payload": {"base64": "wAA="}, "intervalSeconds": 1})
        await until(lambda: upstream.peers and len(upstream.peers[0].frames) == 3)
        assert [seen.payload for seen in upstream.peers[0].frames] == [b"\xc0\x00"] * 3
        times = [seen.at for seen in upstream.peers[0].frames]
        assert 1.9 < times[2] - times[0] < 10
        bench.sink.stalled = False
        await until(lambda: bench.data(runner))


async def test_a_full_buffer_closes_the_connection_and_says_so_and_nothing_accepted_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.session, "EASE_SECONDS", 0.5)
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.upgrade()
        reading = asyncio.create_task(peer.serve())
        while not reading.done():
            await peer.send(text(f"{sent:06} " + "x" * 2000))
            sent += 1
        await reading

    bench.sink.stalled = True
    async with RawUpstream(script) as upstream:
        runner, _ = bench.run(upstream.url())
        await until(lambda: upstream.peers and not upstream.peers[0].open)
        held = runner._outbox.buffered_bytes
        assert held <= 4 * 1024 * 1024 + 2 * READ_BYTES, "one read past the bound"
        assert upstream.peers[0].frames[-1].close_code == 1001
        assert bench.output.counts().stalls == 1
        accepted = runner._outbox.buffered_messages
        await asyncio.sleep(0.5)
        assert len(upstream.peers) == 1, "there is no room to read into as yet"
        upstream.script = behave
        bench.sink.stalled = False
        await until(lambda: len(upstream.peers) == 2)
        await until(lambda: bench.kinds(runner)[-1] == "opened")
        numbers = [int(data[:6]) for data in bench.data(runner)]
        assert numbers == list(range(accepted))
        assert bench.record(runner, "gap")["reason"] == "sink_stalled"


# Faults of our own


class Faulty:
    """Breaks so many times, and then does what it stands for."""

    def __init__(self, stands_for: Callable[..., Any], times: float) -> None:
        self._stands_for = stands_for
        self.left = times

    def __call__(self, *arguments: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            raise ZeroDivisionError("SENTINEL")
        return self._stands_for(*arguments)


@pytest.mark.parametrize("where", ["load", "attempt"])
async def test_a_fault_of_our_own_is_logged_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    broken, name = (bench.rows, "get") if where == "load" else (bench.engine.secrets, "values")
    monkeypatch.setattr(broken, name, Faulty(getattr(broken, name), 2))
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url())
        await asyncio.wait_for(runner.ready.wait(), 20)
        assert lease.failed is None
        assert [status["state"] for status in lease.statuses].count("BACKING_OFF") >= 1
    assert bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.INTERNAL) == 2
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["reason"] for record in faults] == ["ZeroDivisionError"] * 2
    assert all("runner._live" in record.__dict__["stack"] for record in faults)
    assert "SENTINEL" not in caplog.text


async def test_a_fault_of_our_own_that_stays_is_given_up_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker.retry._STRIKES, Kind.FAULT, 3)
    monkeypatch.setattr(bench.engine.secrets, "values", Faulty(bench.engine.secrets.values, float("inf")))
    runner, lease = bench.run("ws://localhost:1/")
    assert await given_up(runner, lease) == "internal_error: ZeroDivisionError"


async def test_a_fault_beside_an_open_socket_leaves_it_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url("/old"))
        await asyncio.wait_for(runner.ready.wait(), 20)
        monkeypatch.setattr(bench.engine.secrets, "values", Faulty(bench.engine.secrets.values, 2))
        bench.spec(runner.connection, 2, url=upstream.url("/new"), overlapSeconds=0)
        runner.revise(bench.row(runner.connection, generation=2))
        await until(lambda: bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.INTERNAL) == 2)
        assert upstream.at("/old")[0].open
        await until(lambda: upstream.at("/new") and not upstream.at("/old")[0].open)
        assert {status["state"] for status in lease.statuses} <= {"CONNECTING", "OPEN"}


async def test_a_keepalive_that_breaks_costs_its_own_socket_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with RawUpstream() as upstream:
        runner, lease = bench.run(upstream.url("/broken"), wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})
        other, _ = bench.run(upstream.url("/sound"), wsPing={"intervalSeconds": 1, "timeoutSeconds": 1})
        await asyncio.wait_for(runner.ready.wait(), 20)
        await asyncio.wait_for(other.ready.wait(), 20)
        assert runner._session is not None
        monkeypatch.setattr(runner._session, "_pulse", None)
        await until(lambda: len(upstream.at("/broken")) == 2)
        sound = upstream.at("/sound")[0]
        pings = len(sound.frames)
        await until(lambda: len(sound.frames) > pings)
        assert sound.open
        assert lease.failed is None
        assert bench.record(runner, "closed")["reason"] == "internal_error"
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["connectionId"] for record in faults] == [runner.connection]


async def test_attempts_that_fail_alike_are_counted_and_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        bench.run("ws://localhost:1/")
        await until(lambda: bench.meter.of(metrics.CONNECT_FAILURES, metrics.Reason.TCP) >= 4)
    told = [record for record in caplog.records if record.__dict__.get("event") == "connect_failed"]
    assert [record.__dict__["reason"] for record in told] == ["tcp"]
