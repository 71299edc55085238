"""The AWS emulator as a process of its own, on loopback and a free port, with its state in a directory of ours."""

import socket
import sys
import time
import urllib.error
import urllib.request

from local.aws import Aws
from local.processes import Child, Processes, python_environment

START_SECONDS = 60.0
ATTEMPTS = 5
"""Ports tried: one that was free may be taken by a stranger before the emulator binds it."""


class EmulatorError(RuntimeError):
    """The emulator did not come up. The message has the end of its log."""


def start(processes: Processes) -> tuple[Child, Aws]:
    """Start an emulator and wait until it answers; raises `EmulatorError`."""
    for _ in range(ATTEMPTS):
        port = _free_port()
        child = processes.spawn("emulator", [sys.executable, "-m", "local.emulated"], env=_environment(processes, port))
        aws = Aws(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + START_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            if _answers(aws.endpoint):
                return child, aws
            time.sleep(0.05)
        child.kill()
        processes.forget(child)
        if "already in use" not in child.log.read_text():
            break
    raise EmulatorError(f"the emulator did not start: {child.log.read_text()[-2000:]}")


def _environment(processes: Processes, port: int) -> dict[str, str]:
    """Functions inherit this environment, since the emulator runs them as its children."""
    temporary = processes.scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    return python_environment() | {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
        # In the URLs of queues; "localhost" may resolve to ::1, where nobody listens.
        "MINISTACK_HOST": "127.0.0.1",
        "S3_DATA_DIR": str(processes.scratch / "s3"),
        "SFTP_ENABLED": "0",
        "STATE_DIR": str(processes.scratch / "state"),
        "TMPDIR": str(temporary),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/_ministack/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
