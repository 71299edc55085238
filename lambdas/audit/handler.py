"""Runs every minute."""

import time
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Metrics
from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas import clients
from lambdas.audit.auditing import audit
from lambdas.metering import count, emitted
from telemetry.metrics import (
    CONNECTIONS_HELD,
    CONNECTIONS_PARKED,
    CONNECTIONS_PENDING,
    CONNECTIONS_UNOWNED,
    CONNECTIONS_WANTED,
    FLEET_CAPACITY,
    OLDEST_UNOWNED_AGE,
    ROWS_REPAIRED,
    SESSIONS_DRAINING,
    SESSIONS_LIVE,
)

metrics = Metrics()
table = clients.table()
hints = clients.hints()


def handler(_event: Mapping[str, Any], _context: LambdaContext) -> None:
    """Audit the fleet. Raises `Unknown`; the next audit is due within the minute."""
    report = audit(table, hints, time.time())
    with emitted(metrics):
        count(metrics, CONNECTIONS_WANTED, report.wanted)
        count(metrics, CONNECTIONS_HELD, report.held)
        count(metrics, CONNECTIONS_PENDING, report.pending)
        count(metrics, CONNECTIONS_UNOWNED, report.unowned)
        count(metrics, CONNECTIONS_PARKED, report.parked)
        count(metrics, OLDEST_UNOWNED_AGE, report.oldest_wait)
        count(metrics, ROWS_REPAIRED, report.repaired)
        count(metrics, SESSIONS_LIVE, report.live)
        count(metrics, SESSIONS_DRAINING, report.draining)
        count(metrics, FLEET_CAPACITY, report.capacity)
