"""Metrics of one process: counted and sampled in memory, written in the embedded metric format once per flush.

Powertools renders them; CloudWatch takes at most 100 values of a metric per line, which bounds the samples.
"""

from collections import defaultdict

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from telemetry.metrics import NAMESPACE, Dimension, Metric

SAMPLES = 99
"""At 100 Powertools writes a line by itself, and would be asked for an empty one afterwards."""


class Meter:
    """Collects what the process does. Cheap enough for the receive path; called on the event loop only."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._counts: dict[tuple[Metric, str | None], float] = defaultdict(float)
        self._samples: dict[tuple[Metric, str | None], list[float]] = defaultdict(list)

    def count(self, metric: Metric, amount: float = 1, label: str | None = None) -> None:
        """Add to a total. `label` is the value of the metric's own dimension, if it has one."""
        self._counts[metric, label] += amount

    def sample(self, metric: Metric, value: float, label: str | None = None) -> None:
        """Note one value of a distribution, or a gauge. Beyond SAMPLES per flush the largest are kept."""
        values = self._samples[metric, label]
        if len(values) < SAMPLES:
            values.append(value)
            return
        smallest = min(range(SAMPLES), key=values.__getitem__)
        values[smallest] = max(values[smallest], value)

    def flush(self) -> None:
        """Write everything since the last flush, one line for each combination of dimensions."""
        lines: dict[tuple[Dimension | None, str | None], EphemeralMetrics] = {}
        counts = {key: [total] for key, total in self._counts.items()}
        for (metric, label), values in (*counts.items(), *self._samples.items()):
            line = lines.get((metric.dimension, label))
            if line is None:
                line = lines[metric.dimension, label] = EphemeralMetrics(namespace=NAMESPACE, service=self._service)
                if metric.dimension is not None and label is not None:
                    line.add_dimension(metric.dimension.name, label)
            for value in values:
                line.add_metric(metric.name, MetricUnit(metric.unit.value), value)
        self._counts.clear()
        self._samples.clear()
        for line in lines.values():
            line.flush_metrics()
