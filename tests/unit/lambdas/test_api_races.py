"""What only shows against a store in another process: callers side by side, and a store that never answers."""

import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from lambdas.api.http import ApiError
from leases.rows import Desired, connection_key
from local.aws import Aws
from tests.unit.lambdas.conftest import ENVIRONMENT, new_table, request

BODY = b'{"url":"wss://feed.example.com/"}'
CALLER = "arn:aws:iam::1:user/a"


@pytest.fixture
def aws_of_lambda(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator instead of moto."""
    for name, value in (ENVIRONMENT | aws.environment).items():
        monkeypatch.setenv(name, value)
    name = f"fleet-{secrets.token_hex(4)}"
    monkeypatch.setenv("TABLE_NAME", name)
    queue = aws.session.client("sqs", endpoint_url=aws.endpoint).create_queue(QueueName=name)
    monkeypatch.setenv("QUEUE_URL", queue["QueueUrl"])
    new_table(aws.session.client("dynamodb", endpoint_url=aws.endpoint), name)


def side_by_side(count: int, call: Callable[[int], Any]) -> list[Any]:
    start = threading.Barrier(count)

    def one(number: int) -> Any:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_twenty_retries_at_once_are_one_connection(load: Callable[[str], ModuleType]) -> None:
    connections = load("lambdas.api.handler").connections
    views = side_by_side(20, lambda _: connections.create(BODY, CALLER, "key"))
    assert len({view.row.connection for view in views}) == 1
    assert len({view.row.epoch for view in views}) == 1


def test_of_two_requests_under_one_key_one_wins_and_the_other_is_told(load: Callable[[str], ModuleType]) -> None:
    connections = load("lambdas.api.handler").connections

    def create(number: int) -> str:
        try:
            return str(connections.create(BODY[:-1] + b',"group":"g%d"}' % (number % 2), CALLER, "key").spec.group)
        except ApiError as error:
            return error.code

    outcomes = Counter(side_by_side(10, create))
    assert outcomes["idempotency_conflict"] == 5
    assert sorted(outcomes.values()) == [5, 5]


def test_changes_side_by_side_are_all_made_or_refused(load: Callable[[str], ModuleType]) -> None:
    connections = load("lambdas.api.handler").connections
    connection = connections.create(BODY, CALLER, None).row.connection

    def change(number: int) -> int | str:
        try:
            return int(connections.change(connection, b'{"group":"g%d"}' % number).row.generation)
        except ApiError as error:
            return error.code

    made = [outcome for outcome in side_by_side(8, change) if outcome != "conflict"]
    row = connections.row(connection)
    assert row.generation == 1 + len(made)
    assert row.desired is Desired.RUNNING
    assert connections.get(connection).spec.group in {f"g{number}" for number in range(8)}
    assert made


def test_a_store_that_never_answers_is_503_within_three_seconds(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://127.0.0.1:{silent.getsockname()[1]}")
        module = load("lambdas.api.handler")
        for event in (
            request("POST", "/connections", BODY.decode()),
            request("GET", "/connections/{id}", connection="a" * 26),
            request("DELETE", "/connections/{id}", connection="a" * 26),
        ):
            began = time.monotonic()
            assert module.handler(event, None)["statusCode"] == 503
            assert time.monotonic() - began < 3


def test_a_row_that_is_written_is_accepted_although_nothing_answers_after_it(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is silent: the answer says that the connection exists, since it does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        module = load("lambdas.api.handler")
        began = time.monotonic()
        answer = module.handler(request("POST", "/connections", BODY.decode()), None)
        assert answer["statusCode"] == 202
        assert time.monotonic() - began < 4
        connection = answer["headers"]["Location"].rpartition("/")[2]
        assert module.table.get(connection_key(connection)) is not None
