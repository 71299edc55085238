"""AWS clients whose calls end soon, and the table and the queue behind them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from leases.conditions import Unknown
from leases.dynamodb import Table

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

ONE_ANSWER = Config(connect_timeout=0.2, read_timeout=1.2, retries={"mode": "legacy", "total_max_attempts": 2})
"""Two attempts end within 2.5 seconds. Legacy mode pauses 50 ms before it repeats a DynamoDB call, not a second."""

QUEUE_BATCH = 10
"""Entries that one SendMessageBatch takes."""


def table() -> Table:
    """The table that the environment names."""
    return Table(boto3.client("dynamodb", config=ONE_ANSWER), os.environ["TABLE_NAME"], os.environ["OWNER_INDEX"])


def hints() -> "HintQueue":
    """The queue that the environment names."""
    return HintQueue(boto3.client("sqs", config=ONE_ANSWER), os.environ["QUEUE_URL"])


@dataclass(frozen=True, slots=True)
class HintQueue:
    """The queue of connections that want an owner. Losing, repeating or delaying a hint costs time and nothing else."""

    client: "SQSClient"
    url: str

    def send(self, connections: Sequence[str]) -> None:
        """Ask whoever has room to look at these rows. Raises `Unknown`; some may have been sent."""
        for first in range(0, len(connections), QUEUE_BATCH):
            batch = connections[first : first + QUEUE_BATCH]
            try:
                answer = self.client.send_message_batch(
                    QueueUrl=self.url,
                    Entries=[
                        {"Id": str(number), "MessageBody": json.dumps({"connectionId": connection})}
                        for number, connection in enumerate(batch)
                    ],
                )
            except ClientError as error:
                raise Unknown(f"hint: {error.response.get('Error', {}).get('Code', 'no code')}") from error
            except BotoCoreError as error:
                raise Unknown(f"hint: {type(error).__name__}") from error
            if answer.get("Failed"):
                raise Unknown(f"hint: {len(answer['Failed'])} of {len(batch)} refused")
