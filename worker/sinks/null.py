"""A sink that takes everything and keeps nothing: for benchmarks, and for trying out an upstream."""

from collections.abc import Callable, Sequence

from worker.records import STREAM_LIMITS, Entry
from worker.sinks import TAKEN, SinkUnavailable, Verdict


class NullSink:
    """Takes everything."""

    limits = STREAM_LIMITS

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """Take the entries."""
        if not may_send():
            raise SinkUnavailable("may not emit")
        return [TAKEN] * len(entries)
