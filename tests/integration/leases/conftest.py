"""A lease table of its own for each test, and a fault proxy before it."""

import uuid
from collections.abc import Iterator

import pytest

from local.aws import Aws
from tests.integration.leases.parts import OWNER_INDEX
from tests.support.proxy import FaultProxy


@pytest.fixture
def table(aws: Aws) -> Iterator[str]:
    """The name of an empty lease table."""
    client = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
    name = f"leases-{uuid.uuid4().hex}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "owner")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": OWNER_INDEX,
                "KeySchema": [
                    {"AttributeName": "owner", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    yield name
    client.delete_table(TableName=name)


@pytest.fixture
def proxy(aws: Aws) -> Iterator[FaultProxy]:
    """A fault proxy before the emulator."""
    with FaultProxy(aws.endpoint) as proxy:
        yield proxy
