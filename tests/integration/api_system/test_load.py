"""Many clients at once, of which some repeat themselves, contradict themselves or write nonsense; and a worker dies."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import pytest

from leases.dynamodb import Table
from leases.rows import ConnectionRow, connection_key, is_session
from local.api import Api
from local.processes import Processes
from local.system import System, deployed, system
from local.witness import Report, Witness
from tests.support.watched import until, witness

TASKS = 3
SETTLED_SECONDS = 300.0
"""From the last request until every connection runs and no hint is left."""
COLD_STARTS = 5
LOOK_SECONDS = 1.0
INVALID: Sequence[dict[str, Any]] = (
    {},
    {"url": 5},
    {"url": "http://127.0.0.1/"},
    {"url": "ws://127.0.0.1/", "colour": "red"},
    {"url": "ws://10.0.0.1/"},
    {"url": "ws://127.0.0.1/", "wsPing": {"intervalSeconds": -1}},
)


class Kind(StrEnum):
    """What a request is, and with that what its answer must be."""

    NEW = "new"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    INVALID = "invalid"


EXPECTED = {
    Kind.NEW: HTTPStatus.ACCEPTED,
    Kind.DUPLICATE: HTTPStatus.ACCEPTED,
    Kind.CONFLICT: HTTPStatus.CONFLICT,
    Kind.INVALID: HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many requests, by how many clients, in how many seconds."""

    posts: int
    clients: int
    seconds: float


