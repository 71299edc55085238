"""What the lease protocol needs from outside: a store, a clock, a queue for hints, and who runs the connections."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from leases.conditions import Refused, Write, Written
from leases.rows import ConnectionRow, Handoff, Item, Key, Load

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a query; `next` continues it, None ends it. A page may be empty and still have a next."""

    items: Sequence[T]
    next: str | None


class Store(Protocol):
    """The table. Every call is one attempt, bounded in time; none of them blocks the loop. All raise `Unknown`."""

    async def write(self, write: Write) -> Written | Refused:
        """Apply one conditional write."""
        ...

    async def get(self, key: Key) -> Item | None:
        """Read one row, strongly consistent."""
        ...

    async def get_many(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        """Read rows, each strongly consistent; absent ones are left out. Any number of keys."""
        ...

    async def owned_by(self, owner: str, start: str | None) -> Page[str]:
        """One page of the connection ids that the index lists under an owner. A hint: it may be stale or incomplete."""
        ...

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        """One page of the session rows of a shard, eventually consistent."""
        ...


class Hints(Protocol):
    """The queue of connections that want an owner. Losing, repeating or delaying a hint costs time and nothing else."""

    async def send(self, connections: Sequence[str]) -> None:
        """Ask whoever has room to look at these rows. Raises `Unknown`."""
        ...


class Clock(Protocol):
    """The clocks of this machine. Only rates are ever compared with another machine's."""

    def now(self) -> float:
        """Seconds on a clock that runs on while the machine sleeps (CLOCK_BOOTTIME where the OS has it)."""
        ...

    def wall(self) -> float:
        """Unix seconds: for display, and to notice that this machine was frozen. Never for a lease."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a runner leaves when it has flushed all that it accepted."""

    cursor: str | None
    handoff: Handoff


class Parting(StrEnum):
    """Why a runner is settled: what becomes of its connection. The values are what consumers of the output read."""

    HANDED_OVER = "handed_over"
    """A standby, whose socket is open by now, goes on."""
    RELEASED = "released"
    """Anyone may claim it, and will open a socket anew."""
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"


class Grant(Protocol):
    """A runner's permission to act for one connection in one epoch."""

    @property
    def connection(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def may_emit(self) -> bool:
        """Whether a side effect may be started at this very moment. To be asked directly before each one, in the thread
        that does it: a process that was stopped and goes on must not get past this line."""
        ...

    async def until_emit(self) -> None:
        """Wait until `may_emit` may be true again, then ask again.

        Between `settle` and the next `begin` it waits for that, and after `abort` for ever.
        """
        ...

    def checkpoint(self, cursor: str) -> None:
        """Have the cursor stored; a newer one replaces one that is still waiting. Returns at once."""
        ...

    def report(self, status: Item) -> None:
        """Have the observed state stored; a newer one replaces one that is still waiting. Returns at once."""
        ...

    def proven(self) -> None:
        """The connection has stayed open long enough: it is not what kills workers."""
        ...

    def fail(self, status: Item) -> None:
        """The connection cannot run; have it parked with this reason. Returns at once; `settle` and `close` follow."""
        ...


class Runner(Protocol):
    """One connection in this process. It connects and buffers from its start, and emits once it has a grant.

    Without a grant it is a standby. All methods but `settle` and `close` return at once, and none raises. `abort` makes
    a `settle` or `close` that is under way return.
    """

    ready: asyncio.Event
    """Set while the connection is open, subscribed and buffering (a standby may then be made the owner)."""

    exclusive: bool
    """The upstream tolerates only one socket (`handover: break_before_make`): close this one before another opens."""

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        """Emit under this grant. With a hand-off: first drop from the buffer what the old owner emitted already."""
        ...

    def revise(self, row: ConnectionRow) -> None:
        """The request has a newer generation: go on with that one."""
        ...

    def hold(self) -> None:
        """The deadline has passed: emit nothing for now. Keep the socket, unless it is `exclusive`."""
        ...

    def resume(self) -> None:
        """Emitting is allowed again, nothing was lost."""
        ...

    def invite(self) -> None:
        """Another session is about to be asked to stand by: what is received from now on, `settle` has to name."""
        ...

    async def settle(self, parting: Parting) -> Remains:
        """Stop reading and flush what was accepted. When it returns nothing more is emitted, until another `begin`.

        Where no standby goes on, the socket begins to close, and the last that is emitted says that it did, and why.
        One that is settled for a hand-over but gets another `begin` goes on reading, with the new grant's epoch."""
        ...

    async def close(self) -> None:
        """Close the socket (1001, going away) within the close time-out, and end. A second call does nothing."""
        ...

    def abort(self) -> None:
        """The lease is lost: emit nothing more, drop the buffer, close the socket, end."""
        ...


class Host(Protocol):
    """The process that runs connections for a member of the fleet."""

    def runner(self, row: ConnectionRow) -> Runner:
        """Begin to run a connection, without a grant as yet."""
        ...

    def load(self) -> Load:
        """What this process does at the moment, for the heartbeat."""
        ...

    def parked(self, row: ConnectionRow) -> Item:
        """The observed state to store for a connection that nobody runs (paused, stopped, quarantined)."""
        ...
