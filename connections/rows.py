"""The rows of a connection: its lease row as it is created, and one spec row for each generation of its request.

A spec row holds the canonical JSON of the request and, for lists by label, the labels. It never changes: whoever acts
on generation g reads exactly what was asked for then. The row of a generation that was replaced lives on for a day.
"""

from typing import Any

from connections.spec import ConnectionSpec
from connections.status import State, Status, timestamp
from leases.conditions import Absent, Equals, Write
from leases.rows import ConnectionRow, Desired, Item, connection_key, free_owner, parked_owner, spec_key
from leases.writes import DEAD_ROW_SECONDS, change


def create(connection: str, spec: ConnectionSpec, desired: Desired, digest: bytes, now: float) -> tuple[Write, Write]:
    """A new connection, to be written in one transaction. The first write is refused if the id is taken.

    `digest` recognises the same request under the same Idempotency-Key. The epoch starts at the time of creation, so
    that no epoch is used twice even if an id is created again after its row is gone.
    """
    running = desired is Desired.RUNNING
    status = Status(state=State.PENDING if running else State.PAUSED, since=timestamp(now))
    lease = Write(
        name="create",
        key=connection_key(connection),
        condition=Absent("pk"),
        set={
            "owner": free_owner(connection) if running else parked_owner(connection),
            "epoch": int(now),
            "desired": desired.value,
            "generation": 1,
            "status": status.to_item(),
            "digest": digest,
        },
    )
    return lease, _spec(connection, 1, spec, {})


def revise(row: ConnectionRow, spec: ConnectionSpec, desired: Desired, now: float) -> tuple[Write, Write, Write]:
    """The next generation of a connection, to be written in one transaction. Refused: read the row again."""
    ttl = int(now) + DEAD_ROW_SECONDS
    next_generation = row.generation + 1
    state = {Desired.RUNNING: State.PENDING, Desired.PAUSED: State.PAUSED, Desired.STOPPED: State.STOPPED}[desired]
    superseded = spec_key(row.connection, row.generation)
    return (
        change(row, desired, Status(state=state, since=timestamp(now)).to_item(), ttl),
        _spec(row.connection, next_generation, spec, {"ttl": ttl} if desired is Desired.STOPPED else {}),
        Write(name="supersede", key=superseded, condition=Equals("pk", superseded.pk), set={"ttl": ttl}),
    )


def spec_of(item: Item) -> ConnectionSpec:
    """The request in a spec row. Raises `Refusal` where a newer version of the application would refuse it."""
    return ConnectionSpec.from_json(item["spec"])


def _spec(connection: str, generation: int, spec: ConnectionSpec, more: dict[str, Any]) -> Write:
    return Write(
        name="spec",
        key=spec_key(connection, generation),
        condition=Absent("pk"),
        set={"spec": spec.to_json(), "labels": spec.labels} | more,
    )
