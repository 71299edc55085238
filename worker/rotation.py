"""Two WebSockets of one connection side by side: what both brought is delivered once."""

from collections import deque
from collections.abc import Sequence

from leases.rows import HANDOFF_MESSAGES
from worker.handover import LAG_SECONDS, overlap
from worker.records import digest

Message = tuple[str | bytes, float]
"""A message, and when it was received in unix seconds."""

PENDING_BYTES = 1024 * 1024
"""What the new WebSocket may bring before it takes over."""


class Overlap:
    """While it lasts, the old WebSocket delivers and the new one waits."""

    __slots__ = ("_delivered", "_pending", "pending_bytes")

    def __init__(self) -> None:
        self._delivered: deque[bytes] = deque(maxlen=HANDOFF_MESSAGES)
        self._pending: list[Message] = []
        self.pending_bytes = 0

    def delivered(self, messages: Sequence[str | bytes]) -> None:
        """The old one brought messages."""
        self._delivered.extend(map(digest, messages[-HANDOFF_MESSAGES:]))

    def pending(self, messages: Sequence[str | bytes], received_at: float) -> None:
        """The new one brought messages."""
        self._pending += [(data, received_at) for data in messages]
        self.pending_bytes += sum(map(len, messages))

    def forget_pending(self) -> None:
        """The new one ended before it took over."""
        self._pending.clear()
        self.pending_bytes = 0

    def cut(self, now: float) -> tuple[Sequence[Message], "Echo"]:
        """The new one takes over: what of its messages is new, and what it may yet bring that is not.

        `now` is in seconds of the clock that `Echo.without` is told.
        """
        drop, expected = overlap(list(self._delivered), [digest(data) for data, _ in self._pending])
        return self._pending[drop:], Echo(expected, now + LAG_SECONDS)


class Echo:
    """Messages that were delivered already, and that the slower one of two WebSockets brings only now."""

    __slots__ = ("_expected", "_until")

    def __init__(self, expected: Sequence[bytes], until: float) -> None:
        self._expected = expected
        self._until = until

    def without(self, messages: Sequence[str | bytes], now: float) -> Sequence[str | bytes]:
        """Those of these messages that were not delivered already. The first of them ends the echo."""
        if now > self._until:
            return messages
        for number, data in enumerate(messages):
            if not self._covers(data):
                return messages[number:]
        return ()

    def _covers(self, data: str | bytes) -> bool:
        found = digest(data)
        if found not in self._expected:
            self._expected = ()
            return False
        self._expected = self._expected[self._expected.index(found) + 1 :]
        return True
