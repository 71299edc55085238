"""Output to a file of JSON lines: for one machine, a volume, or a pipe to something else."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from worker.records import STREAM_LIMITS, Entry
from worker.sinks import TAKEN, SinkUnavailable, Verdict


class JsonLinesSink:
    """Appends to a file, which several processes may share. Taken means: handed to the operating system."""

    limits = STREAM_LIMITS

    def __init__(self, path: Path) -> None:
        """Raises `OSError` if the file cannot be opened for appending."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._lock = Lock()
        self._torn = False
        """The last line is incomplete, since the disk was full in the middle of it."""

    def put(self, entries: Sequence[Entry], may_send: Callable[[], bool]) -> Sequence[Verdict]:
        """See `worker.sinks.Sink`."""
        with self._lock:
            data = (b"\n" if self._torn else b"") + b"".join(entry.data for entry in entries)
            if not may_send():
                raise SinkUnavailable("may not emit")
            try:
                # One write with O_APPEND is not interleaved with those of other processes (write(2)).
                written = os.write(self._file, data)
            except OSError as error:
                raise SinkUnavailable(os.strerror(error.errno or 0)) from error
            self._torn = written < len(data)
            if self._torn:
                raise SinkUnavailable("the file took only part of a write")
        return [TAKEN] * len(entries)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
