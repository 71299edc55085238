"""What is observed of a connection: the `status` attribute of its row, and what the API shows of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from leases.rows import Item

MAX_REASON_LENGTH = 100
"""Characters. The status is part of a row that must stay below 1 KiB."""


class State(StrEnum):
    """What a connection is doing. It follows the act: PAUSED and STOPPED are said once the socket is closed."""

    PENDING = "PENDING"
    """Waits for an owner."""
    CONNECTING = "CONNECTING"
    OPEN = "OPEN"
    BACKING_OFF = "BACKING_OFF"
    """The last attempt failed or the socket closed; the next attempt is at `nextRetryAt`."""
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    """Given up, for `reason`. A change of the request tries again."""


def timestamp(unix: float) -> str:
    """Unix seconds as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """How the last socket ended. `code` is 1006 where no close frame came."""

    code: int
    reason: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The observed state. Times are those of `timestamp`, by the wall clock of whoever observed it."""

    state: State
    since: str
    attempts: int = 0
    """Failed attempts since the connection was last open."""
    next_retry_at: str | None = None
    last_message_at: str | None = None
    last_close: Close | None = None
    reason: str | None = None

    def to_item(self) -> dict[str, Any]:
        """The `status` attribute of a connection row. What is not known is left out."""
        close = self.last_close
        item: dict[str, Any] = {
            "state": self.state.value,
            "since": self.since,
            "attempts": self.attempts,
            "nextRetryAt": self.next_retry_at,
            "lastMessageAt": self.last_message_at,
            "lastClose": close and {"code": close.code, "reason": close.reason[:MAX_REASON_LENGTH], "at": close.at},
            "reason": self.reason and self.reason[:MAX_REASON_LENGTH],
        }
        return {name: value for name, value in item.items() if value is not None}

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Read the `status` attribute."""
        close = item.get("lastClose")
        return cls(
            state=State(item["state"]),
            since=item["since"],
            attempts=item.get("attempts", 0),
            next_retry_at=item.get("nextRetryAt"),
            last_message_at=item.get("lastMessageAt"),
            last_close=Close(code=close["code"], reason=close["reason"], at=close["at"]) if close else None,
            reason=item.get("reason"),
        )
