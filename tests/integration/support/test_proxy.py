"""The fault proxy does to a real SDK and a real emulator what it says."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError

from local.aws import Aws
from tests.support.proxy import (
    FOREVER,
    THROTTLED,
    UNAVAILABLE,
    Delay,
    Drop,
    FaultProxy,
    Lose,
    Rule,
    Stale,
    Usage,
    conditional_write,
    table_write,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

PATIENCE_SECONDS = 30.0
Connect = Callable[[str], "DynamoDBClient"]


@pytest.fixture
def proxy(aws: Aws) -> Iterator[FaultProxy]:
    with FaultProxy(aws.endpoint) as proxy:
        yield proxy


@pytest.fixture
def connect(aws: Aws, proxy: FaultProxy) -> Connect:
    config = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1})
    return lambda caller: aws.session.client("dynamodb", endpoint_url=proxy.endpoint(caller), config=config)


@pytest.fixture
def dynamodb(connect: Connect) -> "DynamoDBClient":
    return connect("worker")


@pytest.fixture
def table(aws: Aws) -> Iterator[str]:
    client = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
    name = f"table-{uuid.uuid4().hex}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "owner")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by_owner",
                "KeySchema": [{"AttributeName": "owner", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    yield name
    client.delete_table(TableName=name)


def put(client: "DynamoDBClient", table: str, pk: str, owner: str = "a") -> None:
    """Create a row; raises `ConditionalCheckFailedException` where there is one."""
    client.put_item(
        TableName=table,
        Item={"pk": {"S": pk}, "owner": {"S": owner}},
        ConditionExpression="attribute_not_exists(pk)",
    )


def there(client: "DynamoDBClient", table: str, pk: str) -> bool:
    return "Item" in client.get_item(TableName=table, Key={"pk": {"S": pk}}, ConsistentRead=True)


def owned(client: "DynamoDBClient", table: str, owner: str) -> list[Any]:
    answer = client.query(
        TableName=table,
        IndexName="by_owner",
        KeyConditionExpression="#o = :o",
        ExpressionAttributeNames={"#o": "owner"},
        ExpressionAttributeValues={":o": {"S": owner}},
    )
    return [item["pk"]["S"] for item in answer["Items"]]


def test_without_rules_calls_pass_and_their_units_are_counted(
    proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str
) -> None:
    put(dynamodb, table, "x")
    with pytest.raises(dynamodb.exceptions.ConditionalCheckFailedException):
        put(dynamodb, table, "x")
    dynamodb.update_item(
        TableName=table,
        Key={"pk": {"S": "x"}},
        UpdateExpression="SET #o = :b",
        ExpressionAttributeNames={"#o": "owner"},
        ExpressionAttributeValues={":b": {"S": "b"}},
    )
    assert there(dynamodb, table, "x")
    assert owned(dynamodb, table, "b") == ["x"]
    dynamodb.batch_get_item(
        RequestItems={table: {"Keys": [{"pk": {"S": pk}} for pk in ("x", "y")], "ConsistentRead": True}}
    )

    assert proxy.usage() == {
        ("worker", "dynamodb.PutItem"): Usage(calls=2, refused=1, write_units=2, index_units=1),
        ("worker", "dynamodb.UpdateItem"): Usage(calls=1, write_units=1, index_units=2),
        ("worker", "dynamodb.GetItem"): Usage(calls=1, read_units=1),
        ("worker", "dynamodb.Query"): Usage(calls=1, read_units=0.5),
        ("worker", "dynamodb.BatchGetItem"): Usage(calls=1, read_units=2),
    }


def test_a_lost_answer_is_that_of_a_write_that_was_applied(
    proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str
) -> None:
    with proxy.fault(Rule(Lose(), conditional_write)), pytest.raises(BotoCoreError):
        put(dynamodb, table, "x")

    assert there(dynamodb, table, "x")


def test_a_dropped_request_is_not_applied(proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str) -> None:
    with proxy.fault(Rule(Drop())), pytest.raises(BotoCoreError):
        put(dynamodb, table, "x")

    assert not there(dynamodb, table, "x")


@pytest.mark.parametrize(
    ("fault", "code"),
    [(THROTTLED, "ProvisionedThroughputExceededException"), (UNAVAILABLE, "InternalServerError")],
)
def test_errors_are_those_of_the_service(
    proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str, fault: Any, code: str
) -> None:
    with proxy.fault(Rule(fault, table_write)), pytest.raises(ClientError) as failed:
        put(dynamodb, table, "x")

    assert failed.value.response["Error"]["Code"] == code
    assert not there(dynamodb, table, "x")


def test_a_caller_that_gave_up_may_still_be_heard(
    aws: Aws, proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str
) -> None:
    config = Config(read_timeout=0.2, retries={"total_max_attempts": 1})
    hasty = aws.session.client("dynamodb", endpoint_url=proxy.endpoint("hasty"), config=config)
    with proxy.fault(Rule(Delay(1.0), table_write)):
        with pytest.raises(ReadTimeoutError):
            put(hasty, table, "x")
        assert not there(dynamodb, table, "x")

    deadline = time.monotonic() + PATIENCE_SECONDS
    while not there(dynamodb, table, "x"):
        assert time.monotonic() < deadline, "the late write did not land"
        time.sleep(0.05)


def test_only_the_calls_with_these_numbers_are_struck(
    proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str
) -> None:
    rule = Rule(THROTTLED, table_write, numbers={2}, key=lambda call: call.body["Item"]["owner"]["S"])
    outcomes = []
    with proxy.fault(rule):
        for number in range(3):
            for owner in "ab":
                try:
                    put(dynamodb, table, f"{owner}{number}", owner)
                except ClientError:
                    outcomes.append(f"{owner}{number}")

    assert outcomes == ["a1", "b1"]
    assert rule.struck == 2


def test_a_share_of_the_calls_is_struck(proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str) -> None:
    rule = Rule(THROTTLED, share=0.25)
    failed = 0
    with proxy.fault(rule):
        for _ in range(200):
            try:
                there(dynamodb, table, "x")
            except ClientError:
                failed += 1

    assert failed == rule.struck
    assert 25 <= failed <= 75


def test_one_caller_alone_is_cut_off_and_delays_nobody(proxy: FaultProxy, connect: Connect, table: str) -> None:
    cut_off, other = connect("cut off"), connect("other")
    with (
        ThreadPoolExecutor(1) as pool,
        proxy.fault(Rule(Drop(FOREVER), lambda call: call.caller == "cut off")),
    ):
        hanging = pool.submit(put, cut_off, table, "x")
        put(other, table, "y")
        assert not hanging.done()
        assert isinstance(hanging.exception(timeout=PATIENCE_SECONDS), ReadTimeoutError)

    put(cut_off, table, "x")


def test_a_stale_index_tells_what_was(proxy: FaultProxy, dynamodb: "DynamoDBClient", table: str) -> None:
    put(dynamodb, table, "x", "a")
    assert owned(dynamodb, table, "a") == ["x"]
    asked_at = time.monotonic()
    put(dynamodb, table, "y", "a")
    put(dynamodb, table, "z", "b")

    with proxy.fault(Rule(Stale(time.monotonic() - asked_at))):
        assert owned(dynamodb, table, "a") == ["x"]
        assert owned(dynamodb, table, "b") == []
        assert there(dynamodb, table, "z")
    assert sorted(owned(dynamodb, table, "a")) == ["x", "y"]
