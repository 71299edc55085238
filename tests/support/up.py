"""`python -m local up`, as a user starts it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from local.processes import ROOT, python_environment

PATIENCE_SECONDS = 90.0


class Running:
    """A `python -m local up` that says that it is up."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "local", "up", *options],
            cwd=ROOT,
            env=python_environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        with self.process.stdout:
            line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(PATIENCE_SECONDS)}"
        self.said: dict[str, Any] = json.loads(line)
        """What it printed."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and wait until nothing is left of the whole family; returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        _, alive = psutil.wait_procs(self.family, timeout=PATIENCE_SECONDS)
        assert alive == []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while Path(self.said["logs"]).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return code
