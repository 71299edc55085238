"""A request that is accepted makes one connection, and that one runs, whatever is repeated or lost on the way."""

import json
import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from botocore.exceptions import ReadTimeoutError

from local.witness import Witness
from tests.support.proxy import Call, Fail, Rule
from tests.support.watched import PATIENCE_SECONDS, Watched, until

RETRIES = 20
CALLERS = 8
POSTS = 100
RUNS_WITHIN_SECONDS = 120.0
"""After the queue is back, no connection waits for longer."""
DUPLICATES = 5
AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
QUEUE_IS_DOWN = Fail(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", "The queue is down.")


def post(fleet: Watched, upstream: Witness, path: str, key: str | None = None) -> str:
    """Ask for a connection until it is accepted, as a client does; returns its id."""
    body = {"url": f"{upstream.url}{path}", "onOpen": ["subscribe"]}
    headers = {"Idempotency-Key": key or path}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = fleet.api.call("POST", "/connections", body, headers=headers)
        except ReadTimeoutError:
            answer = None
        if answer is not None and answer.status == HTTPStatus.ACCEPTED:
            connection: str = answer.body["connectionId"]
            return connection
        assert answer is None or answer.status in AGAIN, answer
        assert time.monotonic() < deadline, "not accepted"
        time.sleep(random.uniform(0, 1))


def serves(upstream: Witness, paths: Iterable[str], patience: float = PATIENCE_SECONDS) -> None:
    """Wait until each of these feeds has a subscriber."""
    wanted = set(paths)
    until(lambda: wanted <= upstream.report().served(), "not every connection runs", patience)


def quiet(fleet: Watched) -> None:
    """Wait until no message is left in the queue, delivered or not."""
    until(lambda: fleet.queued() == 0, "messages are left in the queue")
    assert fleet.queued("DeadLetterQueueUrl") == 0


def epoch(fleet: Watched, connection: str) -> int:
    found: int = fleet.get(connection)["epoch"]
    return found


def test_retries_make_one_connection_also_after_a_deployment(fleet: Watched, upstream: Witness) -> None:
    path, key = "/retries", "retries-1"
    with ThreadPoolExecutor(RETRIES) as pool:
        together = list(pool.map(lambda _: post(fleet, upstream, path, key), range(RETRIES)))
    serves(upstream, [path])
    redeploy(fleet)
    late = post(fleet, upstream, path, key)
    quiet(fleet)

    assert {*together, late} == {together[0]}
    assert len(upstream.report().sockets[path]) == 1


def redeploy(fleet: Watched) -> None:
    """Have the API run in processes that know nothing of before."""
    client = fleet.client("lambda")
    name = fleet.functions["api"]["FunctionName"]
    variables = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    client.update_function_configuration(
        FunctionName=name, Environment={"Variables": {**variables, "DEPLOYED": str(time.time())}}
    )


def test_what_is_accepted_while_the_queue_is_down_runs(fleet: Watched, upstream: Witness) -> None:
    paths = [f"/queue-down/{number}" for number in range(POSTS)]
    rule = Rule(QUEUE_IS_DOWN, to_queue)
    with fleet.proxy.fault(rule), ThreadPoolExecutor(CALLERS) as pool:
        connections = list(pool.map(lambda path: post(fleet, upstream, path), paths))
    serves(upstream, paths, RUNS_WITHIN_SECONDS)

    assert rule.struck >= POSTS
    assert len(set(connections)) == POSTS
    assert all(len(upstream.report().sockets[path]) == 1 for path in paths)


def to_queue(call: Call) -> bool:
    return call.caller == "api" and call.operation == "SendMessageBatch"


def test_hints_are_gone_while_their_connections_are_open_and_repeating_one_changes_nothing(
    fleet: Watched, upstream: Witness
) -> None:
    path = "/repeated-hint"
    connection = post(fleet, upstream, path)
    serves(upstream, [path])
    quiet(fleet)
    before = epoch(fleet, connection)
    hint(fleet, [connection] * DUPLICATES)
    quiet(fleet)

    assert epoch(fleet, connection) == before
    assert len(upstream.report().sockets[path]) == 1


def hint(fleet: Watched, connections: Iterable[str]) -> None:
    entries: Any = [
        {"Id": str(number), "MessageBody": json.dumps({"connectionId": connection})}
        for number, connection in enumerate(connections)
    ]
    fleet.client("sqs").send_message_batch(QueueUrl=fleet.stacks.outputs["QueueUrl"], Entries=entries)
