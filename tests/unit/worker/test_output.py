"""Outbox and pump together: order, bounds, fencing, hand-over."""

import asyncio
import gc
import threading
import time
import tracemalloc
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from leases.rows import DIGEST_BYTES, HANDOFF_MESSAGES, Handoff
from tests.unit.worker.outputs import FakeGrant, Record, ScriptedSink, lose_answer, output, take_all, until
from worker.outbox import Discarded, Outbox, Overflow
from worker.output import Output
from worker.records import STREAM_LIMITS, Control, Entry, Header, Stamps, digest, encode
from worker.sinks import TAKEN, Outcome, Verdict, refuse_call


@asynccontextmanager
async def pumping(out: Output) -> AsyncIterator[Output]:
    task = asyncio.create_task(out.run())
    try:
        yield out
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), task.exception()


def only(connection: str, verdict: Verdict) -> Callable[[Sequence[Entry]], Sequence[Verdict]]:
    return lambda entries: [verdict if entry.header.connection == connection else TAKEN for entry in entries]


def data(records: list[Record]) -> list[str]:
    return [record["data"] for record in records if record["type"] == "message"]


async def test_records_are_as_documented() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        box.control(Control.OPENED, {})
        box.accept(['"é"\n'], 1_700_000_000.0625)
        box.accept([b"\x00\xff"], 1_700_000_001.5)
        box.control(Control.CLOSED, {"code": 1001, "reason": "bye"})
        await box.flush()
    common = {"connectionId": "c", "epoch": 7, "workerId": "session-1"}
    at = "2027-01-15T08:00:00.250Z"
    assert sink.records() == [
        common | {"seq": 1, "type": "opened", "receivedAt": at},
        common
        | {"seq": 2, "type": "message", "receivedAt": "2023-11-14T22:13:20.062Z", "encoding": "text", "data": '"é"\n'},
        common
        | {"seq": 3, "type": "message", "receivedAt": "2023-11-14T22:13:21.500Z", "encoding": "base64", "data": "AP8="},
        common | {"seq": 4, "type": "closed", "receivedAt": at, "code": 1001, "reason": "bye"},
    ]


async def test_nothing_is_emitted_without_a_grant() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        standby, owner = out.outbox("standby"), out.outbox("owner")
        standby.accept(["kept"], 1.0)
        owner.begin(FakeGrant("owner"), None)
        owner.accept(["sent"], 1.0)
        await owner.flush()
        assert data(sink.records()) == ["sent"]
        assert standby.buffered_messages == 1


async def test_an_unknown_outcome_is_sent_again_under_the_same_numbers() -> None:
    sink = ScriptedSink(lose_answer, lose_answer)
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for n in range(3):
            box.accept([f"m{n}"], 1.0)
        await until(lambda: sink.calls)
        box.accept(["m3"], 1.0)
        await box.flush()
    assert [record["seq"] for record in sink.records()][:6] == [1, 2, 3, 1, 2, 3]
    assert data(sink.consumed("c")) == ["m0", "m1", "m2", "m3"]
    assert out.counts().retries >= 2


async def test_one_refused_entry_of_a_batch_does_not_disturb_the_others() -> None:
    throttled = only("b", Verdict(Outcome.AGAIN, "ProvisionedThroughputExceededException"))
    sink = ScriptedSink(throttled, throttled, throttled)
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        boxes = {name: out.outbox(name) for name in "abc"}
        for name, box in boxes.items():
            box.begin(FakeGrant(name), None)
            for n in range(5):
                box.accept([f"{name}{n}"], 1.0)
        sink.gate.set()
        await asyncio.gather(*(box.flush() for box in boxes.values()))
    for name in "abc":
        assert data(sink.records(name)) == [f"{name}{n}" for n in range(5)]
        assert [record["seq"] for record in sink.records(name)] == [1, 2, 3, 4, 5]


