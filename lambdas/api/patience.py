"""What is done about a table that does not answer: the request is repeated while its client can still be told in time.

Every route may be repeated as a whole: whatever an unanswered write has done is found in the rows by the next attempt.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from lambdas.clients import ATTEMPT_SECONDS
from leases.conditions import Unknown
from leases.dynamodb import Contended

T = TypeVar("T")

ANSWER_SECONDS = 2.7
"""By then the last attempt has ended, so that an outage is told within three seconds."""

PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds, at most, before each repetition. There are no more repetitions than these: an outage must not be fed."""


class OutcomeUnknown(Unknown):
    """A change was sent, and nothing says whether it was made, or will be."""

    def __init__(self, reason: str, connection: str | None) -> None:
        super().__init__(reason)
        self.connection = connection


@contextmanager
def changing(connection: str | None = None) -> Iterator[None]:
    """Around a write: without an answer its outcome is unknown. Raises `OutcomeUnknown` for such an `Unknown`."""
    try:
        yield
    except Contended:
        # Proof that nothing was written.
        raise
    except Unknown as unknown:
        raise OutcomeUnknown(str(unknown), connection) from unknown


@dataclass(frozen=True, slots=True)
class Patience:
    """Repeats requests, with full jitter."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def answered(self, request: Callable[[], T]) -> T:
        """What the request returns once it is answered.

        Raises `Unknown` when another attempt might not end in time: the first `OutcomeUnknown`, if there was one, since
        no failure to read settles it.
        """
        last_start = self.now() + ANSWER_SECONDS - ATTEMPT_SECONDS
        waits = deque(random.uniform(0, longest) for longest in PAUSES)
        failure: Unknown | None = None
        while True:
            try:
                return request()
            except Unknown as unknown:
                failure = failure if isinstance(failure, OutcomeUnknown) else unknown
                if not waits or self.now() + waits[0] > last_start:
                    raise failure from None
            self.sleep(waits.popleft())