SMALL = Scale(posts=100, clients=10, seconds=15.0)
LARGE = Scale(posts=2000, clients=50, seconds=80.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of the schedule."""

    kind: Kind
    key: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request with its answer."""

    request: Request
    status: int
    connection: str | None
    seconds: float


def schedule(posts: int, url: str) -> list[Request]:
    """Requests in their order: of each hundred five repeat another one, one contradicts another one, one is invalid."""
    new = [
        Request(kind=Kind.NEW, key=f"key-{number}", body={"url": f"{url}/load/{number}"})
        for number in range(posts * 93 // 100)
    ]
    requests = list(new)
    for number in range(posts * 5 // 100):
        # Half of them at the same time as the original, half of them later.
        original = new[number * len(new) // (posts * 5 // 100)]
        later = (1, posts // 4)[number % 2]
        requests.insert(requests.index(original) + later, replace(original, kind=Kind.DUPLICATE))
    for number in range(posts // 100):
        original = new[number * len(new) * 100 // posts // 2]
        other = replace(original, kind=Kind.CONFLICT, body={"url": f"{url}/conflict/{number}"})
        requests.insert(requests.index(original) + posts // 4, other)
        nonsense = Request(kind=Kind.INVALID, key=f"invalid-{number}", body=INVALID[number % len(INVALID)])
        requests.insert(random.Random(number).randrange(len(requests)), nonsense)
    return requests


def send(api: Api, requests: Sequence[Request], scale: Scale, half_way: Callable[[], None]) -> list[Answered]:
    """Send each request at its moment, a client its own ones in order; do something half way."""
    begun = time.monotonic()

    def client(number: int) -> list[Answered]:
        answers = []
        for at in range(number, len(requests), scale.clients):
            time.sleep(max(0.0, begun + at * scale.seconds / len(requests) - time.monotonic()))
            answers.append(one(api, requests[at]))
        return answers

    with ThreadPoolExecutor(scale.clients + 1) as pool:
        clients = [pool.submit(client, number) for number in range(scale.clients)]
        time.sleep(scale.seconds / 2)
        half_way()
        return [answer for running in clients for answer in running.result()]


def one(api: Api, request: Request) -> Answered:
    """Send one request, once."""
    begun = time.monotonic()
    answer = api.call("POST", "/connections", request.body, headers={"Idempotency-Key": request.key})
    connection = answer.body.get("connectionId") if answer.status == HTTPStatus.ACCEPTED else None
    return Answered(request=request, status=answer.status, connection=connection, seconds=time.monotonic() - begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    answers: Sequence[Answered]
    report: Report
    epochs: Mapping[str, int]
    """By connection, how many owners it has had."""
    settled: float
    cold: Sequence[float]
    """Seconds of an answer of a function that has to start first."""
    left: Mapping[str, int]
    """Messages, by queue."""


def cold_starts(running: System, api: Api) -> list[float]:
    """How long the first request after a deployment takes, several times."""
    stacks = running.deployed
    client = stacks.aws.session.client("lambda", endpoint_url=stacks.aws.endpoint, config=stacks.aws.config)
    (function,) = (one for one in client.list_functions()["Functions"] if ".api." in one["Handler"])
    found = []
    for number in range(COLD_STARTS):
        variables = {**function["Environment"]["Variables"], "DEPLOYED": str(number)}
        client.update_function_configuration(
            FunctionName=function["FunctionName"], Environment={"Variables": variables}
        )
        begun = time.monotonic()
        assert api.call("GET", "/workers").status == HTTPStatus.OK
        found.append(time.monotonic() - begun)
    return found


def load(running: System, upstream: Witness, scale: Scale) -> Outcome:
    """Send everything, kill a worker process half way, and wait until all has settled."""
    stacks = running.deployed
    api = Api(stacks.api_url)
    outputs, aws = stacks.outputs, stacks.aws
    table = Table(
        aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config),
        outputs["TableName"],
        outputs["OwnerIndex"],
    )
    sqs = aws.session.client("sqs", endpoint_url=aws.endpoint, config=aws.config)
    victim = running.start(TASKS)[1]
    cold = cold_starts(running, api)
    requests = schedule(scale.posts, upstream.url)
    answers = send(api, requests, scale, lambda: os.kill(victim.worker_pids[0], signal.SIGKILL))
    sent = time.monotonic()
    first = {answer.connection: 0 for answer in answers if answer.connection}

    def rows() -> list[ConnectionRow]:
        return list(map(ConnectionRow.from_item, table.get_many(map(connection_key, first)).values()))

    def queued() -> dict[str, int]:
        names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return {
            queue: sum(
                int(value)
                for value in sqs.get_queue_attributes(QueueUrl=outputs[queue], AttributeNames=names)[
                    "Attributes"
                ].values()
            )
            for queue in ("QueueUrl", "DeadLetterQueueUrl")
        }

    def settled() -> bool:
        time.sleep(LOOK_SECONDS)
        opened = {path for path, sockets in upstream.report().sockets.items() if sockets[-1].closed is None}
        live = {row["sk"] for row in stacks.sessions() if row["state"] == "LIVE"}
        return (
            len(opened) >= len(first)
            and all(is_session(row.owner) and row.owner in live for row in rows())
            and not any(queued().values())
        )

    until(settled, "not everything has settled", SETTLED_SECONDS)
    return Outcome(
        answers=answers,
        report=upstream.report(),
        epochs={row.connection: row.epoch for row in rows()},
        settled=time.monotonic() - sent,
        cold=cold,
        left=queued(),
    )


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def scale(request: pytest.FixtureRequest) -> Scale:
    found: Scale = request.param
    return found


@pytest.fixture(scope="module")
def outcome(processes: Processes, scale: Scale) -> Iterator[Outcome]:
    with (
        deployed(processes, {"WORKER_PROCESSES": "1"}) as stacks,
        system(stacks, processes, {}) as running,
        witness(processes) as upstream,
    ):
        yield load(running, upstream, scale)


def test_every_answer_is_the_right_one(outcome: Outcome, scale: Scale, capsys: pytest.CaptureFixture[str]) -> None:
    warm = sorted(answer.seconds for answer in outcome.answers)
    figures = {
        "posts": scale.posts,
        "seconds": scale.seconds,
        "answers": Counter(f"{answer.request.kind} {answer.status}" for answer in outcome.answers),
        "warmSeconds": {f"p{100 * share:g}": round(warm[int(share * (len(warm) - 1))], 3) for share in (0.5, 0.99, 1)},
        "coldSeconds": [round(seconds, 2) for seconds in sorted(outcome.cold)],
        "settledSeconds": round(outcome.settled, 1),
    }
    with capsys.disabled():
        print(json.dumps(figures), flush=True)
    wrong = [answer for answer in outcome.answers if answer.status != EXPECTED[answer.request.kind]]

    assert len(outcome.answers) == scale.posts
    assert not wrong


def test_each_key_has_one_connection(outcome: Outcome, scale: Scale) -> None:
    by_key: dict[str, set[str]] = {}
    for answer in outcome.answers:
        if answer.connection is not None:
            by_key.setdefault(answer.request.key, set()).add(answer.connection)

    assert len(by_key) == scale.posts * 93 // 100
    assert all(len(connections) == 1 for connections in by_key.values())
    assert len(outcome.epochs) == len(by_key)


def test_the_upstream_never_sees_two_sockets_of_one_connection(outcome: Outcome, scale: Scale) -> None:
    sockets = outcome.report.sockets

    assert sockets.keys() == {f"/load/{number}" for number in range(scale.posts * 93 // 100)}
    assert not [
        path
        for path, opened in sockets.items()
        for before, after in pairwise(opened)
        if before.closed is None or after.opened < before.closed
    ]
    assert any(len(opened) > 1 for opened in sockets.values()), "nothing was struck when the worker died"


def test_nothing_is_left_to_do(outcome: Outcome) -> None:
    assert outcome.settled <= SETTLED_SECONDS
    assert not any(outcome.left.values())