async def test_at_most_one_entry_of_a_connection_is_unacknowledged() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for n in range(50):
            box.accept([str(n)], 1.0)
            await asyncio.sleep(0)
        other = out.outbox("other")
        other.begin(FakeGrant("other"), None)
        other.accept(["x"], 1.0)
        sink.gate.set()
        await asyncio.gather(box.flush(), other.flush())
    for call in sink.calls:
        assert [entry.header.connection for entry in call].count("c") <= 1
    assert data(sink.records("c")) == [str(n) for n in range(50)]


async def test_a_record_that_is_refused_for_good_becomes_a_gap_and_the_rest_goes_on() -> None:
    def poison(entries: Sequence[Entry]) -> Sequence[Verdict]:
        refused = Verdict(Outcome.REFUSED, "ValidationException")
        return [refused if b"poison" in entry.data else TAKEN for entry in entries]

    sink = ScriptedSink(*[poison] * 100)
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for text in ("a", "b", "poison", "c"):
            box.accept([text], 1_700_000_000.0)
        await box.flush()
    gap = sink.records()[2]
    assert gap["type"] == "gap"
    assert gap["reason"] == "sink_refused"
    assert gap["code"] == "ValidationException"
    assert data(sink.records()) == ["a", "b", "c"]
    assert [record["seq"] for record in sink.records()] == [1, 2, 3, 4]
    assert out.counts().discarded == 1


async def test_a_batch_refused_as_a_whole_is_taken_apart() -> None:
    """A stream answers one bad record among many with an error for the whole call."""

    def whole(entries: Sequence[Entry]) -> Sequence[Verdict]:
        if any(b"poison" in entry.data for entry in entries):
            return refuse_call(entries, "InvalidArgumentException")
        return [TAKEN] * len(entries)

    sink = ScriptedSink(*[whole] * 100)
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        boxes = {name: out.outbox(name) for name in "abc"}
        for name, box in boxes.items():
            box.begin(FakeGrant(name), None)
            box.accept(["fine"], 1.0)
        boxes["b"].accept(["poison"], 1.0)
        sink.gate.set()
        await asyncio.gather(*(box.flush() for box in boxes.values()))
    for name in "abc":
        assert data(sink.records(name)) == ["fine"]
    assert [record["type"] for record in sink.records("b")] == ["message", "gap"]


async def test_on_hold_nothing_leaves_and_afterwards_everything_does() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        held, free = FakeGrant("held"), FakeGrant("free")
        held.allowed.clear()
        box, other = out.outbox("held"), out.outbox("free")
        box.begin(held, None)
        other.begin(free, None)
        box.accept(["late"], 1.0)
        other.accept(["now"], 1.0)
        await other.flush()
        assert data(sink.records()) == ["now"]
        held.allowed.set()
        await box.flush()
        assert data(sink.records("held")) == ["late"]


async def test_a_permission_that_ends_while_the_call_is_prepared_stops_it() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        grant = FakeGrant()
        box = out.outbox("c")
        box.begin(grant, None)
        box.accept(["m"], 1.0)
        await until(lambda: box.buffered_bytes and box._parcel is not None)
        grant.allowed.clear()
        sink.gate.set()
        await until(lambda: out._failures)
        assert not sink.arrived
        grant.allowed.set()
        await box.flush()
        assert data(sink.records()) == ["m"]


async def test_discard_drops_everything_and_ends_a_flush() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for n in range(4):
            box.accept([str(n)], 1.0)
        box.control(Control.CLOSED, {"code": 1006, "reason": ""})
        flushing = asyncio.create_task(box.flush())
        await until(lambda: box._parcel is not None)
        assert box.discard() == 4
        with pytest.raises(Discarded):
            await flushing
        assert box.buffered_bytes == out.budget.used == 0
        box.accept(["after"], 1.0)
        sink.gate.set()
        other = out.outbox("other")
        other.begin(FakeGrant("other"), None)
        other.accept(["x"], 1.0)
        await other.flush()
        assert "after" not in data(sink.records())


