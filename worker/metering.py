"""Metrics of one process: counted and sampled in memory, written in the embedded metric format once per flush.

Powertools renders them. CloudWatch takes at most 100 values of a metric per line, so a distribution may take several.
"""

from collections import defaultdict
from heapq import heappush, heappushpop

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from telemetry.metrics import NAMESPACE, Dimension, Metric

VALUES = 99
"""In one line: at 100 Powertools writes it by itself, and would be asked for an empty one afterwards."""

SAMPLES = 10 * VALUES
"""Of one distribution from one flush to the next: enough for each connection of a worker to fail over once."""


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
            heappush(values, value)
        else:
            heappushpop(values, value)

    def flush(self) -> None:
        """Write everything since the last flush: as many lines for each combination of dimensions as it takes."""
        lines: dict[tuple[Dimension | None, str | None, int], EphemeralMetrics] = {}
        counts = {key: [total] for key, total in self._counts.items()}
        for (metric, label), values in (*counts.items(), *self._samples.items()):
            for number in range(0, len(values), VALUES):
                key = metric.dimension, label, number
                line = lines[key] = lines.get(key) or self._line(metric.dimension, label)
                for value in values[number : number + VALUES]:
                    line.add_metric(metric.name, MetricUnit(metric.unit.value), value)
        self._counts.clear()
        self._samples.clear()
        for line in lines.values():
            line.flush_metrics()

    def _line(self, dimension: Dimension | None, label: str | None) -> EphemeralMetrics:
        line = EphemeralMetrics(namespace=NAMESPACE, service=self._service)
        if dimension is not None and label is not None:
            line.add_dimension(dimension.name, label)
        return line
