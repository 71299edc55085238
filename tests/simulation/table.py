"""DynamoDB as a model: evaluates the very `Write` values that are sent, and answers as badly as a network can.

`evaluate` and `apply` are what a `Write` means; a test compares them with an emulator that gets the rendered request.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, Protocol

from leases.conditions import (
    Absent,
    AllOf,
    AnyOf,
    Below,
    Condition,
    Equals,
    FewerThan,
    OneOf,
    Refused,
    Unknown,
    Write,
    Written,
)
from leases.ports import Page
from leases.rows import Item, Key, connection_of, session_shard
from tests.simulation.loop import Timetable
from tests.simulation.processes import Process

MISSING = object()


def _at(row: Item, path: str) -> Any:
    if "." not in path:
        return row.get(path, MISSING)
    name, field = path.split(".")
    inside = row.get(name)
    return inside.get(field, MISSING) if isinstance(inside, Mapping) else MISSING


def _same(stored: Any, value: Any) -> bool:
    """Equality as DynamoDB has it, where True is no number, however deep."""
    if isinstance(stored, Mapping) and isinstance(value, Mapping):
        return stored.keys() == value.keys() and all(_same(stored[name], value[name]) for name in stored)
    if isinstance(stored, list) and isinstance(value, list):
        return len(stored) == len(value) and all(map(_same, stored, value))
    return bool(stored == value) and (isinstance(stored, bool) is isinstance(value, bool))


def evaluate(condition: Condition, row: Item | None) -> bool:
    """Whether a condition holds for a row, or for the absence of one."""
    row = {} if row is None else row
    match condition:
        case AllOf(parts):
            return all(evaluate(part, row) for part in parts)
        case AnyOf(parts):
            return any(evaluate(part, row) for part in parts)
    stored = _at(row, condition.path)
    match condition:
        case Equals():
            return _same(stored, condition.value)
        case OneOf():
            return any(_same(stored, value) for value in condition.values)
        case Below():
            return isinstance(stored, int) and not isinstance(stored, bool) and stored < condition.value
        case Absent():
            return stored is MISSING
        case FewerThan():
            return isinstance(stored, frozenset | list | Mapping) and len(stored) < condition.count


def apply(write: Write, row: Item | None) -> dict[str, Any]:
    """The row after a write whose condition holds. Raises `ValueError` where DynamoDB would refuse the expression."""
    after: dict[str, Any] = dict(row) if row is not None else {"pk": write.key.pk, "sk": write.key.sk}
    for path, value in write.set.items():
        name, _, field = path.partition(".")
        if not field:
            after[name] = value
        elif isinstance(after.get(name), Mapping):
            after[name] = {**after[name], field: value}
        else:
            raise ValueError(f"{write.name} sets {path}, but there is no map {name}")
    for name in write.remove:
        after.pop(name, None)
    for name, elements in write.add.items():
        after[name] = after.get(name, frozenset()) | elements
    for name, elements in write.delete.items():
        after[name] = after.get(name, frozenset()) - elements
        if not after[name]:
            del after[name]
    return after


class Witness(Protocol):
    """Somebody who sees every write when it is sent, and at the instant at which it meets the table."""

    def sent(self, process: Process, write: Write) -> None:
        """A process sends a write."""
        ...

    def got(self, process: Process, key: Key, row: Item | None) -> None:
        """A consistent read of one row met the table."""
        ...

    def wrote(self, process: Process, write: Write, before: Item | None, after: Item | None) -> None:
        """A write met the row `before`. `after` is None if its condition did not hold."""
        ...


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network and the table behave at the moment, for everybody."""

    delay: float = 0.004
    """Least time of one way, seconds."""
    spread: float = 0.008
    """A way takes up to this much longer."""
    slow: float = 0.0
    """Share of calls whose way takes up to `slow_seconds` longer."""
    slow_seconds: float = 1.5
    throttled: float = 0.0
    """Share of calls that are refused at once, unapplied."""
    unanswered: float = 0.0
    """Share of calls that are applied, but whose answer never arrives."""
    late: float = 0.0
    """Share of writes that land long after the caller gave up on them."""
    late_seconds: float = 20.0
    repeated: float = 0.0
    """Share of writes that land a second time."""
    unwritable: bool = False
    """Reads are served, but no write is."""
    down: bool = False
    """The table cannot be reached by anybody."""
    stale_seconds: float = 0.0
    """Eventually consistent reads show rows as they were up to this long ago, each row its own age."""
    missing: float = 0.0
    """Share of index entries that a query leaves out."""
    page: int = 1000
    """Entries in one page of a query. With one entry a page, the first is empty, as a page of DynamoDB may be."""


