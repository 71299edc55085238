"""A lease table on the emulator, and the plainest host that a member of the fleet can have."""

import asyncio
from dataclasses import dataclass, field

from botocore.config import Config

from leases.dynamodb import Table
from leases.events import Event
from leases.ports import Grant, Parting, Remains
from leases.rows import ConnectionRow, Handoff, Item, Load, SessionRow, SessionState
from leases.timings import Timings
from local.aws import Aws
from worker.clients import JUDGE

OWNER_INDEX = "by_owner"
TIMINGS = Timings(heartbeat=0.3, self_fence=3.5, drain=0.2, takeover=4.1, judge_poll=0.25, give_up=30.0)
"""Short, but with room for two heartbeats in a row whose first attempt takes as long as its time-out allows."""


def connect(aws: Aws, endpoint: str, table: str) -> Table:
    """The table as a worker sees it: one attempt for each call, bounded in time."""
    config = Config(
        connect_timeout=JUDGE.connect,
        read_timeout=JUDGE.read,
        max_pool_connections=16,
        retries={"total_max_attempts": 1},
    )
    return Table(aws.session.client("dynamodb", endpoint_url=endpoint, config=config), table, OWNER_INDEX)


def truth(aws: Aws, table: str) -> Table:
    """The table by a way that no fault strikes, and with patience."""
    return Table(aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config), table, OWNER_INDEX)


def session_row(session: str) -> SessionRow:
    """A session that is about to open."""
    return SessionRow(
        session=session,
        state=SessionState.LIVE,
        seq=0,
        takeover_ms=TIMINGS.takeover_ms,
        capacity=1000,
        held=0,
        rate=0,
        revision=1,
        task_arn=f"arn:{session}",
        inbox=frozenset(),
        opened_at=0,
    )


@dataclass
class Log:
    """An observer that remembers."""

    events: list[Event] = field(default_factory=list)

    def saw(self, event: Event) -> None:
        """See `leases.events.Observer`."""
        self.events.append(event)

    def count(self, kind: type[Event]) -> int:
        """How many events of a kind there were."""
        return sum(isinstance(event, kind) for event in self.events)


class Held:
    """A runner that does nothing but remember its grant."""

    exclusive = False

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.grant: Grant | None = None

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        """See `leases.ports.Runner`."""
        self.grant = grant

    def revise(self, row: ConnectionRow) -> None:
        """See `leases.ports.Runner`."""

    def hold(self) -> None:
        """See `leases.ports.Runner`."""

    def resume(self) -> None:
        """See `leases.ports.Runner`."""

    def invite(self) -> None: ...

    async def settle(self, parting: Parting) -> Remains:
        """See `leases.ports.Runner`."""
        return Remains(cursor=None, handoff=Handoff(digests=b"", last_seq=0))

    async def close(self) -> None:
        """See `leases.ports.Runner`."""

    def abort(self) -> None:
        """See `leases.ports.Runner`."""
        self.grant = None


class Host:
    """Runs connections by remembering them."""

    def runner(self, row: ConnectionRow) -> Held:
        """See `leases.ports.Host`."""
        return Held()

    def load(self) -> Load:
        """See `leases.ports.Host`."""
        return Load()

    def parked(self, row: ConnectionRow) -> Item:
        """See `leases.ports.Host`."""
        return {"state": "PAUSED"}
