"""Metrics in the embedded metric format, by the names that dashboards and alarms use."""

from aws_lambda_powertools import Metrics

from telemetry.metrics import Metric


def count(metrics: Metrics, metric: Metric, value: float = 1) -> None:
    """Add to a metric of this invocation."""
    metrics.add_metric(name=metric.name, unit=metric.unit.value, value=value)
