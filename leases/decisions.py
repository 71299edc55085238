"""What a row, read consistently, asks of the member that read it. Pure: row and holding in, act out.

Rows may arrive late and out of order. Within one connection `epoch` and `generation` only grow, so that an older row is
told from a newer one, and does nothing.
"""

from dataclasses import dataclass
from enum import Enum, auto

from leases.rows import ConnectionRow, Desired, is_free, is_session


class Act(Enum):
    """What to do."""

    NOTHING = auto()
    ADOPT = auto()
    """The row names this session, which does not run the connection in that epoch: run it."""
    BEGIN = auto()
    """The standby is the owner now: emit."""
    REVISE = auto()
    """The request changed: go on with the new one."""
    FINALIZE = auto()
    """Owned, but not wanted: close, then park or stop."""
    ABORT = auto()
    """Not owned: emit nothing more."""
    STAND_BY = auto()
    """The row offers the connection to this session: connect and buffer, or answer, if it does so already."""
    CLAIM = auto()
    """The owner has released what this session stands by for: claim it, since nobody else has what came meanwhile."""
    DISMISS = auto()
    """The standby is not needed any more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A connection that this member runs under a lease."""

    epoch: int
    generation: int


@dataclass(frozen=True, slots=True)
class StandingBy:
    """A connection that this member is connected for, without a lease."""

    for_epoch: int
    nonce: str
    """Of the offer that it answers."""


def decide(row: ConnectionRow | None, session: str, holding: Held | StandingBy | None) -> Act:
    """What `row` asks of `session`, which has `holding`."""
    match holding:
        case None:
            return _unheld(row, session)
        case StandingBy():
            return _standing_by(row, session, holding)
        case Held():
            return _held(row, session, holding)


def _unheld(row: ConnectionRow | None, session: str) -> Act:
    if row is None:
        return Act.NOTHING
    if row.owner == session:
        return Act.ADOPT if row.desired is Desired.RUNNING else Act.FINALIZE
    return Act.STAND_BY if _offered(row, session) and row.desired is Desired.RUNNING else Act.NOTHING


def _offered(row: ConnectionRow, session: str) -> bool:
    offer = row.offer
    return offer is not None and offer.session == session and offer.for_epoch == row.epoch and is_session(row.owner)


def _standing_by(row: ConnectionRow | None, session: str, holding: StandingBy) -> Act:
    if row is None:
        return Act.DISMISS
    if row.epoch < holding.for_epoch:
        return Act.NOTHING
    if row.owner == session:
        return Act.BEGIN if row.desired is Desired.RUNNING else Act.FINALIZE
    if row.desired is not Desired.RUNNING:
        return Act.DISMISS
    if is_free(row.owner):
        return Act.CLAIM
    if row.offer is not None and row.offer.nonce != holding.nonce and _offered(row, session):
        return Act.STAND_BY
    return Act.NOTHING if is_session(row.owner) and row.epoch == holding.for_epoch else Act.DISMISS


def _held(row: ConnectionRow | None, session: str, holding: Held) -> Act:
    if row is None:
        return Act.ABORT
    if row.epoch < holding.epoch:
        return Act.NOTHING
    if row.owner != session:
        return Act.ABORT
    if row.desired is not Desired.RUNNING:
        return Act.FINALIZE
    if row.epoch > holding.epoch:
        return Act.ADOPT
    return Act.REVISE if row.generation > holding.generation else Act.NOTHING
