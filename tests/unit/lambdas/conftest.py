"""The functions as Lambda loads them: imported anew in the environment of each test. DynamoDB and SQS by moto."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import boto3
import pytest
from moto import mock_aws

from leases.dynamodb import Table
from leases.rows import SessionRow, SessionState
from leases.writes import open_session

PERSON = "arn:aws:sts::123456789012:assumed-role/Deploy/run-17"


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "TABLE_NAME": "fleet",
    "OWNER_INDEX": "by_owner",
    "ALLOWED_HOSTS": "localhost",
    "SECRET_PREFIX": "websocket-fleet/",
    "POWERTOOLS_SERVICE_NAME": "websocket-fleet",
    "POWERTOOLS_METRICS_NAMESPACE": "WebSocketFleet",
    "POWERTOOLS_LOG_LEVEL": "DEBUG",
}


@pytest.fixture
def aws_of_lambda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of the functions, and AWS as moto has it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with mock_aws(config={"core": {"reset_boto3_session": False}}):
        queue = boto3.client("sqs").create_queue(QueueName="assignments")
        monkeypatch.setenv("QUEUE_URL", queue["QueueUrl"])
        yield


def new_table(client: Any, name: str) -> Table:
    """The table as the template defines it, as far as the functions can tell."""
    made = Table(client, name, "by_owner")
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


@pytest.fixture
def table(aws_of_lambda: None) -> Table:
    return new_table(boto3.client("dynamodb"), "fleet")


@pytest.fixture
def load(aws_of_lambda: None) -> Iterator[Callable[[str], ModuleType]]:
    """Import a handler module as a cold start does."""
    loaded: list[str] = []

    def cold_start(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        loaded.append(name)
        return importlib.import_module(name)

    yield cold_start
    for name in loaded:
        sys.modules.pop(name, None)


class Queue:
    """What was sent to the queue of assignments."""

    def __init__(self, url: str) -> None:
        self.client = boto3.client("sqs")
        self.url = url

    def take(self) -> list[str]:
        taken: list[str] = []
        while messages := self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=600
        ).get("Messages"):
            taken += [json.loads(message["Body"])["connectionId"] for message in messages]
        return taken


@pytest.fixture
def queue(aws_of_lambda: None) -> Queue:
    client = boto3.client("sqs")
    return Queue(client.get_queue_url(QueueName="assignments")["QueueUrl"])


@pytest.fixture
def worker(table: Table) -> Callable[..., SessionRow]:
    """Open sessions."""

    def start(session: str, **fields: Any) -> SessionRow:
        row = SessionRow(
            **{
                "session": session,
                "state": SessionState.LIVE,
                "seq": 1,
                "takeover_ms": 7000,
                "capacity": 10,
                "held": 0,
                "rate": 0,
                "revision": 1,
                "task_arn": "arn:task/1",
                "inbox": frozenset(),
                "opened_at": 1_800_000_000,
                **fields,
            }
        )
        table.write(open_session(row))
        return row

    return start


def request(
    method: str,
    resource: str,
    body: Any = None,
    *,
    connection: str | None = None,
    query: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    person: str | None = PERSON,
) -> dict[str, Any]:
    """A proxy event as API Gateway's REST API sends it."""
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    return {
        "resource": resource,
        "path": resource if connection is None else resource.replace("{id}", connection),
        "httpMethod": method,
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in (headers or {}).items()} or None,
        "queryStringParameters": query,
        "multiValueQueryStringParameters": {name: [value] for name, value in (query or {}).items()} or None,
        "pathParameters": None if connection is None else {"id": connection},
        "requestContext": {"identity": {"userArn": person, "accountId": "123456789012"}},
        "body": text,
        "isBase64Encoded": False,
    }
