"""Child processes that never outlive the one that started them."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".local"
KILL_SECONDS = 10.0
"""How long a process may take to vanish after SIGKILL."""
TIDY_SECONDS = 60.0
"""How long it may take to remove the scratch directory: the emulator unpacks the functions' code there, often."""


class Child:
    """A process and its descendants: it leads a process group of its own."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        """The process id, which is the id of its group too."""
        return self._process.pid

    @property
    def output(self) -> IO[str]:
        """What it writes to its standard output."""
        if self._process.stdout is None:
            raise ValueError("the output of this process goes to its log")
        return self._process.stdout

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """Wait for its exit code; raises subprocess.TimeoutExpired after `timeout` seconds."""
        return self._process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, as ECS does to PID 1 of a container."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """End the process and all its descendants at once; returns the exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait(KILL_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL to whatever is left when the process ends or `grace` seconds have passed."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        return self.kill()


class Processes:
    """Starts children, and a janitor that ends them and removes `scratch` even if this process is killed."""

    def __init__(self, name: str) -> None:
        SCRATCH.mkdir(exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=SCRATCH))
        """A directory for logs and state; it goes when this object is closed."""
        self._janitor = subprocess.Popen(
            [sys.executable, "-m", "local.janitor", str(self.scratch)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def spawn(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT, piped: bool = False
    ) -> Child:
        """Start a process in a group of its own, with exactly this environment.

        Its standard error, and its output unless that is `piped`, go to `<name>.log` in the scratch directory.
        """
        log = self.scratch / f"{name}.log"
        with ExitStack() as files:
            sink = files.enter_context(log.open("ab"))
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else sink,
                stderr=sink,
                text=True,
                start_new_session=True,
            )
        self._tell(f"+{process.pid}")
        return Child(process, log)

    def forget(self, child: Child) -> None:
        """The child has ended, so that its id may soon belong to a stranger."""
        self._tell(f"-{child.pid}")

    def keep_logs(self) -> None:
        """Leave the scratch directory behind."""
        self._tell("keep")

    def close(self) -> None:
        """Kill what still runs and remove the scratch directory."""
        if self._janitor.stdin is not None:
            self._janitor.stdin.close()
        self._janitor.wait(TIDY_SECONDS)

    def _tell(self, line: str) -> None:
        if self._janitor.stdin is None:
            raise ValueError("the janitor has no input")
        self._janitor.stdin.write(f"{line}\n")
        self._janitor.stdin.flush()


def python_environment() -> dict[str, str]:
    """What any program needs of our environment, and nothing of the user's AWS configuration."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONUNBUFFERED": "1"}
