"""Output records: one JSON object per record, several consecutive ones of a connection as the lines of one entry.

    {"connectionId", "epoch", "seq", "type": "message", "receivedAt", "workerId", "encoding": "text" | "base64", "data"}

`seq` counts from 1 within an epoch. It is assigned when a record is encoded, and again the same when it is encoded
anew after an attempt of unknown outcome, so that a consumer may drop whatever is not above the highest (epoch, seq)
that it has seen. Control records share the sequence: `opened`, `closed` {code, reason}, `gap` {from, to, resumed,
reason}. A message too large for one record is split into records of its own `seq` with `part` (from 1) and `parts`.
`docs/records.md` says what each means to a consumer.
"""

import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import xxhash

JSON_GROWTH = 6
"""A control character of one byte becomes six in JSON (`\\u0000`); nothing grows more (RFC 8259 section 7)."""


ITEM_BYTES = 112
"""What an item takes in memory beside its payload: a tuple, a float, a place in a list."""

EVENT_BYTES = 512
"""What a control record is counted as."""


class Control(StrEnum):
    """What a record tells about the connection itself."""

    OPENED = "opened"
    CLOSED = "closed"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Event:
    """A control record before it has a place in the sequence."""

    kind: Control
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a message too large for one record."""

    data: str | bytes
    part: int
    parts: int
    digest: bytes = b""
    """In the last part: the digest of the whole message."""
    cursor: str | None = None
    """In the last part: the resume cursor that the whole message carries."""

    @property
    def last(self) -> bool:
        """Whether the message is complete with this part."""
        return self.part == self.parts


Payload = str | bytes | Part | Event

Item = tuple[Payload, float]
"""What waits in an outbox: a payload, and when it was received in unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sink takes, in bytes and entries. A batch always takes one entry, and an entry one record."""

    batch_entries: int
    batch_bytes: int
    entry_bytes: int
    """Consecutive records are packed into an entry up to this size."""
    record_bytes: int
    """The largest record, as encoded."""
    part_bytes: int
    """A message of more payload than this is split; in base64 it must fit into a record."""

    @property
    def plain_length(self) -> int:
        """A text of up to this many characters, or as many bytes, fits into a record whatever it consists of.

        A character is at most 4 bytes of UTF-8, or 6 of JSON where it is a control character.
        """
        return self.record_bytes // JSON_GROWTH - 1024


STREAM_LIMITS = Limits(
    # API_PutRecords: 500 records and 10 MiB per request. A mebibyte is what a request can be written in within D.
    batch_entries=500,
    batch_bytes=1024 * 1024,
    entry_bytes=256 * 1024,
    # A stream takes records of 1 MiB, key included, unless its MaxRecordSizeInKiB is raised.
    record_bytes=1_000_000,
    part_bytes=700 * 1024,
)
"""Of a Kinesis data stream, and of the sinks that have none of their own: so records look the same everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all records of one entry have in common."""

    connection: str
    epoch: int
    worker: str
    """The session of the emitting process."""
    begin: bytes = field(init=False, repr=False)
    """A record in JSON up to its number."""
    end: bytes = field(init=False, repr=False)
    """A record of a text in JSON from the session up to the text."""

    def __post_init__(self) -> None:
        begin = b'{"connectionId":%b,"epoch":%d,"seq":' % (orjson.dumps(self.connection), self.epoch)
        object.__setattr__(self, "begin", begin)
        object.__setattr__(self, "end", _end(self.worker))


@lru_cache(maxsize=4)
def _end(worker: str) -> bytes:
    """The same object for all connections of a session."""
    return b'"workerId":%b,"encoding":"text","data":' % orjson.dumps(worker)


class Entry(NamedTuple):
    """Consecutive records of one connection as JSON lines: what a sink takes or refuses as a whole."""

    header: Header
    first_seq: int
    last_seq: int
    data: bytes


def cost(payload: Payload) -> int:
    """What an item counts for in a buffer, in bytes of memory."""
    if isinstance(payload, Event):
        return EVENT_BYTES
    if isinstance(payload, Part):
        payload = payload.data
    return payload.__sizeof__() + ITEM_BYTES


def digest(data: str | bytes) -> bytes:
    """What stands for a message in a hand-over, in `leases.rows.DIGEST_BYTES`.

    Two of 64 messages are alike by chance once in 10^15 hand-overs. Who forges one confuses his own connection only.
    """
    return xxhash.xxh3_64_digest(data.encode() if isinstance(data, str) else data)


def item_digest(payload: Payload) -> bytes:
    """The digest of the message that ends with this item; empty where none does."""
    if isinstance(payload, (str, bytes)):
        return digest(payload)
    return payload.digest if isinstance(payload, Part) else b""


def split(data: str | bytes, limits: Limits) -> Sequence[str | bytes]:
    """Cut a message into pieces that each fit into a record; a single one if it fits as it is. Text stays text."""
    if isinstance(data, bytes):
        return [data[at : at + limits.part_bytes] for at in range(0, len(data), limits.part_bytes)] or [data]
    encoded = data.encode()
    size = limits.part_bytes
    if len(encoded) <= size and _fits(data, limits):
        return [data]
    pieces = _split_text(encoded, size)
    if all(_fits(piece, limits) for piece in pieces):
        return pieces
    return _split_text(encoded, limits.plain_length)


def _fits(text: str, limits: Limits) -> bool:
    return len(orjson.dumps(text)) + 1024 <= limits.record_bytes


def _split_text(encoded: bytes, size: int) -> list[str]:
    """Cut UTF-8 into pieces of at most `size` bytes, between characters."""
    pieces = []
    start = 0
    while start < len(encoded):
        end = min(start + size, len(encoded))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(encoded[start:end].decode())
        start = end
    return pieces


class Stamps:
    """Unix milliseconds as ISO 8601 in UTC. Neighbours share it, or its second, which is the costly part."""

    __slots__ = ("_milliseconds", "_second", "_seconds", "_stamp")

    def __init__(self) -> None:
        self._milliseconds = self._second = -1
        self._seconds = self._stamp = b""

    def __call__(self, milliseconds: int) -> bytes:
        if milliseconds != self._milliseconds:
            self._milliseconds = milliseconds
            second, rest = divmod(milliseconds, 1000)
            if second != self._second:
                self._second = second
                self._seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
            self._stamp = b"%b.%03dZ" % (self._seconds, rest)
        return self._stamp


def timestamp(at: float) -> str:
    """Unix seconds as ISO 8601 in UTC with milliseconds, cut off."""
    return Stamps()(int(at * 1000)).decode()


def encode(header: Header, items: Sequence[Item], first_seq: int, limits: Limits, most: int, stamps: Stamps) -> Entry:
    """Pack as many items as fit into one entry, at least one and at most `most`."""
    lines: list[bytes] = []
    size, room, seq = 0, limits.entry_bytes, first_seq
    stamped, stamp = -1.0, b""
    begin, end, dumps = header.begin, header.end, orjson.dumps
    # The busiest loop of the output: what the records of a connection have in common is encoded once, not here.
    for payload, received_at in items[:most]:
        if received_at != stamped:
            stamped, stamp = received_at, stamps(int(received_at * 1000))
        if isinstance(payload, str):
            line = b'%b%d,"type":"message","receivedAt":"%b",%b%b}\n' % (begin, seq, stamp, end, dumps(payload))
        else:
            line = dumps(_odd_record(header, seq, stamp.decode(), payload), option=orjson.OPT_APPEND_NEWLINE)
        size += len(line)
        if size > room and lines:
            break
        lines.append(line)
        seq += 1
    return Entry(header, first_seq, seq - 1, b"".join(lines))


def _odd_record(header: Header, seq: int, stamp: str, payload: bytes | Part | Event) -> Mapping[str, Any]:
    """A record that is not a whole text message."""
    record = {
        "connectionId": header.connection,
        "epoch": header.epoch,
        "seq": seq,
        "type": payload.kind.value if isinstance(payload, Event) else "message",
        "receivedAt": stamp,
        "workerId": header.worker,
    }
    if isinstance(payload, Event):
        return {**record, **payload.fields, **record}
    if isinstance(payload, Part):
        return _with_data(record, payload.data) | {"part": payload.part, "parts": payload.parts}
    return _with_data(record, payload)


def _with_data(record: Mapping[str, Any], data: str | bytes) -> dict[str, Any]:
    if isinstance(data, str):
        return {**record, "encoding": "text", "data": data}
    return {**record, "encoding": "base64", "data": b64encode(data).decode()}
