"""The sink that the settings ask for."""

from pathlib import Path
from typing import assert_never

from worker.clients import Clients
from worker.settings import Settings, SinkKind
from worker.sinks import Sink
from worker.sinks.json_lines import JsonLinesSink
from worker.sinks.kinesis import KinesisSink
from worker.sinks.null import NullSink
from worker.sinks.sqs_fifo import SqsFifoSink


def sink(settings: Settings, clients: Clients) -> Sink:
    """Make the sink. Raises `OSError` if it is a file that cannot be opened."""
    drain = settings.timings.drain
    match settings.sink:
        case SinkKind.KINESIS:
            return KinesisSink(clients.kinesis(drain), settings.sink_target)
        case SinkKind.SQS_FIFO:
            return SqsFifoSink(clients.fifo(drain), settings.sink_target)
        case SinkKind.JSON_LINES:
            return JsonLinesSink(Path(settings.sink_target))
        case SinkKind.NULL:
            return NullSink()
        case unknown:
            assert_never(unknown)
