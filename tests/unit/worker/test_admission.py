"""How fast attempts are let through."""

import asyncio

import pytest

from worker.admission import (
    HERD_SECONDS,
    HERD_WINDOW_CAP,
    RATE_LIMITED_FIRST_WAIT,
    Admission,
    Allowance,
    Group,
    Slots,
    TokenBucket,
)
from worker.retry import FIRST_WINDOW, RETRY_AFTER_CAP

WIDE = Allowance(rate=1e6, burst=10**6, in_flight=10**6)


def test_a_bucket_lets_a_burst_through_and_then_keeps_its_rate() -> None:
    bucket = TokenBucket(rate=10, burst=5)
    assert [bucket.reserve(100) for _ in range(8)] == pytest.approx([100] * 5 + [100.1, 100.2, 100.3])
    assert bucket.reserve(1000) == 1000


def test_a_bucket_keeps_its_rate_over_any_ten_seconds() -> None:
    bucket = TokenBucket(rate=20, burst=1)
    due = [bucket.reserve(now / 100) for now in range(1000)]
    for start in range(30):
        assert sum(start <= at < start + 10 for at in due) == pytest.approx(200, rel=0.05)


async def test_slots_are_given_in_order_and_never_above_the_limit() -> None:
    slots = Slots(2)
    order: list[int] = []
    flying = 0
    most = 0

    async def take(number: int) -> None:
        nonlocal flying, most
        await slots.acquire()
        order.append(number)
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        slots.release()

    await asyncio.gather(*map(take, range(20)))
    assert order == list(range(20))
    assert most == 2


async def test_a_slot_given_to_somebody_who_gave_up_goes_to_the_next() -> None:
    slots = Slots(1)
    await slots.acquire()
    first = asyncio.create_task(slots.acquire())
    second = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    slots.release()
    first.cancel()
    await asyncio.wait_for(second, 20)
    slots.release()
    await asyncio.wait_for(slots.acquire(), 20)


def test_a_few_drops_are_retried_soon_and_a_herd_is_spread() -> None:
    group = Group(Allowance(rate=50, burst=100, in_flight=64))
    group.dropped(100)
    assert group.window(100) == FIRST_WINDOW
    for _ in range(249):
        group.dropped(100)
    assert group.window(100) == pytest.approx(10)
    for _ in range(10_000):
        group.dropped(101)
    assert group.window(101) == HERD_WINDOW_CAP
    assert group.window(102 + HERD_SECONDS) == FIRST_WINDOW


def test_a_group_waits_as_long_as_it_is_told() -> None:
    group = Group(WIDE)
    assert group.open_at(0.5, 100) == 100
    group.rate_limited(100, after=7)
    assert group.open_at(0, 100) == 107
    assert group.open_at(1, 100) == 107 + FIRST_WINDOW
    group.rate_limited(101, after=1)
    assert group.open_at(0, 101) == 107


def test_without_a_time_a_group_waits_longer_each_time_up_to_the_cap() -> None:
    group = Group(WIDE)
    waits = []
    now = 0.0
    for _ in range(12):
        group.rate_limited(now, after=None)
        waits.append(group.open_at(0, now) - now)
        now += waits[-1]
    assert waits[:3] == [RATE_LIMITED_FIRST_WAIT, 2 * RATE_LIMITED_FIRST_WAIT, 4 * RATE_LIMITED_FIRST_WAIT]
    assert waits[-1] == RETRY_AFTER_CAP


async def test_after_a_refusal_one_at_a_time_until_one_is_let_in() -> None:
    loop = asyncio.get_running_loop()
    admission = Admission(loop.time, process=WIDE, group=WIDE)
    group = admission.group("host")
    group.rate_limited(loop.time() - 1000, after=1)
    inside = 0
    release = asyncio.Event()

    async def attempt() -> None:
        nonlocal inside
        async with admission.attempt(group, 0):
            inside += 1
            await release.wait()

    attempts = [asyncio.create_task(attempt()) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert inside == 1
    group.let_in()
    await asyncio.sleep(0.05)
    assert inside == 5
    release.set()
    await asyncio.gather(*attempts)


async def test_who_stands_in_line_when_the_group_is_refused_waits_as_well() -> None:
    loop = asyncio.get_running_loop()
    admission = Admission(loop.time, process=WIDE, group=Allowance(rate=1e6, burst=10**6, in_flight=1))
    group = admission.group("host")
    begun: list[float] = []

    async def attempt() -> None:
        async with admission.attempt(group, 0):
            begun.append(loop.time())
            if len(begun) == 1:
                await asyncio.sleep(0.05)
                group.rate_limited(loop.time(), after=0.5)

    await asyncio.gather(attempt(), attempt())
    assert begun[1] - begun[0] >= 0.5


async def test_the_limits_of_the_process_hold_over_all_groups() -> None:
    loop = asyncio.get_running_loop()
    admission = Admission(loop.time, process=Allowance(rate=1e6, burst=10**6, in_flight=3), group=WIDE)
    flying = 0
    most = 0

    async def attempt(number: int) -> None:
        nonlocal flying, most
        async with admission.attempt(admission.group(f"host {number}"), 0):
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.01)
            flying -= 1

    await asyncio.gather(*map(attempt, range(12)))
    assert most == 3


async def test_groups_that_nobody_uses_are_forgotten() -> None:
    admission = Admission(asyncio.get_running_loop().time)
    kept = admission.group("kept")
    for number in range(100):
        admission.group(f"host {number}")
    assert admission.group("kept") is kept
    assert len(admission._groups) == 1