async def test_an_answer_to_what_was_discarded_counts_for_nothing() -> None:
    answer_old, answer_new = threading.Event(), threading.Event()

    def after(event: threading.Event) -> Callable[[Sequence[Entry]], Sequence[Verdict]]:
        return lambda entries: take_all(entries) if event.wait(20) else []

    sink = ScriptedSink(after(answer_old), after(answer_new))
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(epoch=7), None)
        for n in range(50):
            box.accept([f"old {n}"], 1.0)
        await until(lambda: len(sink.calls) == 1)
        box.discard()
        box.begin(FakeGrant(epoch=9), None)
        for n in range(3):
            box.accept([f"new {n}"], 1.0)
        await until(lambda: len(sink.calls) == 2)
        flushing = asyncio.create_task(box.flush())
        answer_old.set()
        await until(lambda: out._counts.records == 50)
        assert not flushing.done()
        answer_new.set()
        assert (await flushing).handoff.last_seq == 3
    assert out.budget.used == 0


async def test_flush_ends_the_epoch_and_a_new_grant_begins_the_next() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(epoch=7), None)
        box.invite()
        box.accept(["a"], 1.0)
        remains = await box.flush()
        assert remains.handoff == Handoff(digests=digest("a"), last_seq=1)
        box.accept(["b"], 1.0)
        other = out.outbox("other")
        other.begin(FakeGrant("other"), None)
        other.accept(["x"], 1.0)
        await other.flush()
        assert data(sink.records("c")) == ["a"]
        box.begin(FakeGrant(epoch=8), None)
        remains = await box.flush()
    assert [(r["epoch"], r["seq"], r["data"]) for r in sink.records("c")] == [(7, 1, "a"), (8, 1, "b")]
    assert remains.handoff == Handoff(digests=digest("a") + digest("b"), last_seq=1)


async def test_a_hand_over_names_the_last_messages_only() -> None:
    async with pumping(output(ScriptedSink())) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        box.invite()
        for n in range(HANDOFF_MESSAGES + 10):
            box.accept([str(n)], 1.0)
        remains = await box.flush()
    expected = b"".join(digest(str(n)) for n in range(10, HANDOFF_MESSAGES + 10))
    assert remains.handoff.digests == expected
    assert remains.handoff.last_seq == HANDOFF_MESSAGES + 10


async def test_a_hand_over_names_nothing_that_came_before_the_standby() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        box.accept(["door open"], 1.0)
        await until(lambda: len(sink.records()) == 1)
        box.accept(["door closed"], 1.0)
        box.invite()
        box.accept(["alarm"], 1.0)
        # One that was declined, and another one: the first may still be there.
        box.invite()
        remains = await box.flush()
    assert remains.handoff == Handoff(digests=digest("alarm"), last_seq=3)


async def test_what_comes_again_when_no_socket_lags_so_far_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.outbox.LAG_SECONDS", -1.0)
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(epoch=8), handed("door open", "door closed"))
        box.accept(["door open"], 1.0)
        await box.flush()
    assert data(sink.records()) == ["door open"]


def handed(*texts: str) -> Handoff:
    return Handoff(digests=b"".join(map(digest, texts)), last_seq=len(texts))


async def test_a_standby_goes_on_behind_the_last_message_of_the_old_owner() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.control(Control.OPENED, {})
        for n in (8, 9, 10, 11):
            box.accept([f"m{n}"], 1.0)
        box.begin(FakeGrant(epoch=8), handed("m7", "m8", "m9", "m10"))
        box.accept(["m12"], 1.0)
        await box.flush()
    assert [record["type"] for record in sink.records()] == ["opened", "message", "message"]
    assert data(sink.records()) == ["m11", "m12"]
    assert out.budget.used == 0


