"""Telling those who must act on a changed row. Every message is a hint: all of them look by themselves, only later."""

from collections.abc import Callable
from dataclasses import dataclass

from aws_lambda_powertools import Logger

from lambdas.clients import HintQueue
from leases.conditions import Refused, Unknown
from leases.dynamodb import Table
from leases.rows import ConnectionRow, Desired, is_free, is_session
from leases.writes import inbox_everything, inbox_hint
from telemetry.logs import Field


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends hints after a change. A hint that cannot be sent is logged and fails nothing, since the row is written."""

    table: Table
    queue: HintQueue
    logger: Logger
    failed: Callable[[], None]
    """Called where nobody could be told."""

    def changed(self, row: ConnectionRow) -> None:
        """Tell the row's owner, or ask for one."""
        try:
            if is_session(row.owner):
                self._owner(str(row.owner), row.connection)
            elif is_free(row.owner) and row.desired is Desired.RUNNING:
                self.queue.send([row.connection])
        except Unknown as unknown:
            self.logger.warning(
                "a change is written but nobody was told; the next audit or sweep finds it",
                extra={Field.CONNECTION: row.connection, Field.REASON: str(unknown)},
            )
            self.failed()

    def _owner(self, session: str, connection: str) -> None:
        outcome = self.table.write(inbox_hint(session, connection))
        if isinstance(outcome, Refused) and outcome.image is not None:
            # Either its inbox is full, or it is dead, and then this is refused too.
            self.table.write(inbox_everything(session))
