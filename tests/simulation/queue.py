"""The queue of hints, as SQS is: late, out of order, at least once, and here also not at all."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from leases.conditions import Unknown
from tests.simulation.loop import Timetable
from tests.simulation.processes import Process

VISIBILITY_SECONDS = 30.0
RECEIPTS = 20
LOOK_AGAIN_SECONDS = 1.0


class Receiver(Protocol):
    """A worker process that takes hints while it has room."""

    process: Process

    def takes_hints(self) -> bool:
        """Whether it polls at the moment."""
        ...

    def receive(self, connection: str, delete: Callable[[], None]) -> None:
        """A message arrives in this process; `delete` is to be called once it is dealt with."""
        ...


class Message:
    """One message."""

    __slots__ = ("connection", "deleted", "receipts")

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.deleted = False
        self.receipts = 0


class Queue:
    """The queue and its receivers."""

    def __init__(self, timetable: Timetable, rng: Random) -> None:
        self._timetable = timetable
        self._rng = rng
        self.receivers: list[Receiver] = []
        self.lost = 0.0
        self.repeated = 0.0
        self.late_seconds = 0.0
        self.sent = 0

    def put(self, connection: str) -> None:
        """A message is accepted."""
        self.sent += 1
        for _ in range(2 if self._rng.random() < self.repeated else 1):
            if self._rng.random() >= self.lost:
                delay = 0.005 + 0.04 * self._rng.random() + self.late_seconds * self._rng.random() ** 2
                self._timetable.after(delay, self._show, Message(connection))

    def _show(self, message: Message) -> None:
        if message.deleted or message.receipts >= RECEIPTS:
            return
        pollers = [receiver for receiver in self.receivers if receiver.process.alive and receiver.takes_hints()]
        if not pollers:
            self._timetable.after(LOOK_AGAIN_SECONDS, self._show, message)
            return
        message.receipts += 1
        receiver = self._rng.choice(pollers)

        def delete() -> None:
            message.deleted = self._rng.random() >= self.lost

        receiver.process.call(receiver.receive, message.connection, delete)
        self._timetable.after(VISIBILITY_SECONDS, self._show, message)


class QueueHints:
    """The queue as one process reaches it. Implements `leases.ports.Hints`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.cut = False

    async def send(self, connections: Sequence[str]) -> None:
        await asyncio.sleep(0.004)
        if self.cut:
            raise Unknown("the queue cannot be reached")
        for connection in connections:
            self._queue.put(connection)
