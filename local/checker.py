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
    worker: str = ""
    """Who wrote the records of that epoch."""
    number: int = 0
    """The upstream's number of the last message."""
    numbers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The upstream's number of a message, and the epoch and sequence number that it came with."""

    @property
    def highest(self) -> int:
        """The highest number."""
        return max(self.numbers, default=0)

    @property
    def missing(self) -> frozenset[int]:
        """Numbers between the first and the highest that did not come."""
        return frozenset(range(min(self.numbers, default=0), self.highest)) - self.numbers.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the stream has shown until one moment."""

    records: int
    repeated: int
    """Records that came again with their own epoch and sequence number: at-least-once delivery allows it."""
    dual_owners: int
    """Records of an epoch after one of a higher epoch of the connection, or from a second worker in one epoch."""
    doubled: int
    """Messages that came again as another record."""
    broken: tuple[str, ...]
    """A sentence for every rule that a record broke, order among them."""
    highest: Mapping[str, int]
    """By connection, the highest number of a message."""
    missing: Mapping[str, frozenset[int]]
    """By connection, the numbers of messages that did not come though a later one did."""


class Checker:
    """Takes the records of the stream in order."""

    def __init__(self) -> None:
        self._connections: dict[str, Seen] = {}
        self._records = 0
        self._repeated = 0
        self._dual_owners = 0
        self._doubled = 0
        self._broken: list[str] = []

    @property
    def verdict(self) -> Verdict:
        """What has been shown so far."""
        return Verdict(
            records=self._records,
            repeated=self._repeated,
            dual_owners=self._dual_owners,
            doubled=self._doubled,
            broken=tuple(self._broken),
            highest={connection: seen.highest for connection, seen in self._connections.items()},
            missing={connection: seen.missing for connection, seen in self._connections.items()},
        )

    def add(self, record: Mapping[str, Any]) -> None:
        """Judge the next record."""
        self._records += 1
        connection, epoch, seq, worker = (record[name] for name in ("connectionId", "epoch", "seq", "workerId"))
        seen = self._connections.setdefault(connection, Seen())
        if epoch < seen.epoch:
            self._dual_owners += 1
            self._broken.append(f"{connection}: a record of epoch {epoch} came after one of epoch {seen.epoch}")
        elif epoch > seen.epoch:
            seen.epoch, seen.seq, seen.worker = epoch, 0, worker
        elif worker != seen.worker:
            self._dual_owners += 1
            self._broken.append(f"{connection}: records of epoch {epoch} came from {seen.worker} and from {worker}")
        if epoch == seen.epoch:
            if seq <= seen.seq:
                self._repeated += 1
                return
            if seq > seen.seq + 1:
                self._broken.append(f"{connection}: records {seen.seq + 1} to {seq - 1} of epoch {epoch} are missing")
            seen.seq = seq
        if record["type"] == "message":
            self._number(connection, seen, json.loads(record["data"])["n"], (epoch, seq))

    def _number(self, connection: str, seen: Seen, number: int, place: tuple[int, int]) -> None:
        before = seen.numbers.setdefault(number, place)
        if before == place and number < seen.number:
            self._broken.append(f"{connection}: message {number} came after message {seen.number}")
        seen.number = number
        if before != place:
            self._doubled += 1
            self._broken.append(
                f"{connection}: message {number} came as record {before[1]} of epoch {before[0]} "
                f"and as record {place[1]} of epoch {place[0]}"
            )
