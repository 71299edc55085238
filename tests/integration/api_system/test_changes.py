"""What is asked of a connection or worker happens soon, and is shown when it has happened."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from itertools import count
from typing import Any

import pytest

from local.reader import records
from local.tasks import Task
from local.witness import Witness
from tests.integration.api_system.test_requests import post, serves
from tests.support.upstream import Peer, RawUpstream, text
from tests.support.watched import Watched, until

RATE = 100
"""Messages a second."""
TOLD_SECONDS = 2.0
"""From the API's answer until the owner knows of a change."""
SLACK_SECONDS = 2.0
"""For processes that wait for a processor, all on one small machine, and for the close itself."""
CALM_SECONDS = 2.0
"""How long to watch whether anything still comes."""


async def flood(peer: Peer) -> None:
    """Send numbered messages at a rate until the client closes."""
    await peer.upgrade()
    sending = asyncio.create_task(numbers(peer))
    try:
        await peer.serve()
    finally:
        sending.cancel()


async def numbers(peer: Peer) -> None:
    for number in count(1):
        await peer.send(text(str(number)))
        await asyncio.sleep(1 / RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """When a connection was asked to end, when its upstream saw it end, and when the API first said so.

    In seconds of the monotonic clock; `closed_wall` is the same moment as `closed` by the wall clock.
    """

    answered: float
    closed: float
    closed_wall: float
    shown: float
    records: list[dict[str, Any]]


async def end(fleet: Watched, method: str, body: Any, state: str) -> Ended:
    """Ask an open connection that receives at a rate to end, and watch."""
    async with RawUpstream(flood) as upstream:
        accepted = await asyncio.to_thread(fleet.api.call, "POST", "/connections", {"url": upstream.url()})
        connection: str = accepted.body["connectionId"]
        await asyncio.to_thread(until, lambda: fleet.state(connection) == "OPEN", "not open")
        (peer,) = upstream.peers
        answer = await asyncio.to_thread(fleet.api.call, method, f"/connections/{connection}", body)
        answered = time.monotonic()
        assert answer.status == HTTPStatus.ACCEPTED
        await asyncio.to_thread(until, lambda: fleet.state(connection) == state, f"not {state}")
        shown = time.monotonic()
        assert peer.ended_at is not None, f"{state} is shown while the socket is open"
        closed_wall = time.time() - (time.monotonic() - peer.ended_at)
        await asyncio.sleep(CALM_SECONDS)
        assert len(upstream.peers) == 1
        found = await asyncio.to_thread(recorded, fleet, connection)
        return Ended(answered=answered, closed=peer.ended_at, closed_wall=closed_wall, shown=shown, records=found)


def recorded(fleet: Watched, connection: str) -> list[dict[str, Any]]:
    """All that is on the stream of a connection."""
    found: list[dict[str, Any]] = []
    for batch in records(fleet.stacks.aws, fleet.stacks.outputs["StreamName"]):
        if not batch:
            break
        found += [record for record in batch if record["connectionId"] == connection]
    return found


@pytest.mark.parametrize(
    ("method", "body", "state"), [("PATCH", {"desired": "PAUSED"}, "PAUSED"), ("DELETE", None, "STOPPED")]
)
async def test_an_end_is_shown_once_it_is_so_and_nothing_comes_after(
    fleet: Watched, method: str, body: Any, state: str
) -> None:
    ended = await end(fleet, method, body, state)

    assert ended.closed - ended.answered <= TOLD_SECONDS + SLACK_SECONDS
    assert ended.closed <= ended.shown
    *messages, last = [record for record in ended.records if record["type"] != "opened"]
    assert (last["type"], last["code"], last["reason"]) == ("closed", 1001, state.lower())
    assert [record["data"] for record in messages] == [str(number + 1) for number in range(len(messages))]
    received = [datetime.fromisoformat(record["receivedAt"]).timestamp() for record in (*messages, last)]
    assert 0 < max(received) <= ended.closed_wall


async def test_a_change_of_the_request_reaches_its_owner(fleet: Watched) -> None:
    async with RawUpstream() as upstream:
        accepted = await asyncio.to_thread(fleet.api.call, "POST", "/connections", {"url": upstream.url("/old")})
        path = f"/connections/{accepted.body['connectionId']}"
        await asyncio.to_thread(until, lambda: upstream.at("/old"), "not connected")
        await asyncio.to_thread(fleet.api.call, "PATCH", path, {"url": upstream.url("/new")})
        answered = time.monotonic()
        await asyncio.to_thread(until, lambda: upstream.at("/new"), "not connected anew")
        await asyncio.to_thread(until, lambda: not upstream.at("/old")[0].open, "the old socket stays open")
        await asyncio.to_thread(fleet.api.call, "DELETE", path)

    assert upstream.at("/new")[0].accepted_at - answered <= TOLD_SECONDS + SLACK_SECONDS


def test_who_has_it_whether_it_runs_and_why_it_failed(fleet: Watched, upstream: Witness) -> None:
    open_one = post(fleet, upstream, "/looked-at")
    failed = fleet.api.call("POST", "/connections", {"url": "ws://127.0.0.1:1/", "retry": {"maxAttempts": 1}}).body[
        "connectionId"
    ]
    until(lambda: fleet.state(open_one) == "OPEN" and fleet.state(failed) == "FAILED", "not as far as they get")

    seen = fleet.get(open_one)
    assert (seen["desired"], seen["ownerState"]) == ("RUNNING", "LIVE")
    assert seen["owner"] in fleet.workers()
    assert {"since", "attempts"} <= seen["status"].keys()
    assert "tcp" in fleet.get(failed)["status"]["reason"]
    assert open_one in listed(fleet, f"owner={seen['owner']}")
    assert failed in listed(fleet, "status=FAILED")
    assert open_one not in listed(fleet, "status=FAILED")


def listed(fleet: Watched, query: str) -> set[str]:
    """All pages of a list."""
    found: set[str] = set()
    cursor = ""
    while True:
        page = fleet.api.call("GET", f"/connections?{query}{cursor}").body
        found |= {one["connectionId"] for one in page["connections"]}
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


@pytest.fixture
def third(fleet: Watched) -> Iterator[Task]:
    (task,) = fleet.start(1)
    yield task
    task.kill()


def test_a_drained_worker_hands_over_all_and_is_not_started_again(
    fleet: Watched, third: Task, upstream: Witness
) -> None:
    paths = [f"/drained/{number}" for number in range(30)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: post(fleet, upstream, path), paths))
    serves(upstream, paths)
    (worker,) = (name for name, row in fleet.workers().items() if row["taskArn"] == third.arn)
    until(lambda: fleet.workers()[worker]["held"] > 0, "the new worker has got nothing")
    fleet.api.call("POST", f"/workers/{worker}/drain")
    until(lambda: not third.running, "the drained task has not ended")

    drained = fleet.workers()[worker]
    assert (drained["state"], drained["held"]) == ("DEAD", 0)
    assert [row["workerId"] for row in fleet.workers().values() if row["taskArn"] == third.arn] == [worker]
    assert third.stop() == 0
    report = upstream.report()
    assert set(paths) <= report.served()
    assert not report.crowded()
    refused = fleet.api.call("POST", f"/workers/{worker}/drain")
    assert (refused.status, refused.body["error"]["code"]) == (HTTPStatus.CONFLICT, "worker_dead")