async def test_a_standby_that_recognizes_nothing_emits_everything_after_a_gap() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.accept(["m12"], 1.0)
        box.begin(FakeGrant(epoch=8), handed("m7", "m8"))
        await box.flush()
        assert out.budget.used == 0
    gap, *rest = sink.records()
    assert (gap["type"], gap["reason"], gap["resumed"]) == ("gap", "not_matched", False)
    assert data(rest) == ["m12"]


async def test_a_standby_whose_socket_lags_drops_what_it_receives_late() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.accept(["m8"], 1.0)
        box.begin(FakeGrant(epoch=8), handed("m7", "m8", "m9", "m10"))
        for n in (9, 10, 11, 9):
            box.accept([f"m{n}"], 1.0)
        await box.flush()
    assert data(sink.records()) == ["m11", "m9"]


async def test_of_a_feed_that_can_replay_what_the_owner_before_emitted_is_passed_on() -> None:
    async with pumping(output(ScriptedSink())) as out:
        box = out.outbox("c")
        box.cursor_of = str
        box.begin(FakeGrant(epoch=8), handed("m1", "m2"))
        box.invite()
        assert (await box.flush()).handoff == Handoff(digests=digest("m1") + digest("m2"), last_seq=0)


async def test_a_standby_without_a_hand_over_emits_everything_after_a_gap() -> None:
    sink = ScriptedSink()
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.accept(["a"], 1_700_000_000.0)
        box.accept(["b"], 1_700_000_001.0)
        box.begin(FakeGrant(epoch=8), None)
        await box.flush()
    gap, *rest = sink.records()
    assert (gap["type"], gap["seq"], gap["reason"], gap["resumed"]) == ("gap", 1, "not_handed_over", False)
    assert gap["to"] == "2023-11-14T22:13:20.000Z"
    assert data(rest) == ["a", "b"]


async def test_large_messages_are_split_and_come_back_whole() -> None:
    sink = ScriptedSink()
    texts = ["é" * 500_000, "\x00" * 400_000, "plain" * 100_000]
    binary = bytes(range(256)) * 8000
    async with pumping(output(sink, connection_bytes=1 << 24)) as out:
        box = out.outbox("c")
        box.cursor_of = lambda message: str(len(message))
        box.begin(FakeGrant(), None)
        for text in texts:
            box.accept([text], 1.0)
        box.accept([binary], 1.0)
        remains = await box.flush()
    assert all(len(entry.data) <= 1024 * 1024 - 32 for entry in sink.arrived)
    whole: list[str | bytes] = []
    pieces: list[Any] = []
    for record in sink.records():
        piece = record["data"] if record["encoding"] == "text" else b64decode(record["data"])
        assert record.get("part", 1) == len(pieces) + 1
        pieces.append(piece)
        if record.get("part", 1) == record.get("parts", 1):
            whole.append(pieces[0][:0].join(pieces))
            pieces = []
    assert whole == [*texts, binary]
    assert [record.get("parts") for record in sink.records()] == [2, 2, 3, 3, 3, None, 3, 3, 3]
    assert [record["seq"] for record in sink.records()] == list(range(1, len(sink.records()) + 1))
    assert remains.cursor == str(len(binary))
    assert remains.handoff.digests == b"".join(digest(message) for message in whole)


def fill(box: Outbox) -> int:
    """Accept messages of 1,000 bytes until the outbox is full; returns how many it took."""
    for taken in range(1, 1000):
        if not box.accept(["x" * 1000], 1.0):
            return taken
    raise AssertionError("it is never full")


