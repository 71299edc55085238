"""Saved CloudWatch Logs Insights queries: what an operator asks the logs, ready to run."""

from aws_cdk import aws_logs as logs
from constructs import Construct

from infrastructure.settings import Settings
from telemetry.logs import Event, Field

_LINE = ["@timestamp", "level", "message", *Field]


def save_queries(
    scope: Construct, *, settings: Settings, workers: logs.ILogGroup, functions: list[logs.ILogGroup]
) -> None:
    """Save the queries under the application's name."""
    everything = [workers, *functions]
    for id_, title, groups, query in (
        (
            "OneConnection",
            "The life of one connection (fill in its id)",
            everything,
            logs.QueryString(
                fields=_LINE, filter_statements=[f"{Field.CONNECTION} = 'ID'"], sort="@timestamp asc", limit=1000
            ),
        ),
        (
            "Leases",
            "Sessions in trouble: unanswered and lost heartbeats, holds, deaths",
            everything,
            logs.QueryString(
                fields=_LINE,
                filter_statements=[
                    _any_event(Event.LEASE_RENEW_ERROR, Event.LEASE_LOST, Event.ON_HOLD, Event.DECLARED_DEAD)
                ],
                sort="@timestamp desc",
                limit=200,
            ),
        ),
        (
            "Reasons",
            "Why connections closed or could not be opened",
            [workers],
            logs.QueryString(
                filter_statements=[_any_event(Event.CONNECT_FAILED, Event.CONNECTION_CLOSED)],
                stats_statements=[f"sum({Field.OCCURRENCES}) as times by {Field.EVENT}, {Field.REASON}"],
                sort="times desc",
            ),
        ),
        (
            "Errors",
            "Errors and warnings of every part",
            everything,
            logs.QueryString(
                fields=_LINE,
                filter_statements=["level in ['WARNING', 'ERROR', 'CRITICAL']"],
                sort="@timestamp desc",
                limit=200,
            ),
        ),
    ):
        logs.QueryDefinition(
            scope, id_, query_definition_name=f"{settings.name}/{title}", log_groups=groups, query_string=query
        )


def _any_event(*events: Event) -> str:
    names = ", ".join(f"'{event}'" for event in events)
    return f"{Field.EVENT} in [{names}]"
