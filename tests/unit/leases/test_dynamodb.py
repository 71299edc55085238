"""The store, against two implementations of DynamoDB that others wrote: moto in process, and ministack over HTTP."""

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from leases.conditions import (
    Absent,
    AllOf,
    AnyOf,
    Below,
    Condition,
    Equals,
    FewerThan,
    OneOf,
    Refused,
    Unknown,
    Write,
    Written,
)
from leases.dynamodb import AsyncStore, Contended, Table, from_dynamodb, render, to_dynamodb
from leases.rows import Desired, Key, connection_key, session_key, session_shard
from local.aws import Aws
from tests.simulation.table import apply, evaluate

KEY = Key("CONNECTION#a", "LEASE")


def client(endpoint: str | None) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="eu-central-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30),
    )


@pytest.fixture(params=["moto", "ministack"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    if request.param == "moto":
        with mock_aws():
            yield new_table(None)
    else:
        made = new_table(request.getfixturevalue("aws").endpoint)
        yield made
        made.client.delete_table(TableName=made.name)
        made.client.close()


@pytest.fixture(scope="module")
def emulated(aws: Aws) -> Iterator[Table]:
    made = new_table(aws.endpoint)
    yield made
    made.client.close()


def new_table(endpoint: str | None) -> Table:
    made = Table(client(endpoint), f"fleet-{secrets.token_hex(4)}", "by_owner")
    made.client.create_table(
        TableName=made.name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "owner")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": made.owner_index,
                "KeySchema": [
                    {"AttributeName": "owner", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    return made


def put(key: Key, **attributes: Any) -> Write:
    return Write(name="put", key=key, condition=Absent("pk"), set=attributes)


# Items and rendering


ITEM = {
    "pk": "CONNECTION#a",
    "desired": Desired.PAUSED,
    "epoch": 10**37,
    "negative": -1,
    "ready": True,
    "digests": b"\x00\xff",
    "inbox": frozenset({"a", "b"}),
    "status": {"state": "OPEN", "attempts": 0, "lastClose": None, "list": ["é", 1, b""]},
}


def test_items_survive_the_round_trip_with_plain_types() -> None:
    back = from_dynamodb(to_dynamodb(ITEM))
    assert back == ITEM
    assert type(back["epoch"]) is int
    assert type(back["digests"]) is bytes
    assert type(back["inbox"]) is frozenset
    assert type(back["ready"]) is bool


def test_a_float_is_refused_rather_than_rounded() -> None:
    with pytest.raises(TypeError):
        to_dynamodb({"attempts": 0.5})


def test_one_name_has_one_placeholder_and_inner_fields_their_own() -> None:
    write = Write(
        name="ready",
        key=KEY,
        condition=AllOf((Equals("next.nonce", "n"), AnyOf((Absent("owner"), OneOf("owner", ("a", "b")))))),
        set={"next.ready": True},
    )
    assert render("fleet", write) == {
        "TableName": "fleet",
        "Key": {"pk": {"S": "CONNECTION#a"}, "sk": {"S": "LEASE"}},
        "UpdateExpression": "SET #0.#1 = :0",
        "ConditionExpression": "#0.#2 = :1 AND (attribute_not_exists(#3) OR #3 IN (:2, :3))",
        "ExpressionAttributeNames": {"#0": "next", "#1": "ready", "#2": "nonce", "#3": "owner"},
        "ExpressionAttributeValues": {":0": {"BOOL": True}, ":1": {"S": "n"}, ":2": {"S": "a"}, ":3": {"S": "b"}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


# Writes


def test_a_write_returns_the_row_after_it(table: Table) -> None:
    assert table.write(put(KEY, owner="FREE#1", epoch=7)) == Written(
        {"pk": KEY.pk, "sk": KEY.sk, "owner": "FREE#1", "epoch": 7}
    )
    changed = Write(
        name="change",
        key=KEY,
        condition=Equals("epoch", 7),
        set={"epoch": 8, "next": {"nonce": "n"}},
        remove=("owner",),
        add={"inbox": frozenset({"x", "y"})},
    )
    assert table.write(changed) == Written(
        {"pk": KEY.pk, "sk": KEY.sk, "epoch": 8, "next": {"nonce": "n"}, "inbox": frozenset({"x", "y"})}
    )
    inner = Write(
        name="inner",
        key=KEY,
        condition=Equals("next.nonce", "n"),
        set={"next.ready": True},
        delete={"inbox": frozenset({"x", "y"})},
    )
    assert table.write(inner) == Written(
        {"pk": KEY.pk, "sk": KEY.sk, "epoch": 8, "next": {"nonce": "n", "ready": True}}
    )


def test_a_refused_write_changes_nothing_and_returns_the_row_as_it_is(table: Table) -> None:
    table.write(put(KEY, epoch=7))
    row = {"pk": KEY.pk, "sk": KEY.sk, "epoch": 7}
    assert table.write(put(KEY, epoch=9)) == Refused(row)
    assert table.get(KEY) == row


def test_a_condition_on_a_row_that_is_not_there_is_refused_without_an_image(table: Table) -> None:
    assert table.write(Write(name="w", key=KEY, condition=Equals("epoch", 1), set={"epoch": 2})) == Refused(None)
    assert table.get(KEY) is None


CONDITIONS: list[tuple[Condition, bool]] = [
    (Equals("epoch", 7), True),
    (Equals("epoch", 8), False),
    (Equals("epoch", "7"), False),
    (Equals("missing", 7), False),
    (Equals("next.nonce", "n"), True),
    (Equals("next.missing", "n"), False),
    (Equals("owner.nonce", "n"), False),
    (Equals("next", {"nonce": "n", "ready": True}), True),
    (Equals("next.ready", True), True),
    (OneOf("owner", ("x", "me")), True),
    (OneOf("owner", ("x",)), False),
    (OneOf("missing", ("x",)), False),
    (Below("epoch", 8), True),
    (Below("epoch", 7), False),
    (Below("missing", 7), False),
    (Absent("missing"), True),
    (Absent("epoch"), False),
    (Absent("next.missing"), True),
    (Absent("missing.inner"), True),
    (FewerThan("inbox", 3), True),
    (FewerThan("inbox", 2), False),
    (AnyOf((Absent("missing"), FewerThan("missing", 2))), True),
    (AnyOf((Absent("inbox"), FewerThan("inbox", 2))), False),
    (AllOf((Equals("epoch", 7), Equals("owner", "me"))), True),
    (AllOf((Equals("epoch", 7), Equals("owner", "x"))), False),
    (AnyOf((Equals("epoch", 8), Equals("owner", "me"))), True),
    (AnyOf((Equals("epoch", 8), Equals("owner", "x"))), False),
    (AllOf((AnyOf((Absent("missing"), Absent("epoch"))), AnyOf((Absent("epoch"), Absent("owner"))))), False),
    (AnyOf((AllOf((Absent("epoch"), Absent("missing"))), AllOf((Absent("missing"), Absent("other"))))), True),
]


def test_conditions_mean_what_they_say(table: Table) -> None:
    table.write(put(KEY, epoch=7, owner="me", inbox=frozenset({"a", "b"}), next={"nonce": "n", "ready": True}))
    for condition, holds in CONDITIONS:
        outcome = table.write(Write(name="probe", key=KEY, condition=condition, set={"probe": 1}))
        assert isinstance(outcome, Written) is holds, condition


def test_a_write_without_a_condition_is_always_applied(table: Table) -> None:
    for epoch in (1, 2):
        outcome = table.write(Write(name="put", key=KEY, condition=AllOf(()), set={"epoch": epoch}))
        assert outcome == Written({"pk": KEY.pk, "sk": KEY.sk, "epoch": epoch})


SCALARS = [0, 1, -1, 2, True, False, "a", "b", b"a"]
VALUES = st.sampled_from([*SCALARS, frozenset({"a"}), frozenset({"a", "b"}), {"x": 1}, {"x": True}, {}])
NAMES = st.sampled_from(["holder", "next", "state", "n"])
PATHS = NAMES | NAMES.map(lambda name: f"{name}.x")
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Equals, PATHS, VALUES),
    st.builds(OneOf, PATHS, st.lists(VALUES, min_size=1, max_size=3).map(tuple)),
    st.builds(Below, PATHS, st.integers(-1, 2)),
    st.builds(Absent, PATHS | st.just("pk")),
    st.just(AnyOf((Absent("inbox"), FewerThan("inbox", 2)))),
)
TREES: st.SearchStrategy[Condition] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda parts: st.sampled_from([AllOf(tuple(parts)), AnyOf(tuple(parts))])
    ),
    max_leaves=4,
)
ROWS = st.dictionaries(NAMES, VALUES, max_size=4)
SETS = st.frozensets(st.sampled_from("abc"), max_size=2)


@st.composite
def writes(draw: st.DrawFn) -> tuple[dict[str, Any] | None, Write]:
    """A row, or none, and some write of it."""
    inbox = draw(SETS)
    row = draw(st.none() | ROWS.map(lambda row: row | ({"inbox": inbox} if inbox else {})))
    changes = draw(ROWS)
    add, take = draw(SETS), draw(SETS)
    return row, Write(
        name="any",
        key=connection_key(secrets.token_hex(8)),
        condition=draw(TREES),
        set=changes,
        remove=tuple(sorted(draw(st.sets(NAMES)) - changes.keys())),
        add={"inbox": add} if add else {},
        delete={"inbox": take} if take and not add else {},
    )


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(writes())
def test_what_is_sent_means_what_the_simulation_makes_of_it(
    emulated: Table, case: tuple[dict[str, Any] | None, Write]
) -> None:
    """The simulation evaluates `Write` values itself. Here is why that proves something about what is sent."""
    row, write = case
    if row is not None:
        emulated.write(put(write.key, **row))
    before = emulated.get(write.key)
    outcome = emulated.write(write)
    expected = Written(apply(write, before)) if evaluate(write.condition, before) else Refused(before)
    assert outcome == expected
    assert emulated.get(write.key) == expected.image


# Transactions


def test_a_transaction_applies_all_of_it_or_says_what_was_refused(table: Table) -> None:
    other = Key("CONNECTION#a", "SPEC#1")
    assert table.transact((put(KEY, epoch=1), put(other, spec="{}"))) == {}
    third = Key("CONNECTION#a", "SPEC#2")
    refused = table.transact((put(third, spec="{}"), put(KEY, epoch=2)))
    assert refused == {1: Refused({"pk": KEY.pk, "sk": KEY.sk, "epoch": 1})}
    assert table.get(third) is None


# Reads


def test_many_rows_in_batches_of_a_hundred_each_once(table: Table) -> None:
    keys = [connection_key(f"c{number}") for number in range(103)]
    for key in keys:
        table.write(put(key, epoch=1))
    rows = table.get_many([*keys, keys[0], connection_key("absent")])
    assert set(rows) == set(keys)


@contextmanager
def answering(table: Table, done: int) -> Iterator[list[list[str]]]:
    """The table answers so many of the keys that it is asked for, and says that the others are unprocessed."""
    asked: list[list[str]] = []

    def answer(request: Any, **_: Any) -> Any:
        keys = json.loads(request.body)["RequestItems"][table.name]["Keys"]
        asked.append([key["pk"]["S"] for key in keys])
        left = {table.name: {"Keys": keys[done:]}} if keys[done:] else {}
        return json_answer({"Responses": {table.name: keys[:done]}, "UnprocessedKeys": left})

    table.client.meta.events.register("before-send.dynamodb.BatchGetItem", answer)
    yield asked
    table.client.meta.events.unregister("before-send.dynamodb.BatchGetItem", answer)


def test_unprocessed_keys_are_asked_for_again(table: Table) -> None:
    keys = [connection_key(name) for name in "abc"]
    with answering(table, 1) as asked:
        assert set(table.get_many(keys)) == set(keys)
        assert [len(each) for each in asked] == [3, 2, 1]


def test_when_nothing_is_processed_nothing_is_known(table: Table) -> None:
    with answering(table, 0) as asked:
        with pytest.raises(Unknown, match="UnprocessedKeys"):
            table.get_many([connection_key("a")])
        assert len(asked) == 1


def test_the_index_lists_what_an_owner_owns_page_by_page(table: Table) -> None:
    for number in range(5):
        table.write(put(connection_key(f"c{number}"), owner="me", epoch=1))
    table.write(put(connection_key("other"), owner="else", epoch=1))
    found: list[str] = []
    start = None
    while True:
        page = table.owned_by("me", start, limit=2)
        assert len(page.items) <= 2
        found += page.items
        start = page.next
        if start is None:
            break
    assert found == [f"c{number}" for number in range(5)]
    assert sorted(table.owners().items) == [*(("else", "other"),), *(("me", f"c{number}") for number in range(5))]


def test_sessions_of_a_shard(table: Table) -> None:
    ids = [f"s{number}" for number in range(12)]
    for session in ids:
        table.write(put(session_key(session), seq=0))
    found = [row["sk"] for shard in range(4) for row in table.sessions(shard).items]
    assert sorted(found) == sorted(ids)
    assert all(row["pk"] == session_shard(1) for row in table.sessions(1).items)


def test_a_scan_goes_on_where_it_stopped_and_filters(table: Table) -> None:
    for number in range(7):
        table.write(put(connection_key(f"c{number}"), status={"state": "OPEN" if number % 2 else "FAILED"}))
    found, pages, start = [], 0, None
    while True:
        page = table.scan(Equals("status.state", "OPEN"), start, limit=2)
        found += [row["pk"] for row in page.items]
        pages += 1
        start = page.next
        if start is None:
            break
    assert sorted(found) == ["CONNECTION#c1", "CONNECTION#c3", "CONNECTION#c5"]
    assert pages >= 4


# What proves nothing


class _Raw:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.body


def json_answer(body: Any, status: int = 200) -> Any:
    headers: Any = {"Content-Type": "application/x-amz-json-1.0"}
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return AWSResponse("https://dynamodb", status, headers, _Raw(encoded))


ERRORS = [
    (400, {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}, "Throughput"),
    (400, {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}, "ThrottlingException"),
    (500, {"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}, "InternalServerError"),
    (503, b"<html>Service Unavailable</html>", "503"),
    (200, b"", "without the row"),
    (200, {}, "without the row"),
]


@pytest.mark.parametrize(("status", "body", "code"), ERRORS)
def test_an_error_that_proves_nothing_is_unknown_and_named(status: int, body: Any, code: str) -> None:
    with mock_aws():
        table = new_table(None)
        table.client.meta.events.register("before-send.dynamodb.UpdateItem", lambda **_: json_answer(body, status))
        with pytest.raises(Unknown, match=code):
            table.write(put(KEY, epoch=1))


NO_ANSWERS = (
    b"\xff\xfe",
    b"null",
    b"[]",
    b'"text"',
    b"5",
    b"<html>",
    b"{",
    b"",
    b'{"Attributes": 5, "Item": 5, "Items": 5, "Responses": 5}',
    b'{"Attributes": {"a": {"Q": 1}}, "Item": {"a": {"Q": 1}}, "Items": [{"a": {"Q": 1}}], "Responses": {"fleet": []}}',
    b'{"Responses": {"fleet": [{}]}}',
    b'{"Items": [null]}',
)


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("body", NO_ANSWERS)
def test_an_answer_that_cannot_be_read_proves_nothing_and_breaks_nothing(body: bytes, status: int) -> None:
    with mock_aws():
        table = new_table(None)
        table.client.meta.events.register("before-send.dynamodb", lambda **_: json_answer(body, status))
        with pytest.raises(Unknown):
            table.write(put(KEY, epoch=1))
        for listing in (lambda: table.owned_by("me"), table.owners, lambda: table.sessions(0)):
            with pytest.raises(Unknown):
                listing()
        # What is well-formed and holds nothing cannot be told from the answer that there is no such row.
        for reading in (lambda: table.get(KEY), lambda: table.get_many([KEY])):
            with suppress(Unknown):
                assert not reading()


def test_a_value_that_no_row_may_have_is_a_mistake_and_not_an_unknown_outcome() -> None:
    with mock_aws(), pytest.raises(TypeError):
        new_table(None).write(put(KEY, epoch=1.5))


@pytest.mark.parametrize("reason", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_cancelled_transaction_without_a_refused_condition_is_unknown(reason: str) -> None:
    cancelled = {
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "CancellationReasons": [{"Code": "None"}, {"Code": reason}],
    }
    with mock_aws():
        table = new_table(None)
        table.client.meta.events.register(
            "before-send.dynamodb.TransactWriteItems", lambda **_: json_answer(cancelled, 400)
        )
        with pytest.raises(Unknown) as unknown:
            table.transact((put(KEY, epoch=1),))
    assert isinstance(unknown.value, Contended) is (reason == "TransactionConflict")


def test_nobody_listening_is_unknown() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        table = Table(client(f"http://127.0.0.1:{closed.getsockname()[1]}"), "fleet", "by_owner")
        for call in (
            lambda: table.write(put(KEY, epoch=1)),
            lambda: table.transact((put(KEY, epoch=1),)),
            lambda: table.get(KEY),
            lambda: table.get_many([KEY]),
            lambda: table.owned_by("me"),
            table.owners,
            lambda: table.sessions(0),
            lambda: table.scan(Absent("x"), None, 1),
        ):
            with pytest.raises(Unknown):
                call()


# The asynchronous shell


async def test_the_loop_runs_on_while_a_call_waits() -> None:
    """The SDK's call is held until the loop has shown that it goes on: it would never return if it blocked the loop."""
    proceed = threading.Event()
    with mock_aws(), ThreadPoolExecutor(1) as executor:
        table = new_table(None)
        table.client.meta.events.register(
            "before-send.dynamodb.UpdateItem",
            lambda **_: None if proceed.wait(30) else pytest.fail("the loop is blocked"),
        )
        store = AsyncStore(table, executor)
        waiting = asyncio.ensure_future(store.write(put(KEY, owner="me", epoch=1)))
        await asyncio.sleep(0)
        proceed.set()
        assert isinstance(await waiting, Written)
        assert (await store.get(KEY) or {})["epoch"] == 1
        assert set(await store.get_many([KEY])) == {KEY}
        assert (await store.owned_by("me", None)).items == ["a"]
        assert (await store.sessions(0, None)).items == []
