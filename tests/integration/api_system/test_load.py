"""Many clients at once, of which some repeat themselves, contradict themselves or write nonsense; and a worker dies."""

import json
import math
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
from botocore.exceptions import ReadTimeoutError

from leases.dynamodb import Table
from leases.rows import ConnectionRow, connection_key, is_session
from local.api import Api
from local.processes import Processes
from local.system import System, deployed, system
from local.witness import OVERLAP_SECONDS, Report, Witness
from tests.support.watched import until, witness

TASKS = 3
SETTLED_SECONDS = 300.0
"""From the last request until every connection runs and no hint is left."""
COLD_STARTS = 5
WARM = 8
"""Requests at once before the clients come, so that functions have started: how long that takes is told apart."""
SETTINGS = {"WORKER_PROCESSES": "1"}
PAUSE_SECONDS = 2.0
AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
FAULTS = HTTPStatus.INTERNAL_SERVER_ERROR
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
    p99: float = math.inf
    """Seconds within which 99 of 100 requests are answered."""


SMALL = Scale(posts=100, clients=10, seconds=10.0)
LARGE = Scale(posts=2000, clients=50, seconds=60.0, p99=2.0)


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
    """Of the attempt that was answered so."""
    before: Sequence[int]
    """What earlier attempts were answered: those that a client repeats as the API's document says."""


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
    """Send one request, again after a while if it is to be sent again."""
    before: list[int] = []
    while True:
        begun = time.monotonic()
        try:
            answer = api.call("POST", "/connections", request.body, headers={"Idempotency-Key": request.key})
        except ReadTimeoutError:
            before.append(HTTPStatus.GATEWAY_TIMEOUT)
            continue
        seconds = time.monotonic() - begun
        if answer.status in AGAIN:
            before.append(answer.status)
            time.sleep(random.uniform(0, PAUSE_SECONDS))
            continue
        connection = answer.body.get("connectionId") if answer.status == HTTPStatus.ACCEPTED else None
        return Answered(request=request, status=answer.status, connection=connection, seconds=seconds, before=before)


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
    deaths: Mapping[str, int]
    """Sessions that have ended, by who said so."""


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
    with ThreadPoolExecutor(WARM) as pool:
        list(pool.map(lambda _: api.call("GET", "/workers"), range(WARM)))
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
        report = upstream.report()
        opened = {path for path, sockets in report.sockets.items() if sockets[-1].closed is None}
        live = {row["sk"] for row in stacks.sessions() if row["state"] == "LIVE"}
        return (
            len(opened) >= len(first)
            and not report.crowded()
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
        deaths=Counter(str(row["dead_by"]) for row in stacks.sessions() if row["state"] == "DEAD"),
    )


@pytest.fixture(scope="module", params=[SMALL, pytest.param(LARGE, marks=pytest.mark.soak)], ids=["small", "large"])
def scale(request: pytest.FixtureRequest) -> Scale:
    found: Scale = request.param
    return found


@pytest.fixture(scope="module")
def outcome(processes: Processes, scale: Scale) -> Iterator[Outcome]:
    with (
        deployed(processes, SETTINGS) as stacks,
        system(stacks, processes, {}) as running,
        witness(processes) as upstream,
    ):
        yield load(running, upstream, scale)


def test_every_answer_is_the_right_one(outcome: Outcome, scale: Scale, capsys: pytest.CaptureFixture[str]) -> None:
    warm = sorted(answer.seconds for answer in outcome.answers)
    p50, p99 = (warm[int(share * (len(warm) - 1))] for share in (0.5, 0.99))
    figures = {
        "posts": scale.posts,
        "seconds": scale.seconds,
        "answers": Counter(f"{answer.request.kind} {answer.status}" for answer in outcome.answers),
        "warmSeconds": {"p50": round(p50, 3), "p99": round(p99, 3), "max": round(warm[-1], 3)},
        "coldSeconds": [round(seconds, 2) for seconds in sorted(outcome.cold)],
        "sentAgain": Counter(status for answer in outcome.answers for status in answer.before),
        "deaths": outcome.deaths,
        "settledSeconds": round(outcome.settled, 1),
    }
    with capsys.disabled():
        print(json.dumps(figures), flush=True)
    wrong = [answer for answer in outcome.answers if answer.status != EXPECTED[answer.request.kind]]

    assert len(outcome.answers) == scale.posts
    assert not wrong
    assert not [answer for answer in outcome.answers if any(status >= FAULTS for status in answer.before)]
    assert p99 <= scale.p99


def test_each_key_has_one_connection(outcome: Outcome, scale: Scale) -> None:
    by_key: dict[str, set[str]] = {}
    for answer in outcome.answers:
        if answer.connection is not None:
            by_key.setdefault(answer.request.key, set()).add(answer.connection)

    assert len(by_key) == scale.posts * 93 // 100
    assert all(len(connections) == 1 for connections in by_key.values())
    assert len(outcome.epochs) == len(by_key)


def test_the_upstream_never_sees_two_sockets_of_one_connection_but_for_a_planned_move(
    outcome: Outcome, scale: Scale
) -> None:
    sockets = outcome.report.sockets

    assert sockets.keys() == {f"/load/{number}" for number in range(scale.posts * 93 // 100)}
    assert not outcome.report.crowded()
    assert not [
        path
        for path, opened in sockets.items()
        for before, after in pairwise(opened)
        if before.closed is None or before.closed - after.opened > OVERLAP_SECONDS
    ]
    assert outcome.deaths == {"exit": 1}
    assert any(len(opened) > 1 for opened in sockets.values()), "nothing was struck when the worker died"


def test_nothing_is_left_to_do(outcome: Outcome) -> None:
    assert outcome.settled <= SETTLED_SECONDS
    assert not any(outcome.left.values())
