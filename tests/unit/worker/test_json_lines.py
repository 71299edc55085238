"""The file sink."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.records import Entry, Header
from worker.sinks import TAKEN, SinkUnavailable
from worker.sinks.json_lines import JsonLinesSink


def entry(data: bytes) -> Entry:
    return Entry(header=Header(connection="c", epoch=1, worker="w"), first_seq=1, last_seq=1, data=data)


def test_entries_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b'{"seq":0}\n')
    sink = JsonLinesSink(path)
    assert sink.put([entry(b'{"seq":1}\n'), entry(b'{"seq":2}\n')], lambda: True) == [TAKEN, TAKEN]
    sink.close()
    assert path.read_bytes() == b'{"seq":0}\n{"seq":1}\n{"seq":2}\n'


def test_nothing_is_written_without_permission(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "out")
    with pytest.raises(SinkUnavailable):
        sink.put([entry(b"x\n")], lambda: False)
    sink.close()
    assert (tmp_path / "out").read_bytes() == b""


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """As on a full disk: a write is cut short there, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = JsonLinesSink(path)
    with files_end_at(12):
        for _ in range(2):
            with pytest.raises(SinkUnavailable):
                sink.put([entry(b'{"seq":1,"data":"x"}\n')], lambda: True)
    sink.put([entry(b'{"seq":1,"data":"x"}\n')], lambda: True)
    sink.close()
    assert path.read_bytes() == b'{"seq":1,"da\n{"seq":1,"data":"x"}\n'


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(2)):
        JsonLinesSink(tmp_path / "missing" / "out")