async def test_a_full_buffer_is_waited_for() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    async with pumping(output(sink, connection_bytes=100_000)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        taken = fill(box)
        assert 80 <= taken < 100
        assert 100_000 < box.buffered_bytes < 102_000
        with pytest.raises(Overflow):
            await box.until_room(0.01)
        box.control(Control.GAP, {"from": None, "to": None, "resumed": False, "reason": "sink_stalled"})
        waiting = asyncio.gather(box.until_room(20), box.until_half_empty())
        await asyncio.sleep(0)
        assert not waiting.done()
        sink.gate.set()
        await waiting
        await box.flush()
    assert len(data(sink.records())) == taken
    assert sink.records()[-1]["type"] == "gap"
    assert out.budget.used == 0
    assert out.counts().stalls == 1


@pytest.mark.parametrize("text", ["plain", "é", "例え", "\U0001f600", "\x00"])
async def test_what_was_counted_is_given_back_exactly(text: str) -> None:
    """Also after attempts that failed: encoding a text can make the interpreter keep a second form of it."""
    sink = ScriptedSink(lose_answer, limits=replace(STREAM_LIMITS, entry_bytes=5000))
    async with pumping(output(sink, connection_bytes=1 << 24)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for n in range(50):
            box.accept([text * n * 20], 1.0)
            box.accept([(text * n).encode()], 1.0)
        box.accept([text * 500_000], 1.0)
        box.control(Control.CLOSED, {"code": 1000, "reason": ""})
        await until(lambda: len(sink.calls) > 3)
        assert box.buffered_bytes == out.budget.used
        await box.flush()
        assert box.buffered_bytes == out.budget.used == 0


async def test_what_one_read_brought_goes_past_the_bound_of_a_connection() -> None:
    texts = [f"{n:01000}" for n in range(100)]
    sink = ScriptedSink()
    async with pumping(output(sink, connection_bytes=50_000)) as out:
        box = out.outbox("c")
        assert not box.accept(texts, 1.0)
        box.begin(FakeGrant(), Handoff(digests=b"", last_seq=0))
        await box.flush()
        assert data(sink.records()) == texts
        assert out.budget.used == 0


async def test_of_what_came_in_one_read_the_beginning_that_the_process_has_room_for_is_accepted() -> None:
    texts = [f"{n:01000}" for n in range(100)]
    sink = ScriptedSink()
    async with pumping(output(sink, total=90_960)) as out:
        box = out.outbox("c")
        with pytest.raises(Overflow) as refused:
            box.accept(texts, 1.0)
        taken = refused.value.accepted
        assert 40 <= taken < 50
        assert box.buffered_messages == taken
        assert box.buffered_bytes <= out.budget.pool == 50_000
        assert out.counts().stalls == 1
        box.begin(FakeGrant(), Handoff(digests=b"", last_seq=0))
        await box.flush()
        assert data(sink.records()) == texts[:taken]
        assert out.budget.used == 0


async def test_a_large_message_between_small_ones_of_a_read_is_split_in_its_place() -> None:
    sink = ScriptedSink()
    large = "\x00" * 300_000
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        box.accept(["before", large, "after"], 1.0)
        await box.flush()
    assert data(sink.records())[0] == "before"
    assert data(sink.records())[-1] == "after"
    assert "".join(data(sink.records())[1:-1]) == large


async def test_a_flood_elsewhere_leaves_every_connection_its_share() -> None:
    async with pumping(output(ScriptedSink(), total=50_000, share=4096)) as out:
        flooded, quiet = out.outbox("flooded"), out.outbox("quiet")
        assert fill(flooded) >= 3
        assert flooded.buffered_bytes <= out.budget.pool
        with pytest.raises(Overflow):
            flooded.accept(["x" * 1000] * 10, 1.0)
        for _ in range(3):
            assert quiet.accept(["x" * 1000], 1.0)
        with pytest.raises(Overflow):
            quiet.accept(["x" * 1000], 1.0)
        assert flooded.full
        assert out.budget.used <= 50_000


async def test_a_message_of_any_size_goes_into_an_empty_buffer() -> None:
    async with pumping(output(ScriptedSink(), connection_bytes=1000)) as out:
        box = out.outbox("c")
        assert not box.accept(["x" * 50_000], 1.0)
    async with pumping(output(ScriptedSink(), total=50_000)) as out:
        box = out.outbox("c")
        assert not box.accept(["x" * 50_000], 1.0)
        with pytest.raises(Overflow):
            box.accept(["x"], 1.0)


@pytest.mark.parametrize("size", [20, 200, 4000])
async def test_buffered_bytes_are_what_the_buffer_takes_in_memory(size: int) -> None:
    box = output(ScriptedSink(), total=1 << 26, connection_bytes=1 << 26).outbox("c")
    texts = [f"{n:0{size}}" for n in range(5000)]
    gc.collect()
    tracemalloc.start()
    try:
        while texts:
            # A copy, as it would come from a socket.
            box.accept([texts.pop().encode().decode()], time.time())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < taken / box.buffered_bytes < 1.1


async def test_cursors_follow_the_acknowledged_output() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    grant = FakeGrant()
    async with pumping(output(sink)) as out:
        box = out.outbox("c", checkpoint_seconds=0.05)
        box.cursor_of = lambda text: str(text) if text.isdigit() else None
        box.begin(grant, None)
        for text in ("1", "2", "no cursor"):
            box.accept([text], 1.0)
        await until(lambda: box._parcel is not None)
        await asyncio.sleep(0.1)  # two checkpoint times, with nothing acknowledged
        assert grant.checkpoints == []
        sink.gate.set()
        await until(lambda: grant.checkpoints == ["2"])
        box.accept(["3"], 1.0)
        assert (await box.flush()).cursor == "3"


async def test_an_entry_holds_what_fits_and_the_rest_follows() -> None:
    limits = replace(STREAM_LIMITS, entry_bytes=2000)
    sink = ScriptedSink(limits=limits)
    async with pumping(output(sink)) as out:
        box = out.outbox("c")
        box.begin(FakeGrant(), None)
        for n in range(40):
            box.accept([f"{n:0100}"], 1.0)
        await box.flush()
    assert len(sink.arrived) > 4
    assert all(len(entry.data) <= 2000 for entry in sink.arrived)
    assert [int(text) for text in data(sink.records())] == list(range(40))


async def test_a_batch_stays_within_the_limits_of_the_sink() -> None:
    limits = replace(STREAM_LIMITS, batch_entries=3, batch_bytes=1500)
    sink = ScriptedSink(take_all, limits=limits)
    sink.gate.clear()
    async with pumping(output(sink)) as out:
        boxes = [out.outbox(str(n)) for n in range(30)]
        for n, box in enumerate(boxes):
            box.begin(FakeGrant(str(n)), None)
            box.accept(["x" * 300], 1.0)
        sink.gate.set()
        await asyncio.gather(*(box.flush() for box in boxes))
    assert len(sink.arrived) == 30
    for call in sink.calls:
        assert len(call) <= 3
        assert len(call) == 1 or sum(len(entry.data) for entry in call) <= 1500


@pytest.mark.parametrize("text", ["", '\x00\x1f\x7f\\"/', "é例え\U0001f600\u2028", "%b%d%%", "x" * 3000])
def test_a_line_is_what_an_encoder_makes_of_the_whole_record(text: str) -> None:
    header = Header(connection='odd "%d" é', epoch=1 << 40, worker="w%b\\")
    entry = encode(header, [(text, 1_700_000_000.0625)], 7, STREAM_LIMITS, 1, Stamps())
    record = {
        "connectionId": header.connection,
        "epoch": header.epoch,
        "seq": 7,
        "type": "message",
        "receivedAt": "2023-11-14T22:13:20.062Z",
        "workerId": header.worker,
        "encoding": "text",
        "data": text,
    }
    assert entry.data == orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def test_digests_have_the_length_that_a_row_expects() -> None:
    assert len(digest("x")) == len(digest(b"x")) == DIGEST_BYTES
    assert digest("é") == digest("é".encode())
