"""A sink that takes everything and keeps nothing: for benchmarks, and for trying out an upstream."""

from collections.abc import Callable, Sequence

from worker.records import Entry, Limits
from worker.sinks import TAKEN, SinkUnavailable, Verdict


class NullSink:
    """Takes everything."""

    limits = Limits(
        batch_entries=500,
        batch_bytes=1024 * 1024,
        entry_bytes=256 * 1024,
        record_bytes=1_000_000,
        part_bytes=700 * 1024,
    )

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """Take the entries."""
        if not may_send():
            raise SinkUnavailable("may not emit")
        return [TAKEN] * len(entries)
