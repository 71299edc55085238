"""What the API does with workers."""

import re

from lambdas.api import answers
from lambdas.api.http import conflict, not_found, read
from lambdas.api.patience import changing
from lambdas.sessions import sessions
from leases.conditions import Refused
from leases.dynamodb import Table
from leases.rows import SessionRow
from leases.writes import drain_session

SESSION_ID = re.compile(r"[!-~]{1,128}")
"""What could be the id of a session; others are not worth a look into the table."""


def workers(table: Table) -> answers.WorkerList:
    """Every worker process of the last day. Raises `Unknown`."""
    rows = sorted(sessions(table), key=lambda row: (row.opened_at, row.session))
    return {"workers": [worker(row) for row in rows]}


def worker(row: SessionRow) -> answers.Worker:
    """One worker process as the API shows it."""
    return {
        "workerId": row.session,
        "state": row.state.value,
        "deadBy": row.dead_by.value if row.dead_by else None,
        "held": row.held,
        "capacity": row.capacity,
        "messagesPerSecond": row.rate,
        "revision": row.revision,
        "taskArn": row.task_arn,
        "openedAt": row.opened_at,
    }


def drain(table: Table, session: str) -> answers.Worker:
    """Have a worker process hand over all that it holds. Raises `ApiError`, `Unknown`."""
    if not SESSION_ID.fullmatch(session):
        raise not_found("worker")
    with changing():
        outcome = table.write(drain_session(session))
    if not isinstance(outcome, Refused):
        return worker(read(SessionRow.from_item, outcome.image))
    if outcome.image is None:
        raise not_found("worker")
    raise conflict("worker_dead", "this worker has ended")
