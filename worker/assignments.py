"""The queue of connections that want an owner: taking hints from it while there is room, and putting hints into it.

A message is a hint, the row is the truth: it is deleted once the row is read and the connection claimed, lost to
another, or found to want no owner. One that cannot be acted upon becomes visible again by itself.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from leases.conditions import Unknown
from leases.holdings import Considered
from leases.member import Member
from telemetry.logs import Field
from worker.logs import logger

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

log = logger()

BATCH = 10
"""Messages in one SQS call (AWS: SendMessageBatch, ReceiveMessage, DeleteMessageBatch)."""
GATHER_SECONDS = 0.02
"""Hints sent within this time share a call."""
WAIT_SECONDS = 5
"""Long poll: an empty queue is asked this rarely. Short enough for a stop to pass quickly."""
NO_ROOM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Queue:
    """The assignment queue, as blocking calls. Raises botocore's errors."""

    client: "SQSClient"
    url: str

    def send(self, connections: Sequence[str]) -> int:
        """Queue at most BATCH hints; returns how many were refused."""
        entries: Any = [
            {"Id": str(number), "MessageBody": json.dumps({"connectionId": connection})}
            for number, connection in enumerate(connections)
        ]
        answer = self.client.send_message_batch(QueueUrl=self.url, Entries=entries)
        return len(answer.get("Failed", ()))

    def receive(self, most: int) -> Sequence[tuple[str, str]]:
        """Wait for messages; returns (receipt handle, body) of at most `most` of them."""
        answer = self.client.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=min(most, BATCH), WaitTimeSeconds=WAIT_SECONDS
        )
        return [(message["ReceiptHandle"], message["Body"]) for message in answer.get("Messages", ())]

    def delete(self, handles: Sequence[str]) -> None:
        """Delete messages. One that stays is delivered again, and does nothing then."""
        entries: Any = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        self.client.delete_message_batch(QueueUrl=self.url, Entries=entries)


class QueuedHints:
    """`leases.ports.Hints` on the assignment queue. Hints that come close together share a call."""

    def __init__(self, queue: Queue, executor: Executor) -> None:
        self._queue = queue
        self._executor = executor
        self._gathered: list[str] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, connections: Sequence[str]) -> None:
        """See `leases.ports.Hints`. Raises `Unknown`."""
        self._gathered.extend(connections)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_gathered())
        await asyncio.shield(self._sending)

    async def _send_gathered(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        self._sending = None
        gathered, self._gathered = list(dict.fromkeys(self._gathered)), []
        loop = asyncio.get_running_loop()
        batches = [gathered[at : at + BATCH] for at in range(0, len(gathered), BATCH)]
        try:
            refused = await asyncio.gather(
                *(loop.run_in_executor(self._executor, self._queue.send, batch) for batch in batches)
            )
        except (BotoCoreError, ClientError) as error:
            raise Unknown(f"send hints: {type(error).__name__}") from error
        if any(refused):
            raise Unknown(f"send hints: {sum(refused)} refused")


class Assignments:
    """Takes hints from the queue while this worker has room."""

    def __init__(self, member: Member, queue: Queue, *, pollers: Executor, executor: Executor, rng: Random) -> None:
        self._member = member
        self._queue = queue
        self._pollers = pollers
        self._executor = executor
        self._rng = rng

    async def run(self, pollers: int) -> None:
        """Take hints, for ever, with so many polls at once."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(pollers):
                tasks.create_task(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            room = self._member.room
            if room <= 0:
                await asyncio.sleep(NO_ROOM_SECONDS * self._rng.uniform(0.5, 1))
                continue
            try:
                messages = await loop.run_in_executor(self._pollers, self._queue.receive, room)
                await self._take(messages)
            except (BotoCoreError, ClientError, Unknown) as error:
                log.warning("The assignment queue is unavailable; trying again", extra={Field.REASON: str(error)})
                await asyncio.sleep(self._rng.uniform(0, 2))

    async def _take(self, messages: Sequence[tuple[str, str]]) -> None:
        named = {handle: _connection(body) for handle, body in messages}
        outcomes = await self._member.consider([name for name in named.values() if name])
        done = [handle for handle, name in named.items() if name and outcomes[name] is Considered.DONE]
        if done:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._queue.delete, done)


def _connection(body: str) -> str | None:
    """The connection that a message names; None for one that nobody can read, which ends in the dead-letter queue."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    name = document.get("connectionId") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None
