"""What the member of the fleet asks of this process: runners, its load, and what to say of what nobody runs."""

from collections.abc import Callable

from connections.status import State, Status, timestamp
from leases.ports import Clock, Runner
from leases.rows import ConnectionRow, Desired, Item, Load
from worker.engine import Engine

QUARANTINED = "quarantined: the workers that ran it kept dying"

_STATES = {Desired.RUNNING: State.FAILED, Desired.PAUSED: State.PAUSED, Desired.STOPPED: State.STOPPED}


class WorkerHost:
    """`leases.ports.Host` on the engine."""

    def __init__(self, engine: Engine, clock: Clock, rate: Callable[[], int]) -> None:
        """`rate` tells how many messages per second come in."""
        self._engine = engine
        self._clock = clock
        self._rate = rate

    def runner(self, row: ConnectionRow) -> Runner:
        """See `leases.ports.Host`."""
        return self._engine.runner(row)

    def load(self) -> Load:
        """See `leases.ports.Host`. How many are held, the member knows."""
        return Load(rate=self._rate())

    def parked(self, row: ConnectionRow) -> Item:
        """See `leases.ports.Host`. What is wanted, but parked all the same, has struck out."""
        known = Status.from_item(row.status) if row.status else None
        status = Status(
            state=_STATES[row.desired],
            since=timestamp(self._clock.wall()),
            last_message_at=known.last_message_at if known else None,
            last_close=known.last_close if known else None,
            reason=QUARANTINED if row.desired is Desired.RUNNING else None,
        )
        return status.to_item()
