"""AWS clients whose calls end soon, and the table and the queue behind them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from leases.conditions import Unknown
from leases.dynamodb import Table

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

CONNECT_SECONDS = 0.2
READ_SECONDS = 1.2
ATTEMPT_SECONDS = CONNECT_SECONDS + READ_SECONDS
"""The longest that one attempt may take. A connection that died while its function was frozen answers nobody."""


QUEUE_BATCH = 10
"""Entries that one SendMessageBatch takes."""


def table(attempts: int = 2) -> Table:
    """The table that the environment names."""
    client = boto3.client("dynamodb", config=_config(attempts))
    return Table(client, os.environ["TABLE_NAME"], os.environ["OWNER_INDEX"])


def hints() -> "HintQueue":
    """The queue that the environment names."""
    return HintQueue(boto3.client("sqs", config=_config(attempts=2)), os.environ["QUEUE_URL"])


def _config(attempts: int) -> Config:
    # Legacy mode pauses 50 ms before it repeats a DynamoDB call, not a second.
    retries: Any = {"mode": "legacy", "total_max_attempts": attempts}
    return Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)


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
