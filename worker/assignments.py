"""The queue of connections that want an owner: taking hints from it while there is room, and putting hints into it.

A message is a hint, the row is the truth: it is deleted once the row is read and the connection claimed, lost to
another, or found to want no owner. One that cannot be acted upon becomes visible again by itself.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from leases.conditions import Unknown
from leases.dynamodb import UNREADABLE
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
WAIT_SECONDS = 2
"""Long poll: an empty queue is asked this rarely. A worker that froze, or was cut off, may have a poll under way, and
what that poll receives is invisible for 30 s. So it must be over before the worker is declared dead and its own
connections are hinted at: shorter than W."""
NO_ROOM_SECONDS = 0.5
AHEAD_SECONDS = 0.1
"""A worker that holds more than the mean lets the others receive first."""
MOST_IN_HAND = 64
GIVE_BACK_SECONDS = 2
"""A hint that could not be acted on is visible again after this long: to others first, with luck."""


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

    def give_back(self, handles: Sequence[str], seconds: int) -> None:
        """Make messages visible again after so long."""
        entries: Any = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for number, handle in enumerate(handles)
        ]
        self.client.change_message_visibility_batch(QueueUrl=self.url, Entries=entries)

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
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
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
        self._in_hand = 0
        """Hints that were received and are being looked at."""

    async def run(self) -> None:
        """Take hints until the member stops: the next ones are received while the last ones are looked at.

        Ends when the last poll is over, and what it received, perhaps of what this worker itself has let go, is given
        back: with a process that ends before, it would stay invisible for as long as with one that crashes.
        """
        async with asyncio.TaskGroup() as tasks:
            while not self._member.stopping:
                room = min(self._member.room, MOST_IN_HAND) - self._in_hand
                if room <= 0:
                    await asyncio.sleep(NO_ROOM_SECONDS * self._rng.uniform(0.5, 1))
                    continue
                if self._member.ahead:
                    await asyncio.sleep(AHEAD_SECONDS * self._rng.uniform(0.5, 1))
                messages = await self._receive(room)
                if messages:
                    self._in_hand += len(messages)
                    tasks.create_task(self._take(messages))

    async def _receive(self, most: int) -> Sequence[tuple[str, str]]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pollers, self._queue.receive, most)
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            log.warning(
                "The assignment queue does not answer; trying again", extra={Field.REASON: type(error).__name__}
            )
            await asyncio.sleep(self._rng.uniform(0, 2))
            return ()

    async def _take(self, messages: Sequence[tuple[str, str]]) -> None:
        """Act on hints; give back at once those that another worker may have to act on."""
        named = {handle: _connection(body) for handle, body in messages}
        wanted = [name for name in named.values() if name]
        outcomes: Mapping[str, Considered] = dict.fromkeys(wanted, Considered.LATER)
        try:
            # The poll may have been under way since before this session was on hold.
            if self._member.room > 0:
                outcomes = await self._member.consider(wanted)
        except Unknown as unknown:
            log.warning("Connections that want an owner cannot be read", extra={Field.REASON: str(unknown)})
        finally:
            self._in_hand -= len(messages)
        done = [handle for handle, name in named.items() if name and outcomes[name] is Considered.DONE]
        later = [handle for handle, name in named.items() if name and outcomes[name] is Considered.LATER]
        loop = asyncio.get_running_loop()
        try:
            if done:
                await loop.run_in_executor(self._executor, self._queue.delete, done)
            if later:
                seconds = 0 if self._member.stopping else GIVE_BACK_SECONDS
                await loop.run_in_executor(self._executor, self._queue.give_back, later, seconds)
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            # They become visible again by themselves, and do nothing then.
            log.warning("Hints could not be put away", extra={Field.REASON: type(error).__name__})


def _connection(body: str) -> str | None:
    """The connection that a message names; None for one that nobody can read, which ends in the dead-letter queue."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = document.get("connectionId") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None
