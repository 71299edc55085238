"""The rows of the table as the protocol sees them, and their keys.

Rows are the truth. Everything else that names a connection (index rows, queue messages, inboxes) is a hint.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar
from zlib import crc32

T = TypeVar("T")

Item = Mapping[str, Any]
"""A row as plain Python: str, int, bool, bytes, frozenset[str], list, dict."""

SESSION_SHARDS = 4
"""One key takes 1,000 writes/s and a session writes 1/s, so four shards carry about 4,000 workers."""

OWNER_SHARDS = 16
"""A mass failover moves rows through FREE; 16 shards take 16,000 moves/s (AWS: GSI write sharding)."""

INBOX_LIMIT = 100
"""Ids an inbox takes before it says `EVERYTHING` instead, so that a session row stays small."""

EVERYTHING = "*"
"""In an inbox: too many rows changed to name them; look at all that you hold."""

STRIKES_LIMIT = 5
"""A connection claimed this often from sessions that died by exit is parked: it kills workers."""


class SessionState(StrEnum):
    """What a session row says of its process. DEAD is final."""

    LIVE = "LIVE"
    DRAINING = "DRAINING"
    DEAD = "DEAD"


ALIVE = (SessionState.LIVE, SessionState.DRAINING)


class DeadBy(StrEnum):
    """Whose evidence ended a session: a judge's watch, the reaped process, or the session itself."""

    JUDGE = "judge"
    EXIT = "exit"
    SELF = "self"


class Desired(StrEnum):
    """What the user wants of a connection."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class Key(NamedTuple):
    """The primary key of a row."""

    pk: str
    sk: str


def session_key(session: str) -> Key:
    """Where the row of a session is."""
    return Key(session_shard(crc32(session.encode()) % SESSION_SHARDS), session)


def session_shard(shard: int) -> str:
    """The partition that holds every SESSION_SHARDS-th session."""
    return f"SESSIONS#{shard}"


def connection_key(connection: str) -> Key:
    """Where the row of a connection is."""
    return Key(f"CONNECTION#{connection}", "LEASE")


def spec_key(connection: str, generation: int) -> Key:
    """Where one generation of a connection's validated request is."""
    return Key(f"CONNECTION#{connection}", f"SPEC#{generation}")


def connection_of(pk: str) -> str:
    """The connection that a partition key names."""
    return pk.removeprefix("CONNECTION#")


def free_owner(connection: str) -> str:
    """The owner of a connection that wants one."""
    return free_shard(crc32(connection.encode()) % OWNER_SHARDS)


def free_shard(shard: int) -> str:
    """The owner value under which every OWNER_SHARDS-th free connection is listed."""
    return f"FREE#{shard}"


def parked_owner(connection: str) -> str:
    """The owner of a connection that is paused or failed, out of the way of every sweep."""
    return parked_shard(crc32(connection.encode()) % OWNER_SHARDS)


def parked_shard(shard: int) -> str:
    """The owner value under which every OWNER_SHARDS-th parked connection is listed."""
    return f"PARKED#{shard}"


def is_free(owner: str | None) -> bool:
    """Whether an owner value means that the connection wants an owner."""
    return owner is not None and owner.startswith("FREE#")


def is_parked(owner: str | None) -> bool:
    """Whether an owner value means that the connection is paused or failed."""
    return owner is not None and owner.startswith("PARKED#")


def is_session(owner: str | None) -> bool:
    """Whether an owner value names a session."""
    return owner is not None and not is_free(owner) and not is_parked(owner)


def readable(parse: Callable[[Item], T], items: Iterable[Item]) -> tuple[list[T], list[Key]]:
    """What can be read of some rows, and the keys of those that cannot.

    A row that somebody has edited by hand, or that another version has written, must not take down whoever reads it.
    """
    rows: list[T] = []
    unreadable: list[Key] = []
    for item in items:
        try:
            rows.append(parse(item))
        except (KeyError, TypeError, ValueError):
            unreadable.append(Key(item["pk"], item["sk"]))
    return rows, unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a session says of itself in every heartbeat."""

    held: int = 0
    """Connections that it holds or stands by for."""
    rate: int = 0
    """Messages per second that it takes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One run of one worker process."""

    session: str
    state: SessionState
    seq: int
    takeover_ms: int
    capacity: int
    held: int
    rate: int
    revision: int
    task_arn: str
    inbox: frozenset[str]
    opened_at: int
    """Unix seconds, for display only; no decision compares it with a clock."""
    dead_by: DeadBy | None = None
    died_at: int | None = None
    """Unix seconds, for display only."""

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Read a session row."""
        return cls(
            session=item["sk"],
            state=SessionState(item["state"]),
            seq=item["seq"],
            takeover_ms=item["takeover_ms"],
            capacity=item["capacity"],
            held=item["held"],
            rate=item["rate"],
            revision=item["revision"],
            task_arn=item["task_arn"],
            inbox=item.get("inbox", frozenset()),
            opened_at=item["opened_at"],
            dead_by=DeadBy(item["dead_by"]) if "dead_by" in item else None,
            died_at=item.get("died_at"),
        )

    @property
    def alive(self) -> bool:
        """Whether nobody has declared it dead."""
        return self.state is not SessionState.DEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The hand-over offer on a connection row: `session` may connect and stand by for the epoch after `for_epoch`."""

    session: str
    nonce: str
    for_epoch: int
    generation: int
    ready: bool = False

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Read the `next` attribute."""
        return cls(
            session=item["session"],
            nonce=item["nonce"],
            for_epoch=item["for_epoch"],
            generation=item["generation"],
            ready=item.get("ready", False),
        )

    def to_item(self) -> dict[str, Any]:
        """The `next` attribute."""
        return {
            "session": self.session,
            "nonce": self.nonce,
            "for_epoch": self.for_epoch,
            "generation": self.generation,
        }


DIGEST_BYTES = 8
HANDOFF_MESSAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """What an old owner leaves to the new one: where in the stream of messages it stopped."""

    digests: bytes
    """DIGEST_BYTES for each of the last HANDOFF_MESSAGES messages emitted, oldest first (512 bytes at most)."""
    last_seq: int
    """The sequence number of its last record."""

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Read the `handoff` attribute."""
        return cls(digests=item["digests"], last_seq=item["last_seq"])

    def to_item(self) -> dict[str, Any]:
        """The `handoff` attribute."""
        return {"digests": self.digests, "last_seq": self.last_seq}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRow:
    """One connection: who owns it, in which epoch, and what the user wants of it."""

    connection: str
    owner: str | None
    epoch: int
    desired: Desired
    generation: int
    grant: str | None = None
    offer: Offer | None = None
    handoff: Handoff | None = None
    cursor: str | None = None
    status: Item | None = None
    strikes: int = 0
    freed_at: int | None = None
    """While it is free because its owner released it: since when, in unix seconds, for display only."""

    @classmethod
    def from_item(cls, item: Item) -> Self:
        """Read a connection row."""
        return cls(
            connection=connection_of(item["pk"]),
            owner=item.get("owner"),
            epoch=item["epoch"],
            desired=Desired(item["desired"]),
            generation=item["generation"],
            grant=item.get("grant"),
            offer=Offer.from_item(item["next"]) if "next" in item else None,
            handoff=Handoff.from_item(item["handoff"]) if "handoff" in item else None,
            cursor=item.get("cursor"),
            status=item.get("status"),
            strikes=item.get("strikes", 0),
            freed_at=item.get("freed_at"),
        )