CALM = Weather()

HISTORY = 60.0
"""Seconds for which earlier states of a row are kept, for stale reads."""


class Table:
    """The rows, their recent past, and the weather between them and everybody."""

    def __init__(self, timetable: Timetable, rng: Random) -> None:
        self.timetable = timetable
        self.rng = rng
        self.weather = CALM
        self._changes: list[dict[str, Any]] = []
        self.rows: dict[Key, dict[str, Any]] = {}
        self.witnesses: list[Witness] = []
        self.calls = 0
        self.counts: Counter[str] = Counter()
        self._past: dict[Key, tuple[list[float], list[dict[str, Any]]]] = {}
        self._connections: list[Key] = []
        self._sessions: dict[str, list[Key]] = {}

    def put(self, key: Key, row: Item) -> None:
        """Put a row in place, as the API's transaction for a new connection does."""
        self._keep(key, {"pk": key.pk, "sk": key.sk, **row})

    def delete(self, key: Key) -> None:
        """Somebody deletes a row by hand."""
        self.rows.pop(key, None)

    def _keep(self, key: Key, row: dict[str, Any]) -> None:
        now = self.timetable.now
        if key not in self._past:
            self._past[key] = [], []
            of_sessions = key.pk.startswith("SESSIONS#")
            keys = self._sessions.setdefault(key.pk, []) if of_sessions else self._connections
            keys.append(key)
            keys.sort()
        self.rows[key] = row
        times, states = self._past[key]
        times.append(now)
        states.append(row)
        if len(times) > 100 and times[50] < now - HISTORY:
            del times[:50]
            del states[:50]

    def apply(self, process: Process, write: Write) -> Written | Refused:
        """One write meets the table."""
        before = self.rows.get(write.key)
        held = evaluate(write.condition, before)
        after = apply(write, before) if held else None
        if after is not None:
            self._keep(write.key, after)
        for witness in self.witnesses:
            witness.wrote(process, write, before, after)
        return Written(after) if after is not None else Refused(before)

    def get(self, process: Process, key: Key) -> dict[str, Any] | None:
        """One consistent read meets the table."""
        row = self.rows.get(key)
        for witness in self.witnesses:
            witness.got(process, key, row)
        return row

    def _shown(self, key: Key) -> dict[str, Any] | None:
        """A row as an eventually consistent read may show it."""
        stale = self.weather.stale_seconds
        if not stale:
            return self.rows.get(key)
        times, states = self._past[key]
        position = bisect_right(times, self.timetable.now - stale * self.rng.random() ** 2)
        return states[position - 1] if position else None

    def owned_by(self, owner: str, start: str | None) -> Page[str]:
        """A page of the index."""
        weather = self.weather
        if weather.page == 1 and start is None:
            return Page((), "")
        found: list[str] = []
        for key in self._connections:
            if start is not None and key.pk <= start:
                continue
            row = self._shown(key)
            if row is None or row.get("owner") != owner or (weather.missing and self.rng.random() < weather.missing):
                continue
            if len(found) == weather.page:
                return Page(found, f"CONNECTION#{found[-1]}")
            found.append(connection_of(key.pk))
        return Page(found, None)

    def sessions(self, shard: int, start: str | None) -> Page[Item]:
        """A page of the sessions of a shard."""
        page = self.weather.page
        if page == 1 and start is None:
            return Page((), "")
        found: list[Item] = []
        for key in self._sessions.get(session_shard(shard), ()):
            if start is not None and key.sk <= start:
                continue
            if len(found) == page:
                return Page(found, found[-1]["sk"])
            row = self._shown(key)
            if row is not None:
                found.append(row)
        return Page(found, None)

    def bad_weather(self, **changes: Any) -> Callable[[], None]:
        """Change the weather; call the answer to change it back."""
        self._changes.append(changes)
        self._forecast()

        def back() -> None:
            self._changes.remove(changes)
            self._forecast()

        return back

    def _forecast(self) -> None:
        weather = CALM
        for changes in self._changes:
            weather = replace(weather, **changes)
        self.weather = CALM if weather == CALM else weather


