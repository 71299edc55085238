"""Upstream servers: each connection has a feed that numbers its messages, whether anybody listens or not."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from tests.simulation.loop import Timetable
from tests.simulation.processes import Process


@dataclass(frozen=True, slots=True)
class Temper:
    """How a connection behaves."""

    interval: float
    """Seconds between two messages."""
    phase: float
    one_socket: bool = False
    """The upstream tolerates no second socket: break before make."""
    hopeless: bool = False
    """Every attempt to connect ends in a fatal refusal."""
    deadly: bool = False
    """Whoever opens it crashes."""


class Socket:
    """An open socket. It gets every message from its opening on, until it is closed or its process is gone."""

    __slots__ = ("_deliver", "_latency", "_number", "_timetable", "dropped", "feed", "open", "process")

    def __init__(
        self,
        timetable: Timetable,
        feed: "Feed",
        process: Process,
        latency: float,
        deliver: Callable[[int], None],
        dropped: Callable[[], None],
    ) -> None:
        self._timetable = timetable
        self.feed = feed
        self.process = process
        self._latency = latency
        self._deliver = deliver
        self.dropped = dropped
        self.open = True
        feed.sockets.append(self)
        self._number = feed.next_number()
        timetable.at(feed.time_of(self._number) + latency, self._tick)

    def _tick(self) -> None:
        if not self.open:
            return
        if not self.process.alive:
            self.close()
            return
        self.process.loop.call_soon(self._deliver, self._number)
        self._number += 1
        self._timetable.at(self.feed.time_of(self._number) + self._latency, self._tick)

    def close(self) -> None:
        """This side closes."""
        if self.open:
            self.open = False
            self.feed.sockets.remove(self)


class Feed:
    """One connection as its upstream sees it."""

    __slots__ = ("_timetable", "connection", "sockets", "temper")

    def __init__(self, timetable: Timetable, connection: str, temper: Temper) -> None:
        self._timetable = timetable
        self.connection = connection
        self.temper = temper
        self.sockets: list[Socket] = []

    def time_of(self, number: int) -> float:
        """When a message is sent."""
        return self.temper.phase + number * self.temper.interval

    def next_number(self) -> int:
        """The first message that a socket opened now will get."""
        return max(1, ceil((self._timetable.now - self.temper.phase) / self.temper.interval))

    def drop(self) -> None:
        """The upstream closes every socket."""
        for socket in list(self.sockets):
            socket.close()
            socket.process.call(socket.dropped)
