"""What the demo upstream saw: which sockets were open when, and what follows from that for a fault."""

import json
import math
import signal
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import psutil

from local.processes import Child, Processes, python_environment
from local.upstream import REPORT, Socket

OVERLAP_SECONDS = 5.0
"""How long a planned move may keep two sockets of one connection open."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that the upstream saw until one moment. Paths stand for connections."""

    sockets: Mapping[str, Sequence[Socket]]
    """By path, in the order in which they were opened."""
    numbers: Mapping[str, int]
    """The number of the last message of each path."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what the upstream reports."""
        fields = json.loads(text)
        sockets: dict[str, list[Socket]] = {}
        for socket in map(Socket.from_json, fields["sockets"]):
            sockets.setdefault(socket.path, []).append(socket)
        return cls(sockets, fields["numbers"])

    def served(self) -> set[str]:
        """Paths with an open socket that has subscribed."""
        return {
            path
            for path, sockets in self.sockets.items()
            if any(socket.subscribed is not None and socket.closed is None for socket in sockets)
        }

    def crowded(self) -> set[str]:
        """Paths with more than one open socket."""
        return {path for path, sockets in self.sockets.items() if sum(socket.closed is None for socket in sockets) > 1}

    def paths_of(self, ports: Iterable[int]) -> set[str]:
        """Paths whose open socket comes from one of these ports."""
        wanted = set(ports)
        return {
            path
            for path, sockets in self.sockets.items()
            if any(socket.closed is None and socket.port in wanted for socket in sockets)
        }

    def successor(self, path: str, since: float) -> Socket | None:
        """The first socket that was opened after a moment and has subscribed."""
        later = (socket for socket in self.sockets[path] if socket.opened >= since and socket.subscribed is not None)
        return next(later, None)

    def outage(self, path: str, fault: float, *, planned: bool) -> float:
        """Seconds from the last moment at which a message could be delivered on the old socket to the subscription of
        the new one; infinite while there is none.

        A fault ends delivery when it strikes, whenever the kernel closes the socket; a planned move when it closes it.
        """
        new = self.successor(path, fault)
        if new is None or new.subscribed is None:
            return math.inf
        old = [socket for socket in self.sockets[path] if socket.opened < fault]
        if not planned or not old:
            return max(0.0, new.subscribed - fault)
        closed = old[-1].closed
        return 0.0 if closed is None else max(0.0, new.subscribed - closed)

    def changed(self, since: float) -> set[str]:
        """Paths with a socket that was opened or closed after a moment."""
        return {
            path
            for path, sockets in self.sockets.items()
            if any(socket.opened >= since or (socket.closed or -math.inf) >= since for socket in sockets)
        }

    def long_overlaps(self, since: float) -> set[str]:
        """Paths on which two sockets were open for longer than a planned move may take."""
        return {
            path
            for path, sockets in self.sockets.items()
            for old, new in pairwise(sockets)
            if new.opened >= since and (old.closed or math.inf) - new.opened > OVERLAP_SECONDS
        }


class Witness:
    """The demo upstream, run as a process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._port = int(child.output.readline())

    @classmethod
    def start(cls, processes: Processes) -> Self:
        """Start an upstream."""
        argv = [sys.executable, "-m", "local.upstream"]
        return cls(processes.spawn("upstream", argv, env=python_environment(), piped=True))

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"ws://127.0.0.1:{self._port}"

    def report(self) -> Report:
        """All that it has seen."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{REPORT}", timeout=10) as answer:
            return Report.parse(answer.read().decode())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process for a while: it neither sends nor answers, and its sockets stay open."""
        self._child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._child.signal(signal.SIGCONT)

    def held_by(self, pids: Iterable[int]) -> frozenset[str]:
        """Paths of the connections that these processes hold."""
        ports = {
            connection.laddr.port
            for pid in pids
            for connection in psutil.Process(pid).net_connections(kind="tcp")
            if connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port == self._port
        }
        return frozenset(self.report().paths_of(ports))