class Fate(NamedTuple):
    """What becomes of one attempt: its time under way; whether it is refused, arrives, is answered, is repeated."""

    there: float
    back: float | None = None
    """None: no answer is heard."""
    refusal: str | None = None
    arrives: bool = True
    again: float | None = None


class TableStore:
    """The table as one process reaches it. Implements `leases.ports.Store`: one attempt a call, bounded in time."""

    __slots__ = ("_process", "_table", "_timeout", "cut")

    def __init__(self, table: Table, process: Process, timeout: float) -> None:
        self._table = table
        self._process = process
        self._timeout = timeout
        self.cut: str | None = None
        """How this process alone is cut off: "both" ways, or only the "answers", or these come "late" only, or both
        ways behind the "last" write, which is answered."""

    async def write(self, write: Write) -> Written | Refused:
        for witness in self._table.witnesses:
            witness.sent(self._process, write)
        result: Written | Refused = await self._call(True, self._table.apply, self._process, write)
        return result

    async def get(self, key: Key) -> Item | None:
        row: Item | None = await self._call(False, self._table.get, self._process, key)
        return row

    async def get_many(self, keys: Sequence[Key]) -> Mapping[Key, Item]:
        rows = self._table.rows
        if not keys:
            return {}
        found: Mapping[Key, Item] = await self._call(False, lambda: {key: rows[key] for key in keys if key in rows})
        return found

    async def owned_by(self, owner: str, start: str | None) -> Page[str]:
        page: Page[str] = await self._call(False, self._table.owned_by, owner, start)
        return page

    async def sessions(self, shard: int, start: str | None) -> Page[Item]:
        page: Page[Item] = await self._call(False, self._table.sessions, shard, start)
        return page

    def _call(self, changes: bool, act: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        timetable, process = self._table.timetable, self._process
        future: asyncio.Future[Any] = process.loop.create_future()
        fate = self._fate(changes)
        if fate.again is not None:
            timetable.after(fate.there + fate.again, act, *args)
        if fate.refusal is not None:
            timetable.after(fate.there, _fail, process, future, fate.refusal)
        elif fate.back is not None and (fate.there + fate.back) * process.clock.rate < self._timeout:
            timetable.after(fate.there, _serve, timetable, process, future, fate.back, act, args)
        else:
            if changes and fate.arrives:
                timetable.after(fate.there, act, *args)
            process.loop.call_later(self._timeout, _set, future, None, Unknown("no answer"))
        return future

    def _fate(self, changes: bool) -> Fate:
        """What becomes of one attempt."""
        table = self._table
        weather, random, count = table.weather, table.rng.random, table.counts
        table.calls += 1
        there = weather.delay + random() * weather.spread
        back = weather.delay + random() * weather.spread
        if weather is CALM and self.cut is None:
            return Fate(there, back)
        if weather.slow and random() < weather.slow:
            count["slow"] += 1
            there += random() * weather.slow_seconds
            back += random() * weather.slow_seconds * 0.3
        if self.cut == "late":
            back += random() * self._timeout
        elif self.cut == "last" and changes:
            self.cut = "both"
            return Fate(there, back)
        if self.cut == "both" or weather.down or (changes and weather.unwritable):
            count["unreachable"] += 1
            return Fate(there, refusal="connection refused") if random() < 0.5 else Fate(there, arrives=False)
        if random() < weather.throttled:
            count["throttled"] += 1
            return Fate(there, refusal="throttled")
        again = None
        if changes and random() < weather.late:
            count["late"] += 1
            there += random() * weather.late_seconds
        if changes and random() < weather.repeated:
            count["repeated"] += 1
            again = random() * weather.late_seconds
        answered = self.cut != "answers" and random() >= weather.unanswered
        count["unanswered"] += not answered
        return Fate(there, back if answered else None, again=again)


def _serve(
    timetable: Timetable,
    process: Process,
    future: "asyncio.Future[Any]",
    back: float,
    act: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    timetable.after(back, _answer, process, future, act(*args))


def _answer(process: Process, future: "asyncio.Future[Any]", result: object) -> None:
    if process.alive:
        _set(future, result, None)


def _fail(process: Process, future: "asyncio.Future[Any]", reason: str) -> None:
    if process.alive:
        _set(future, None, Unknown(reason))


def _set(future: "asyncio.Future[Any]", result: object, error: Unknown | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
