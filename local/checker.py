"""Judges the output stream by what every record says of itself, whoever wrote it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Seen:
    """What the stream has said of one connection."""

    epoch: int = 0
    seq: int = 0
    """The highest sequence number of that epoch."""
    numbers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The upstream's number of a message, and the epoch and sequence number that it came with."""
    workers: set[str] = field(default_factory=set)

    @property
    def highest(self) -> int:
        """The highest number seen."""
        return max(self.numbers, default=0)

    @property
    def missing(self) -> set[int]:
        """Numbers that did not come though a later one did."""
        return set(range(min(self.numbers, default=1), self.highest)) - self.numbers.keys()


class Checker:
    """Takes the records of the stream in order. `broken` holds a sentence for every rule that one of them broke."""

    def __init__(self) -> None:
        self.connections: dict[str, Seen] = {}
        self.records = 0
        self.repeated = 0
        """Records that came again with their own epoch and sequence number: at-least-once delivery allows it."""
        self.dual_owners = 0
        """Records of an epoch after one of a higher epoch of the same connection."""
        self.doubled = 0
        """Messages that came again as another record."""
        self.broken: list[str] = []

    def add(self, record: Mapping[str, Any]) -> None:
        """Judge the next record."""
        self.records += 1
        connection, epoch, seq = record["connectionId"], record["epoch"], record["seq"]
        seen = self.connections.setdefault(connection, Seen())
        seen.workers.add(record["workerId"])
        if epoch < seen.epoch:
            self.dual_owners += 1
            self.broken.append(f"{connection}: a record of epoch {epoch} came after one of epoch {seen.epoch}")
        elif epoch > seen.epoch:
            seen.epoch, seen.seq = epoch, 0
        if epoch == seen.epoch:
            if seq <= seen.seq:
                self.repeated += 1
                return
            if seq > seen.seq + 1:
                self.broken.append(f"{connection}: records {seen.seq + 1} to {seq - 1} of epoch {epoch} are missing")
            seen.seq = seq
        if record["type"] == "message":
            self._number(connection, seen, json.loads(record["data"])["n"], (epoch, seq))

    def _number(self, connection: str, seen: Seen, number: int, place: tuple[int, int]) -> None:
        before = seen.numbers.setdefault(number, place)
        if before != place:
            self.doubled += 1
            self.broken.append(
                f"{connection}: message {number} came as record {before[1]} of epoch {before[0]} "
                f"and as record {place[1]} of epoch {place[0]}"
            )
