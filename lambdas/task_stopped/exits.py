"""What follows from a task that has stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lambdas.clients import HintQueue
from lambdas.sessions import owned, sessions
from leases.conditions import Written
from leases.dynamodb import Table
from leases.rows import DeadBy
from leases.writes import declare_dead


@dataclass(frozen=True, slots=True)
class Buried:
    """What was done about one stopped task."""

    declared_dead: list[str]
    """Sessions that were not known to be dead before."""
    orphans: int
    """Connections for which an owner was asked."""


def proven_exit(detail: Mapping[str, Any]) -> str | None:
    """The ARN of a task whose containers have all exited, or None.

    Without exit codes nobody saw the processes end: a host that lost its network is reported as STOPPED too while its
    processes run on, and then only the takeover time makes sure that they have stopped emitting.
    """
    containers = detail.get("containers") or ()
    exited = all(container.get("exitCode") is not None for container in containers)
    return str(detail["taskArn"]) if detail.get("lastStatus") == "STOPPED" and containers and exited else None


def bury(table: Table, queue: HintQueue, task_arn: str, now: float) -> Buried:
    """Declare the sessions of a task dead and ask for new owners. May be repeated. Raises `Unknown`."""
    of_task = [row for row in sessions(table) if row.task_arn == task_arn]
    declared = [
        row.session
        for row in of_task
        if row.alive and isinstance(table.write(declare_dead(row.session, DeadBy.EXIT, None, int(now))), Written)
    ]
    orphans = [connection for row in of_task for connection in owned(table, row.session)]
    queue.send(orphans)
    return Buried(declared, len(orphans))
