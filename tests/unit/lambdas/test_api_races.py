"""What only shows against a store in another process: callers side by side, and answers that are late, lost or none."""

import json
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from types import ModuleType
from typing import Any

import pytest

from connections.identity import derived_id, random_id
from lambdas.api.http import ApiError
from leases.conditions import Equals
from leases.rows import Desired, connection_key, connection_of
from local.aws import Aws
from tests.support.proxy import THROTTLED, UNAVAILABLE, Call, Drop, Fault, FaultProxy, Lose, Rule, table_write, to_table
from tests.unit.lambdas.conftest import ENVIRONMENT, Queue, new_table, request

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
    views = side_by_side(20, lambda _: connections.create(BODY, derived_id(CALLER, "key")))
    assert len({view.row.connection for view in views}) == 1
    assert len({view.row.epoch for view in views}) == 1


def test_of_two_requests_under_one_key_one_wins_and_the_other_is_told(load: Callable[[str], ModuleType]) -> None:
    connections = load("lambdas.api.handler").connections

    def create(number: int) -> str:
        try:
            return str(
                connections.create(BODY[:-1] + b',"group":"g%d"}' % (number % 2), derived_id(CALLER, "key")).spec.group
            )
        except ApiError as error:
            return error.code

    outcomes = Counter(side_by_side(10, create))
    assert outcomes["idempotency_conflict"] == 5
    assert sorted(outcomes.values()) == [5, 5]


def test_changes_side_by_side_are_all_made_or_refused(load: Callable[[str], ModuleType]) -> None:
    connections = load("lambdas.api.handler").connections
    connection = connections.create(BODY, random_id()).row.connection

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


# Answers that are lost


