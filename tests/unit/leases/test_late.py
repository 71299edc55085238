"""A write that is repeated takes the answer to any of its attempts."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from leases.conditions import Absent, Unknown, Write, Written
from leases.late import LateAnswers
from leases.rows import session_key

WRITE = Write(name="heartbeat", key=session_key("s"), condition=Absent("pk"), set={"seq": 1})


class Slow:
    """Answers attempts when, and as, it is told to."""

    def __init__(self) -> None:
        self.attempts: list[asyncio.Future[Written]] = []

    async def write(self, write: Write) -> Written:
        self.attempts.append(asyncio.get_running_loop().create_future())
        return await self.attempts[-1]

    get = get_many = owned_by = sessions = None


async def patiently(store: LateAnswers, write: Write = WRITE) -> Any:
    async with asyncio.timeout(0.05):
        return await store.write(write)


async def test_the_answer_to_an_earlier_attempt_counts() -> None:
    slow: Any = Slow()
    store = LateAnswers(slow)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await patiently(store)
    third = asyncio.create_task(patiently(store))
    await asyncio.sleep(0)
    slow.attempts[0].set_result(Written({"seq": 1}))
    assert await third == Written({"seq": 1})


async def test_an_answer_between_two_attempts_counts() -> None:
    slow: Any = Slow()
    store = LateAnswers(slow)
    with pytest.raises(TimeoutError):
        await patiently(store)
    slow.attempts[0].set_result(Written({"seq": 1}))
    assert await patiently(store) == Written({"seq": 1})


async def test_an_answer_to_another_write_does_not() -> None:
    slow: Any = Slow()
    store = LateAnswers(slow)
    with pytest.raises(TimeoutError):
        await patiently(store)
    slow.attempts[0].set_result(Written({"seq": 1}))
    with pytest.raises(TimeoutError):
        await patiently(store, replace(WRITE, set={"seq": 2}))


async def test_only_the_failure_of_the_latest_attempt_is_told() -> None:
    slow: Any = Slow()
    store = LateAnswers(slow)
    with pytest.raises(TimeoutError):
        await patiently(store)
    second = asyncio.create_task(patiently(store))
    await asyncio.sleep(0)
    slow.attempts[0].set_exception(Unknown("reset"))
    await asyncio.sleep(0)
    assert not second.done()
    slow.attempts[1].set_exception(Unknown("throttled"))
    with pytest.raises(Unknown, match="throttled"):
        await second
