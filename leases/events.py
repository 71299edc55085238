"""What the protocol has to tell: for logs, metrics and tests. Nothing depends on who listens."""

from dataclasses import dataclass
from typing import Protocol

from leases.rows import DeadBy, Key


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session began."""

    session: str


@dataclass(frozen=True, slots=True)
class HeartbeatAcknowledged:
    """A heartbeat was applied; `age` is the time in seconds from its first attempt to the answer."""

    age: float


@dataclass(frozen=True, slots=True)
class HeartbeatUnknown:
    """An attempt got no answer, or one that proves nothing. It is repeated."""

    reason: str


@dataclass(frozen=True, slots=True)
class HoldBegan:
    """The deadline has passed without an acknowledged heartbeat: sockets stay open, nothing is emitted."""

    held: int


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A heartbeat was acknowledged after all; nothing was lost. `seconds` on hold."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The answer to a heartbeat proved that the session is over: declared dead by another, or its row gone."""

    session: str
    held: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionGivenUp:
    """The session ended itself after too long a hold: nobody had answered it."""

    session: str
    held: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeclaredDead:
    """This worker, as a judge, ended a session that stood still for `silent` seconds."""

    session: str
    silent: float


@dataclass(frozen=True, slots=True)
class VerdictRefused:
    """A judge's verdict came too late: the session moved."""

    session: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """A connection is owned by this worker now.

    `dead_by` tells how its last owner ended, None if it was free; `outage` how many seconds ago it ended or released
    the connection, by the wall clocks of two machines, which is good enough to show; None if there was no last owner.
    """

    connection: str
    epoch: int
    previous: str
    dead_by: DeadBy | None
    outage: float | None


@dataclass(frozen=True, slots=True)
class ClaimConflict:
    """Somebody else was faster."""

    connection: str


@dataclass(frozen=True, slots=True)
class ClaimUnsettled:
    """A claim was given up without an answer; the self-audit will find out."""

    connection: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """A row names this worker though it does not run the connection (a claim that landed late): it runs it now."""

    connection: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """A row proves that this worker does not own a connection that it runs."""

    connection: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """A connection was given back."""

    connection: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Finalized:
    """A connection was parked (paused, failed) or stopped."""

    connection: str
    write: str


@dataclass(frozen=True, slots=True)
class StruckOut:
    """A connection is parked, since the processes that held it kept dying."""

    connection: str
    strikes: int


@dataclass(frozen=True, slots=True)
class Offered:
    """A hand-over was offered."""

    connection: str
    target: str


@dataclass(frozen=True, slots=True)
class OfferEnded:
    """A hand-over came to nothing; the connection stays where it is."""

    connection: str
    reason: str


@dataclass(frozen=True, slots=True)
class Transferred:
    """A connection was handed over. `silent`: seconds in which neither side emitted, as the old one saw it."""

    connection: str
    epoch: int
    target: str
    silent: float


@dataclass(frozen=True, slots=True)
class Regranted:
    """A transfer was refused; the connection goes on here in a new epoch."""

    connection: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StandbyEnded:
    """A standby closed without becoming the owner."""

    connection: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A read or write of the table is unknown; what is done about it is the caller's matter and is repeated."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row lacks what it must have, or says what nobody understands. It is left as it is, and what it is about too."""

    key: Key


Event = (
    SessionOpened
    | HeartbeatAcknowledged
    | HeartbeatUnknown
    | HoldBegan
    | HoldEnded
    | SessionLost
    | SessionGivenUp
    | DeclaredDead
    | VerdictRefused
    | Claimed
    | ClaimConflict
    | ClaimUnsettled
    | Adopted
    | LeaseLost
    | Released
    | Finalized
    | StruckOut
    | Offered
    | OfferEnded
    | Transferred
    | Regranted
    | StandbyEnded
    | StoreFailed
    | UnreadableRow
)


class Observer(Protocol):
    """Somebody who listens. Must return at once and never raise."""

    def saw(self, event: Event) -> None:
        """Something happened."""
        ...
