"""The container's health check: `python -m worker.health` asks the supervisor, PID 1, whether the task is healthy.

Healthy is a task with a worker process that has opened a session. An outage of the store later does not change that: to
replace tasks that hold their connections through it would turn the outage into a real one.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TIMEOUT_SECONDS = 3.0
HEALTHY = b"healthy"


def _address(supervisor: int) -> str:
    """A socket without a file, since the root file system is read-only: the abstract namespace of unix(7)."""
    return f"\0websocket-fleet-worker-{supervisor}"


@asynccontextmanager
async def served(healthy: Callable[[], bool]) -> AsyncIterator[None]:
    """Answer health checks of this process."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEALTHY if healthy() else b"no session open yet")
        writer.close()

    server = await asyncio.start_unix_server(answer, _address(os.getpid()))
    async with server:
        yield


def check(supervisor: int) -> bool:
    """Whether the supervisor with this process id says that its task is healthy."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(TIMEOUT_SECONDS)
        try:
            asking.connect(_address(supervisor))
            return asking.recv(64) == HEALTHY
        except OSError:
            return False


if __name__ == "__main__":
    sys.exit(0 if check(int(sys.argv[1]) if len(sys.argv) > 1 else 1) else 1)
