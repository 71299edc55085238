"""From the names in `telemetry.metrics` to CloudWatch metrics of this deployment."""

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch

from infrastructure.settings import Settings
from telemetry.metrics import NAMESPACE, SERVICE_DIMENSION, Metric


def fleet_metric(
    settings: Settings, metric: Metric, statistic: str, *, value: str | None = None, label: str | None = None
) -> cloudwatch.Metric:
    """One series of `metric`; `value` picks one of its dimension's values."""
    dimensions = {SERVICE_DIMENSION: settings.name}
    if metric.dimension is not None and value is not None:
        dimensions[metric.dimension.name] = value
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=metric.name,
        dimensions_map=dimensions,
        statistic=statistic,
        period=Duration.minutes(1),
        label=label,
    )


def fleet_series(settings: Settings, metric: Metric, statistic: str) -> list[cloudwatch.IMetric]:
    """All series of `metric`: one, or one for each value of its dimension."""
    if metric.dimension is None:
        return [fleet_metric(settings, metric, statistic, label=f"{metric.name} {statistic}")]
    return [
        fleet_metric(settings, metric, statistic, value=value, label=f"{metric.name} {value}")
        for value in metric.dimension.values
    ]
