"""The rows of a connection: its lease row as it is created, and one spec row for each generation of its request.

A spec row holds the canonical JSON of the request and, for lists by label, the labels. It never changes: whoever acts
on generation g reads exactly what was asked for then. The row of a generation that was replaced lives on for a day.
Stopping is a generation without a spec row, since nobody acts on its request any more.
"""

from connections.spec import ConnectionSpec
from connections.status import State, Status, timestamp
from leases.conditions import Absent, AllOf, Write
from leases.rows import ConnectionRow, Desired, Item, Key, connection_key, free_owner, is_free, parked_owner, spec_key
from leases.writes import DEAD_ROW_SECONDS, change

ALWAYS = AllOf(())
"""A spec row is written in one transaction with its lease row, whose condition decides for both."""


def create(connection: str, spec: ConnectionSpec, desired: Desired, digest: bytes, now: float) -> tuple[Write, Write]:
    """A new connection, to be written in one transaction. The first write is refused if the id is taken.

    `digest` recognises the same request under the same Idempotency-Key. The epoch starts at the time of creation, so
    that no epoch is used twice even if an id is created again after its row is gone.
    """
    running = desired is Desired.RUNNING
    lease = Write(
        name="create",
        key=connection_key(connection),
        condition=Absent("pk"),
        set={
            "owner": free_owner(connection) if running else parked_owner(connection),
            "epoch": int(now),
            "desired": desired.value,
            "generation": 1,
            "status": _status(State.PENDING if running else State.PAUSED, now),
            "digest": digest,
        },
    )
    return lease, _spec(connection, 1, spec)


def created(lease: Write) -> ConnectionRow:
    """The row that `create` wrote."""
    return ConnectionRow.from_item({"pk": lease.key.pk, "sk": lease.key.sk, **lease.set})


def revise(row: ConnectionRow, spec: ConnectionSpec, desired: Desired, now: float) -> tuple[Write, ...]:
    """The next generation of a connection, to be written in one transaction. Refused: read the row again."""
    ttl = int(now) + DEAD_ROW_SECONDS
    waiting = is_free(row.owner) and desired is Desired.RUNNING
    # What the last owner told of one that waits for the next: from that it knows whether it has a gap to tell of.
    status = None if waiting else _status(State.PENDING if desired is Desired.RUNNING else State.PAUSED, now)
    new = _spec(row.connection, row.generation + 1, spec)
    return change(row, desired, status, ttl), new, _expire(current_spec(row), ttl)


def stop(row: ConnectionRow, now: float) -> tuple[Write, ...]:
    """The last generation of a connection, to be written in one transaction. Refused: read the row again."""
    ttl = int(now) + DEAD_ROW_SECONDS
    return change(row, Desired.STOPPED, _status(State.STOPPED, now), ttl), _expire(current_spec(row), ttl)


def current_spec(row: ConnectionRow) -> Key:
    """Where the request is that the row is about."""
    return spec_key(row.connection, row.generation - (row.desired is Desired.STOPPED))


def read_spec(item: Item) -> ConnectionSpec:
    """The request in a spec row. Raises `Refusal` where a newer version of the application would refuse it."""
    return ConnectionSpec.from_json(item["spec"])


def _status(state: State, now: float) -> Item:
    return Status(state=state, since=timestamp(now)).to_item()


def _spec(connection: str, generation: int, spec: ConnectionSpec) -> Write:
    """Overwrites what the TTL may have left of a connection that had this id before."""
    return Write(
        name="spec",
        key=spec_key(connection, generation),
        condition=ALWAYS,
        set={"spec": spec.to_json(), "labels": spec.labels},
        remove=("ttl",),
    )


def _expire(spec: Key, ttl: int) -> Write:
    return Write(name="expire", key=spec, condition=ALWAYS, set={"ttl": ttl})