@dataclass(frozen=True, slots=True)
class Struck:
    """The API behind a proxy."""

    module: ModuleType
    proxy: FaultProxy
    queue: Queue

    def __call__(self, method: str, resource: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        began = time.monotonic()
        answer = self.module.handler(request(method, resource, body, **more), None)
        assert time.monotonic() - began < 3
        return answer["statusCode"], json.loads(answer["body"])

    def create(self, key: str | None) -> tuple[int, Any]:
        return self("POST", "/connections", BODY.decode(), headers={} if key is None else {"Idempotency-Key": key})

    def made(self) -> list[str]:
        """The connections that there are."""
        scanned = self.module.table.scan(Equals("sk", "LEASE"), None, 100)
        return [connection_of(row["pk"]) for row in scanned.items]


@pytest.fixture
def struck(load: Callable[[str], ModuleType], aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Struck]:
    with FaultProxy(aws.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", proxy.endpoint("api"))
        yield Struck(load("lambdas.api.handler"), proxy, Queue(os.environ["QUEUE_URL"]))


def transaction(call: Call) -> bool:
    return call.operation == "TransactWriteItems"


LOST = (Lose(), Lose(silence=5.0))
"""The write is made. The caller hears a reset, or nothing until it gives up."""
KEYS = (None, "key")
FIRST = {1}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("numbers", [FIRST, None], ids=["first", "all"])
@pytest.mark.parametrize("fault", LOST, ids=["reset", "silence"])
def test_a_connection_whose_write_was_made_but_not_answered_is_accepted(
    struck: Struck, fault: Fault, numbers: set[int] | None, key: str | None
) -> None:
    with struck.proxy.fault(Rule(fault, transaction, numbers=numbers)):
        status, answer = struck.create(key)

    assert status == HTTPStatus.ACCEPTED
    assert struck.made() == [answer["connectionId"]]
    assert struck.queue.take() == struck.made()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "fault", [Drop(), Drop(silence=5.0), UNAVAILABLE, THROTTLED], ids=lambda fault: repr(fault)[:20]
)
def test_a_write_that_was_not_made_is_made_again(struck: Struck, fault: Fault, key: str | None) -> None:
    with struck.proxy.fault(Rule(fault, transaction, numbers=FIRST)):
        status, answer = struck.create(key)

    assert status == HTTPStatus.ACCEPTED
    assert struck.made() == struck.queue.take() == [answer["connectionId"]]


@pytest.mark.parametrize("key", KEYS)
def test_an_outcome_that_stays_unknown_is_told_with_the_id_that_settles_it(struck: Struck, key: str | None) -> None:
    """The row is written, and then the table says nothing more."""
    with struck.proxy.fault(Rule(Lose(), to_table)):
        status, answer = struck.create(key)
    connection = answer["error"]["connectionId"]

    assert (status, answer["error"]["code"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "outcome_unknown")
    assert struck.made() == [connection]
    assert struck("GET", "/connections/{id}", connection=connection)[0] == HTTPStatus.OK
    if key is not None:
        status, answer = struck.create(key)
        assert (status, answer["connectionId"]) == (HTTPStatus.ACCEPTED, connection)
        assert struck.queue.take() == [connection]
    status, answer = struck("DELETE", "/connections/{id}", connection=connection)
    assert (status, answer["desired"]) == (HTTPStatus.ACCEPTED, "STOPPED")


def test_what_was_not_made_is_told_in_the_same_way_and_is_not_there(struck: Struck) -> None:
    with struck.proxy.fault(Rule(UNAVAILABLE, to_table)):
        status, answer = struck.create(None)
    connection = answer["error"]["connectionId"]

    assert (status, answer["error"]["code"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "outcome_unknown")
    assert struck("GET", "/connections/{id}", connection=connection)[0] == HTTPStatus.NOT_FOUND
    assert struck.made() == struck.queue.take() == []


@pytest.mark.parametrize("numbers", [FIRST, None], ids=["first", "all"])
@pytest.mark.parametrize("fault", LOST, ids=["reset", "silence"])
@pytest.mark.parametrize(
    ("method", "body", "desired"), [("PATCH", '{"desired":"PAUSED"}', "PAUSED"), ("DELETE", None, "STOPPED")]
)
def test_a_change_that_was_made_but_not_answered_is_accepted_and_made_once(
    struck: Struck, fault: Fault, numbers: set[int] | None, method: str, body: str | None, desired: str
) -> None:
    connection = struck.create(None)[1]["connectionId"]
    with struck.proxy.fault(Rule(fault, transaction, numbers=numbers)):
        status, answer = struck(method, "/connections/{id}", body, connection=connection)

    assert (status, answer["desired"], answer["generation"]) == (HTTPStatus.ACCEPTED, desired, 2)


@pytest.mark.parametrize(("method", "body"), [("PATCH", '{"desired":"PAUSED"}'), ("DELETE", None)])
def test_a_change_whose_outcome_stays_unknown_is_told_and_may_be_sent_again(
    struck: Struck, method: str, body: str | None
) -> None:
    connection = struck.create(None)[1]["connectionId"]

    def after_the_write(call: Call) -> bool:
        seen.append(call.operation)
        return "TransactWriteItems" in seen

    seen: list[str] = []
    with struck.proxy.fault(Rule(Lose(), after_the_write)):
        status, answer = struck(method, "/connections/{id}", body, connection=connection)
    again = struck(method, "/connections/{id}", body, connection=connection)

    assert (status, answer["error"]["code"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "outcome_unknown")
    assert answer["error"]["connectionId"] == connection
    assert (again[0], again[1]["generation"]) == (HTTPStatus.ACCEPTED, 2)


def test_a_change_that_was_never_sent_is_told_to_have_changed_nothing(struck: Struck) -> None:
    connection = struck.create(None)[1]["connectionId"]
    with struck.proxy.fault(Rule(UNAVAILABLE, to_table)):
        status, answer = struck("DELETE", "/connections/{id}", connection=connection)

    assert (status, answer["error"]["code"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable")
    assert struck("GET", "/connections/{id}", connection=connection)[1]["generation"] == 1


def test_writes_that_are_struck_at_random_make_each_connection_once(struck: Struck) -> None:
    keys = [f"key-{number}" for number in range(20)]
    answers: dict[str, set[str]] = {key: set() for key in keys}
    with struck.proxy.fault(Rule(Lose(), table_write, share=0.3), Rule(UNAVAILABLE, to_table, share=0.3)):
        for key in keys * 2:
            status, answer = struck.create(key)
            answers[key].add(answer["connectionId"] if status < 400 else answer["error"]["connectionId"])

    assert all(len(found) == 1 for found in answers.values())
    assert sorted(struck.made()) == sorted(connection for found in answers.values() for connection in found)
