"""The output stream: what was emitted lands later, or never, or unacknowledged; and what a consumer makes of it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from tests.simulation.loop import Timetable
from tests.simulation.processes import Process


class Record(NamedTuple):
    """One record: a message by its number, or a control record."""

    epoch: int
    seq: int
    kind: str
    number: int


@dataclass(slots=True)
class Landed:
    """What a consumer knows of one connection."""

    epoch: int = 0
    seq: int = 0
    number: int = 0
    """The last message that landed."""
    joined: bool = False
    """Whether the next message must be `number` + 1: no control record has explained a gap since."""
    moved_to: int | None = None
    """The epoch of a planned move whose first record has not landed yet."""
    emitters: dict[int, str] = field(default_factory=dict)
    """Which process emitted which epoch."""
    contents: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    records: int = 0
    repeated: int = 0


class Entry(NamedTuple):
    """Consecutive records of one connection on their way."""

    connection: str
    process: Process
    sent_at: float
    excused: bool
    """Sent by a machine that did not know yet that it had been frozen; only the epoch fences that."""
    records: list[Record]


class LandingWitness(Protocol):
    """Somebody who sees every entry leave and land."""

    def emits(self, entry: Entry) -> None:
        """An attempt begins: the guard has just allowed it."""
        ...

    def landed(self, entry: Entry) -> None:
        """It has landed."""
        ...


class Stream:
    """The sink. Every attempt lands within D of the emitter's clock after it was allowed, or never."""

    def __init__(self, timetable: Timetable, rng: Random, drain: float) -> None:
        self._timetable = timetable
        self._rng = rng
        self.drain = drain
        """D, in seconds of the emitter's clock."""
        self.lost = 0.0
        """Share of attempts that never land."""
        self.unacknowledged = 0.0
        """Share of attempts that land unacknowledged."""
        self.slow = 0.05
        """Share of attempts that take up to D."""
        self.laggards: set[str] = set()
        """Processes of which every attempt takes up to D."""
        self.landing: list[LandingWitness] = []
        self.last_words: dict[str, Callable[[], None]] = {}
        """What happens right behind the next attempt of a process, which then takes all of D: the worst moment."""

    def send(self, entry: Entry) -> "asyncio.Future[bool]":
        """Emit. The answer is whether it was acknowledged; nothing of this attempt lands after it."""
        for witness in self.landing:
            witness.emits(entry)
        random, process = self._rng.random, entry.process
        acknowledged: asyncio.Future[bool] = process.loop.create_future()
        longest = self.drain / process.clock.rate
        way = 0.01 + 0.03 * random()
        if random() < self.slow or process.name in self.laggards:
            way = longest * (1 - random() ** 3)
        last_words = self.last_words.pop(process.name, None)
        if last_words is not None:
            way = longest
            self._timetable.after(0.0, last_words)
        way = min(way, longest * 0.9999)
        if self.lost and random() < self.lost:
            self._timetable.after(way, _answer, process, acknowledged, False)
        else:
            heard = not (self.unacknowledged and random() < self.unacknowledged)
            self._timetable.after(way, self._land, entry, acknowledged, heard)
        return acknowledged

    def _land(self, entry: Entry, acknowledged: "asyncio.Future[bool]", heard: bool) -> None:
        for witness in self.landing:
            witness.landed(entry)
        _answer(entry.process, acknowledged, heard)


def _answer(process: Process, acknowledged: "asyncio.Future[bool]", heard: bool) -> None:
    if process.alive and not acknowledged.done():
        acknowledged.set_result(heard)
