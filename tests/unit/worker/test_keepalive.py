"""Who is pinged, and who is given up."""

import asyncio
import itertools
import logging
import time

import pytest

from tests.support.upstream import until
from worker.keepalive import TICK_SECONDS, Pulse, Sweeper, Verdict


def pulse(stale_after: float | None = None) -> Pulse:
    return Pulse(interval=20, timeout=10, stale_after=stale_after)


def test_whoever_is_heard_is_not_pinged() -> None:
    assert pulse().look(100, heard_at=95, message_at=0, sound=True) == (Verdict.FINE, 115)


def test_whoever_is_silent_for_the_interval_is_pinged_once() -> None:
    silent = pulse()
    assert silent.look(120, heard_at=100, message_at=0, sound=True) == (Verdict.PING, 130)
    assert silent.look(125, heard_at=100, message_at=0, sound=True) == (Verdict.FINE, 130)


def test_any_byte_after_the_ping_is_life() -> None:
    silent = pulse()
    silent.look(120, heard_at=100, message_at=0, sound=True)
    assert silent.look(130, heard_at=121, message_at=0, sound=True) == (Verdict.FINE, 141)


def test_an_answer_within_the_same_tick_of_the_clock_is_life() -> None:
    silent = pulse()
    silent.look(120, heard_at=100, message_at=0, sound=True)
    assert silent.look(130, heard_at=120, message_at=0, sound=True) == (Verdict.FINE, 140)


def test_silence_past_the_time_out_is_judged_at_the_second_look() -> None:
    silent = pulse()
    silent.look(120, heard_at=100, message_at=0, sound=True)
    assert silent.look(130, heard_at=100, message_at=0, sound=True) == (Verdict.FINE, 130)
    assert silent.look(130.5, heard_at=100, message_at=0, sound=True)[0] is Verdict.SILENT


def test_a_byte_read_between_the_two_looks_saves_it() -> None:
    silent = pulse()
    silent.look(120, heard_at=100, message_at=0, sound=True)
    silent.look(130, heard_at=100, message_at=0, sound=True)
    assert silent.look(130.5, heard_at=130.2, message_at=0, sound=True) == (Verdict.FINE, 150.2)


def test_nobody_is_judged_after_a_stall_of_our_own() -> None:
    silent = pulse()
    silent.look(120, heard_at=100, message_at=0, sound=True)
    silent.look(130, heard_at=100, message_at=0, sound=True)
    assert silent.look(134, heard_at=100, message_at=0, sound=False)[0] is Verdict.FINE
    assert silent.look(134.5, heard_at=100, message_at=0, sound=True)[0] is Verdict.FINE
    assert silent.look(135, heard_at=100, message_at=0, sound=True)[0] is Verdict.SILENT


def test_pongs_do_not_make_a_feed_fresh() -> None:
    stale = pulse(stale_after=60)
    assert stale.look(150, heard_at=149, message_at=100, sound=True) == (Verdict.FINE, 160)
    assert stale.look(160, heard_at=159, message_at=100, sound=True)[0] is Verdict.FINE
    assert stale.look(160.5, heard_at=159, message_at=100, sound=True)[0] is Verdict.STALE


def test_without_pings_only_staleness_counts() -> None:
    quiet = Pulse(interval=float("inf"), timeout=float("inf"), stale_after=None)
    assert quiet.look(10**9, heard_at=0, message_at=0, sound=True) == (Verdict.FINE, float("inf"))


class Member:
    def __init__(self, *answers: float | None) -> None:
        self.answers = list(answers)
        self.visits: list[tuple[float, bool]] = []
        self.errors: list[Exception] = []

    def look(self, now: float, *, sound: bool) -> float | None:
        self.visits.append((now, sound))
        answer = self.answers.pop(0) if self.answers else None
        return None if answer is None else now + answer

    def broke(self, error: Exception) -> None:
        self.errors.append(error)


class Broken(Member):
    def look(self, now: float, *, sound: bool) -> float | None:
        super().look(now, sound=sound)
        raise ZeroDivisionError


async def test_a_member_is_visited_until_it_is_done() -> None:
    sweeper = Sweeper(asyncio.get_running_loop())
    member = Member(0.0, 0.0, None)
    sweeper.watch(member, within=0.1)
    await until(lambda: len(member.visits) == 3)
    await asyncio.sleep(3 * TICK_SECONDS)
    sweeper.close()
    assert len(member.visits) == 3
    assert all(sound for _, sound in member.visits)
    times = [at for at, _ in member.visits]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > TICK_SECONDS / 2


async def test_a_stall_is_told_to_the_members_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    sweeper = Sweeper(asyncio.get_running_loop())
    member = Member(*[0.0] * 20)
    sweeper.watch(member, within=0.1)
    with caplog.at_level(logging.WARNING):
        time.sleep(2)  # noqa: ASYNC251 - the stall
        await until(lambda: len(member.visits) >= 2)
    sweeper.close()
    assert [sound for _, sound in member.visits[:2]] == [False, True]
    assert "stood still" in caplog.text


async def test_first_visits_are_spread() -> None:
    sweeper = Sweeper(asyncio.get_running_loop())
    for _ in range(1000):
        sweeper.watch(Member(), within=20)
    slots = sorted(len(members) for members in sweeper._slots.values())
    sweeper.close()
    assert len(slots) >= 19
    assert slots[-1] < 150


async def test_a_member_that_breaks_is_let_go_and_the_others_are_visited_on() -> None:
    sweeper = Sweeper(asyncio.get_running_loop())
    members = [Member(*[0.0] * 20), Broken(), Member(*[0.0] * 20)]
    for member in members:
        sweeper.watch(member, within=0.1)
    await until(lambda: len(members[0].visits) >= 3 and len(members[2].visits) >= 3)
    sweeper.close()
    assert [len(member.errors) for member in members] == [0, 1, 0]
    assert len(members[1].visits) == 1
