"""Receives ECS task state changes from EventBridge."""

import time
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.typing import LambdaContext

from lambdas import clients
from lambdas.metering import count, emitted
from lambdas.task_stopped.exits import bury, proven_exit
from telemetry.logs import Event, Field
from telemetry.metrics import CAUSE, SESSIONS_DECLARED_DEAD, Cause

logger = Logger()
metrics = Metrics()
table = clients.table()
hints = clients.hints()


def handler(event: Mapping[str, Any], _: LambdaContext) -> None:
    """Act on one task. Raises `Unknown`, whereupon EventBridge sends the event again."""
    task_arn = proven_exit(event["detail"])
    if task_arn is None:
        return
    buried = bury(table, hints, task_arn, time.time())
    for session in buried.declared_dead:
        logger.info(
            "the task exited",
            extra={Field.EVENT: Event.DECLARED_DEAD, Field.SESSION: session, "orphans": buried.orphans},
        )
    if buried.declared_dead:
        with emitted(metrics):
            metrics.add_dimension(CAUSE.name, Cause.STOPPED)
            count(metrics, SESSIONS_DECLARED_DEAD, len(buried.declared_dead))
