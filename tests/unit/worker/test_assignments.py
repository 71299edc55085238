"""What becomes of hints that a worker has received and cannot act on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.worker.outputs import until
from worker.assignments import GIVE_BACK_SECONDS, Assignments, Queue


class Polled:
    """A queue with one message, which a poll that is under way receives when `arrives` is set."""

    def __init__(self) -> None:
        self.arrives = asyncio.Event()
        self.polling = asyncio.Event()
        self.given_back: list[int] = []
        self._loop = asyncio.get_running_loop()

    def receive_message(self, **_: Any) -> Any:
        self._loop.call_soon_threadsafe(self.polling.set)
        asyncio.run_coroutine_threadsafe(self.arrives.wait(), self._loop).result(20)
        return {"Messages": [{"ReceiptHandle": "h", "Body": '{"connectionId": "c"}'}]}

    def change_message_visibility_batch(self, **request: Any) -> None:
        self.given_back += [entry["VisibilityTimeout"] for entry in request["Entries"]]


@pytest.mark.parametrize("stopping", [True, False])
async def test_a_poll_that_is_under_way_when_the_worker_stops_hides_nothing(stopping: bool) -> None:
    """One that only has no room may have it soon, and lets others go first."""
    client: Any = Polled()
    member: Any = SimpleNamespace(room=10, ahead=False, stopping=False)
    with ThreadPoolExecutor(1) as pollers, ThreadPoolExecutor(1) as executor:
        assignments = Assignments(
            member, Queue(client, "https://queue"), pollers=pollers, executor=executor, rng=Random(1)
        )
        async with asyncio.timeout(20):
            taking = asyncio.create_task(assignments.run())
            await client.polling.wait()
            member.room, member.stopping = 0, stopping
            client.arrives.set()
            await until(lambda: client.given_back)
            member.stopping = True
            await taking
    assert client.given_back == [0 if stopping else GIVE_BACK_SECONDS]
