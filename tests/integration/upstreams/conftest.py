"""The engine of `tests.integration.engine`, against servers that are well known and not ours, each a process."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.engine.conftest import bench, pytest_asyncio_loop_factories, quick
from tests.support.upstream import until

__all__ = ["bench", "pytest_asyncio_loop_factories", "quick"]

Command = Callable[[int], Sequence[str]]
"""What starts a server, for the port that it is to listen on."""


def program(name: str) -> Command:
    """A server that is a Python program beside this file."""
    return lambda port: (sys.executable, str(Path(__file__).parent / name), str(port))


class Server:
    """A server process on a port of its own, which it keeps from one run to the next."""

    def __init__(self, command: Command, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Run it, until it listens."""
        self._begin()
        await until(self._listens, what=f"no server on port {self.port}: {self.told()}")

    def _begin(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command(self.port), stdout=log, stderr=log, cwd=self._log.parent)

    async def stop(self) -> None:
        """End it as its operator would, with SIGTERM."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """See `stop`; blocks until it is gone."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def told(self) -> str:
        """What all its runs have written."""
        return self._log.read_text(errors="replace")

    def url(self, path: str) -> str:
        """Where to connect to."""
        return f"ws://127.0.0.1:{self.port}{path}"

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        assert self._process is not None
        assert self._process.poll() is None, self.told()
        return False


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Command], Server]]:
    """Make servers, which are gone when the test is."""
    servers: list[Server] = []

    def make(command: Command) -> Server:
        servers.append(Server(command, tmp_path / f"server-{len(servers)}.log"))
        return servers[-1]

    yield make
    for server in servers:
        server.end()
