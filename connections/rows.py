"""The rows of a connection: its lease row as it is created, and one spec row for each generation of its request.

A spec row holds the canonical JSON of the request and, for lists by label, the labels. It never changes: whoever acts
on generation g reads exactly what was asked for then. The row of a generation that was replaced lives on for a day.
"""

from connections.spec import ConnectionSpec
from connections.status import State, Status, timestamp
from leases.conditions import Absent, AllOf, Write
from leases.rows import ConnectionRow, Desired, Item, connection_key, free_owner, parked_owner, spec_key
from leases.writes import DEAD_ROW_SECONDS, change

ALWAYS = AllOf(())
"""A spec row is written in one transaction with its lease row, whose condition decides for both."""


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
    return lease, _spec(connection, 1, spec, None)


def revise(row: ConnectionRow, spec: ConnectionSpec, desired: Desired, now: float) -> tuple[Write, Write, Write]:
    """The next generation of a connection, to be written in one transaction. Refused: read the row again."""
    ttl = int(now) + DEAD_ROW_SECONDS
    state = {Desired.RUNNING: State.PENDING, Desired.PAUSED: State.PAUSED, Desired.STOPPED: State.STOPPED}[desired]
    return (
        change(row, desired, Status(state=state, since=timestamp(now)).to_item(), ttl),
        _spec(row.connection, row.generation + 1, spec, ttl if desired is Desired.STOPPED else None),
        Write(name="supersede", key=spec_key(row.connection, row.generation), condition=ALWAYS, set={"ttl": ttl}),
    )


def read_spec(item: Item) -> ConnectionSpec:
    """The request in a spec row. Raises `Refusal` where a newer version of the application would refuse it."""
    return ConnectionSpec.from_json(item["spec"])


def _spec(connection: str, generation: int, spec: ConnectionSpec, ttl: int | None) -> Write:
    """Overwrites what the TTL may have left of a connection that had this id before."""
    return Write(
        name="spec",
        key=spec_key(connection, generation),
        condition=ALWAYS,
        set={"spec": spec.to_json(), "labels": spec.labels} | ({} if ttl is None else {"ttl": ttl}),
        remove=("ttl",) if ttl is None else (),
    )
