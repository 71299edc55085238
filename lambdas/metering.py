"""Metrics in the embedded metric format, by the names that dashboards and alarms use."""

from collections.abc import Iterator
from contextlib import contextmanager

from aws_lambda_powertools import Metrics

from telemetry.metrics import Metric


@contextmanager
def emitted(metrics: Metrics) -> Iterator[None]:
    """Write out what is counted within, if anything is. (Powertools' decorator warns of a call that counts nothing.)"""
    try:
        yield
    finally:
        if metrics.metric_set:
            metrics.flush_metrics()


def count(metrics: Metrics, metric: Metric, value: float = 1) -> None:
    """Add to a metric of this invocation."""
    metrics.add_metric(name=metric.name, unit=metric.unit.value, value=value)
