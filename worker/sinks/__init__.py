"""Where output records go. A sink is one small class; `worker.output` does the ordering, retrying and fencing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from worker.records import Entry, Limits


class Outcome(Enum):
    """What became of an entry."""

    TAKEN = auto()
    AGAIN = auto()
    """Not taken, or nobody knows: the same records are to be sent again."""
    REFUSED = auto()
    """It will never be taken as it is."""
    SUSPECT = auto()
    """The call was refused for the content of one of its entries, nobody knows which."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sink says of one entry, and why."""

    outcome: Outcome
    reason: str = ""


TAKEN = Verdict(Outcome.TAKEN)


def refuse_call(entries: Sequence[Entry], reason: str) -> Sequence[Verdict]:
    """The verdicts on a call that was refused as a whole for its content."""
    outcome = Outcome.REFUSED if len(entries) == 1 else Outcome.SUSPECT
    return [Verdict(outcome, reason)] * len(entries)


class SinkUnavailable(Exception):
    """The whole call failed, or its outcome is unknown. Any of its entries may have been taken."""


class Sink(Protocol):
    """Takes entries of different connections. Thread-safe."""

    limits: Limits

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """One attempt, with time-outs within the drain time, of at most `limits.batch_entries`; a verdict for each.

        `may_send` is to be asked directly before the first byte leaves, after whatever may take time (DNS, connecting,
        TLS, signing); on False nothing may be sent. Blocks. Raises `SinkUnavailable`.
        """
        ...
