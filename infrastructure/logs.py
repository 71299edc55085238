"""Log groups: always explicit, always with a retention, kept beyond their stack only where data is."""

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from constructs import Construct

from infrastructure.settings import Settings

_RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    7: logs.RetentionDays.ONE_WEEK,
    14: logs.RetentionDays.TWO_WEEKS,
    30: logs.RetentionDays.ONE_MONTH,
    90: logs.RetentionDays.THREE_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
}


def log_group(scope: Construct, id_: str, settings: Settings) -> logs.LogGroup:
    """A log group that forgets after the configured number of days."""
    return logs.LogGroup(
        scope,
        id_,
        retention=_RETENTION[settings.log_retention_days],
        removal_policy=RemovalPolicy.RETAIN if settings.retained else RemovalPolicy.DESTROY,
    )
