"""What we rely on from the emulator. It is released often: these facts must survive an update of its pin."""

import io
import json
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from botocore.exceptions import ClientError

from local.aws import ACCOUNT, REGION, Aws

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_sqs import SQSClient

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
CLIENTS = 8
ROUNDS = 50


def eventually(look: Callable[[], T]) -> T:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def dynamodb(aws: Aws) -> "DynamoDBClient":
    return aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)


@pytest.fixture
def sqs(aws: Aws) -> "SQSClient":
    return aws.session.client("sqs", endpoint_url=aws.endpoint, config=aws.config)


@pytest.fixture
def kinesis(aws: Aws) -> "KinesisClient":
    return aws.session.client("kinesis", endpoint_url=aws.endpoint, config=aws.config)


@pytest.fixture
def table(dynamodb: "DynamoDBClient") -> Iterator[str]:
    name = f"table-{uuid.uuid4().hex}"
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "owner")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by_owner",
                "KeySchema": [
                    {"AttributeName": "owner", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    yield name
    dynamodb.delete_table(TableName=name)


def key(pk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": "LEASE"}}


class TestTable:
    def test_one_of_many_racing_writers_wins_each_round(self, aws: Aws, table: str) -> None:
        barrier = threading.Barrier(CLIENTS)

        def race(number: int) -> list[int]:
            client = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
            won = []
            for epoch in range(ROUNDS):
                barrier.wait(PATIENCE_SECONDS)
                try:
                    client.update_item(
                        TableName=table,
                        Key=key("raced"),
                        UpdateExpression="SET epoch = :next, holder = :me",
                        ConditionExpression="attribute_not_exists(epoch) OR epoch = :seen",
                        ExpressionAttributeValues={
                            ":seen": {"N": str(epoch)},
                            ":next": {"N": str(epoch + 1)},
                            ":me": {"N": str(number)},
                        },
                    )
                except client.exceptions.ConditionalCheckFailedException:
                    continue
                won.append(epoch)
            return won

        with ThreadPoolExecutor(CLIENTS) as pool:
            won = [epoch for epochs in pool.map(race, range(CLIENTS)) for epoch in epochs]

        assert sorted(won) == list(range(ROUNDS))

    def test_a_refused_update_says_what_is_there(self, dynamodb: "DynamoDBClient", table: str) -> None:
        dynamodb.put_item(TableName=table, Item={**key("held"), "owner": {"S": "a"}, "epoch": {"N": "7"}})

        with pytest.raises(ClientError) as refused:
            dynamodb.update_item(
                TableName=table,
                Key=key("held"),
                UpdateExpression="SET epoch = epoch + :one",
                ConditionExpression="epoch = :seen",
                ExpressionAttributeValues={":one": {"N": "1"}, ":seen": {"N": "6"}},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )

        assert refused.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
        assert refused.value.response["Item"] == {**key("held"), "owner": {"S": "a"}, "epoch": {"N": "7"}}  # type: ignore[typeddict-item]

    def test_an_update_returns_the_new_row_and_takes_ids_out_of_a_set(
        self, dynamodb: "DynamoDBClient", table: str
    ) -> None:
        dynamodb.put_item(TableName=table, Item={**key("session"), "inbox": {"SS": ["a", "b"]}, "seq": {"N": "1"}})

        answer = dynamodb.update_item(
            TableName=table,
            Key=key("session"),
            UpdateExpression="SET seq = :n DELETE inbox :read",
            ExpressionAttributeValues={":n": {"N": "2"}, ":read": {"SS": ["a"]}},
            ReturnValues="ALL_NEW",
        )

        assert answer["Attributes"] == {**key("session"), "inbox": {"SS": ["b"]}, "seq": {"N": "2"}}

    def test_the_index_lists_keys_by_owner_and_forgets_who_has_none(
        self, dynamodb: "DynamoDBClient", table: str
    ) -> None:
        for number in range(5):
            dynamodb.put_item(TableName=table, Item={**key(f"c{number}"), "owner": {"S": "a"}, "epoch": {"N": "1"}})
        dynamodb.update_item(
            TableName=table, Key=key("c1"), UpdateExpression="REMOVE #o", ExpressionAttributeNames={"#o": "owner"}
        )
        dynamodb.update_item(
            TableName=table,
            Key=key("c2"),
            UpdateExpression="SET #o = :b",
            ExpressionAttributeNames={"#o": "owner"},
            ExpressionAttributeValues={":b": {"S": "b"}},
        )

        pages = list(
            dynamodb.get_paginator("query").paginate(
                TableName=table,
                IndexName="by_owner",
                KeyConditionExpression="#o = :a",
                ExpressionAttributeNames={"#o": "owner"},
                ExpressionAttributeValues={":a": {"S": "a"}},
                PaginationConfig={"PageSize": 2},
            )
        )

        assert len(pages) >= 2
        assert [item for page in pages for item in page["Items"]] == [
            {**key(f"c{number}"), "owner": {"S": "a"}} for number in (0, 3, 4)
        ]

    def test_a_transaction_is_all_or_nothing_and_says_which_condition_failed(
        self, dynamodb: "DynamoDBClient", table: str
    ) -> None:
        dynamodb.put_item(TableName=table, Item={**key("there"), "epoch": {"N": "1"}})

        with pytest.raises(ClientError) as cancelled:
            dynamodb.transact_write_items(
                TransactItems=[
                    {"Put": {"TableName": table, "Item": key("new")}},
                    {
                        "Put": {
                            "TableName": table,
                            "Item": key("there"),
                            "ConditionExpression": "attribute_not_exists(pk)",
                            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                        }
                    },
                ]
            )

        assert cancelled.value.response["Error"]["Code"] == "TransactionCanceledException"
        reasons = cancelled.value.response["CancellationReasons"]
        assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed"]
        assert reasons[1]["Item"] == {**key("there"), "epoch": {"N": "1"}}
        assert "Item" not in dynamodb.get_item(TableName=table, Key=key("new"), ConsistentRead=True)


class TestQueue:
    def test_a_message_comes_back_until_it_is_deleted_and_then_goes_to_the_dead_letters(self, sqs: "SQSClient") -> None:
        dead = sqs.create_queue(QueueName=f"dead-{uuid.uuid4().hex}")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
        queue = sqs.create_queue(
            QueueName=f"queue-{uuid.uuid4().hex}", Attributes={"VisibilityTimeout": "1", "RedrivePolicy": policy}
        )["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody="hint")

        counts = [
            sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10, AttributeNames=["ApproximateReceiveCount"])[
                "Messages"
            ][0]["Attributes"]["ApproximateReceiveCount"]
            for _ in range(2)
        ]

        assert counts == ["1", "2"]
        assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=3)
        assert [message["Body"] for message in sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=10)["Messages"]] == [
            "hint"
        ]

    def test_a_message_in_flight_is_hidden_and_a_deleted_one_is_gone(self, sqs: "SQSClient") -> None:
        queue = sqs.create_queue(QueueName=f"queue-{uuid.uuid4().hex}", Attributes={"VisibilityTimeout": "1"})[
            "QueueUrl"
        ]
        sqs.send_message(QueueUrl=queue, MessageBody="hint")

        (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10)["Messages"]
        assert "Messages" not in sqs.receive_message(QueueUrl=queue)
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])

        assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=2)

    def test_a_long_poll_ends_when_a_message_arrives(self, sqs: "SQSClient") -> None:
        queue = sqs.create_queue(QueueName=f"queue-{uuid.uuid4().hex}")["QueueUrl"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(sqs.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
            sqs.send_message(QueueUrl=queue, MessageBody="hint")
            assert waiting.result(timeout=10)["Messages"][0]["Body"] == "hint"


class TestStream:
    def test_entries_of_one_key_are_in_one_shard_in_the_order_of_their_writes(self, kinesis: "KinesisClient") -> None:
        stream = f"stream-{uuid.uuid4().hex}"
        kinesis.create_stream(StreamName=stream, ShardCount=2)
        kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
        connections = [f"connection-{number}" for number in range(8)]
        for number in range(10):
            answer = kinesis.put_records(
                StreamName=stream,
                Records=[{"PartitionKey": name, "Data": f"{name} {number}".encode()} for name in connections],
            )
            assert answer["FailedRecordCount"] == 0

        shards = []
        for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
            iterator = kinesis.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            shards.append([entry["Data"].decode() for entry in kinesis.get_records(ShardIterator=iterator)["Records"]])

        assert len(shards) == 2
        assert all(shards)
        for name in connections:
            found = [[data for data in shard if data.startswith(f"{name} ")] for shard in shards]
            assert sorted(found) == [[], [f"{name} {number}" for number in range(10)]]


HANDLER = """
import boto3, json, os
def handler(event, context):
    boto3.client("sqs").send_message(QueueUrl=os.environ["QUEUE_URL"], MessageBody=json.dumps(event))
    return {"statusCode": 200, "body": "{}"}
"""


class TestEvents:
    def test_a_rule_invokes_a_function_with_the_events_that_match(self, aws: Aws, sqs: "SQSClient") -> None:
        """A source that begins with `aws.` is refused from us, as on AWS; so the event of ECS itself cannot be sent."""
        name = f"listener-{uuid.uuid4().hex}"
        queue = sqs.create_queue(QueueName=name)["QueueUrl"]
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("listener.py", HANDLER)
        lambda_ = aws.session.client("lambda", endpoint_url=aws.endpoint, config=aws.config)
        arn = lambda_.create_function(
            FunctionName=name,
            Runtime="python3.14",
            Role=f"arn:aws:iam::{ACCOUNT}:role/any",
            Handler="listener.handler",
            Code={"ZipFile": code.getvalue()},
            Environment={"Variables": {"QUEUE_URL": queue}},
            Timeout=10,
        )["FunctionArn"]
        lambda_.add_permission(
            FunctionName=name, StatementId="events", Action="lambda:InvokeFunction", Principal="events.amazonaws.com"
        )
        events = aws.session.client("events", endpoint_url=aws.endpoint, config=aws.config)
        pattern = {
            "source": ["test.ecs"],
            "detail-type": ["ECS Task State Change"],
            "detail": {"lastStatus": ["STOPPED"]},
        }
        events.put_rule(Name=name, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=name, Targets=[{"Id": "listener", "Arn": arn}])

        for status in ("RUNNING", "STOPPED"):
            entry = {"lastStatus": status, "taskArn": f"arn:aws:ecs:{REGION}:{ACCOUNT}:task/c/{name}"}
            answer = events.put_events(
                Entries=[{"Source": "test.ecs", "DetailType": "ECS Task State Change", "Detail": json.dumps(entry)}]
            )
            assert answer["FailedEntryCount"] == 0

        (message,) = eventually(
            lambda: sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5, MaxNumberOfMessages=10).get("Messages")
        )
        event = json.loads(message["Body"])
        assert event["detail-type"] == "ECS Task State Change"
        assert event["detail"]["lastStatus"] == "STOPPED"
