"""What a write means, and how badly the table can be reached."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

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
from leases.rows import Key, connection_key, session_key, session_shard
from tests.simulation.loop import LocalClock, Timetable
from tests.simulation.processes import Process
from tests.simulation.table import Table, TableStore, apply, evaluate

ROW = {"pk": "p", "sk": "s", "n": 5, "flag": True, "names": frozenset({"a", "b"}), "map": {"field": "x", "ready": True}}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Equals("n", 5), True),
        (Equals("n", 6), False),
        (Equals("flag", 1), False),
        (Equals("missing", None), False),
        (Equals("map.field", "x"), True),
        (Equals("n.field", "x"), False),
        (OneOf("n", (4, 5)), True),
        (OneOf("n", ()), False),
        (Below("n", 6), True),
        (Below("n", 5), False),
        (Below("missing", 5), False),
        (Below("flag", 5), False),
        (Absent("missing"), True),
        (Absent("map.missing"), True),
        (Absent("pk"), False),
        (FewerThan("names", 3), True),
        (FewerThan("names", 2), False),
        (FewerThan("missing", 2), False),
        (AllOf((Equals("n", 5), Absent("n"))), False),
        (AnyOf((Equals("n", 5), Absent("n"))), True),
    ],
)
def test_conditions(condition: Condition, holds: bool) -> None:
    assert evaluate(condition, ROW) is holds


def test_an_absent_row_has_no_attributes() -> None:
    assert evaluate(Absent("pk"), None)
    assert not evaluate(Equals("n", 5), None)


def test_a_write_sets_removes_adds_and_deletes() -> None:
    write = Write(
        name="all",
        key=Key("p", "s"),
        condition=Absent("x"),
        set={"n": 6, "map.ready": False},
        remove=("flag", "missing"),
        add={"names": frozenset({"c"}), "fresh": frozenset({"d"})},
        delete={"gone": frozenset({"e"})},
    )
    assert apply(write, ROW) == {
        "pk": "p",
        "sk": "s",
        "n": 6,
        "names": frozenset({"a", "b", "c"}),
        "fresh": frozenset({"d"}),
        "map": {"field": "x", "ready": False},
    }
    emptied = Write(name="empty", key=Key("p", "s"), condition=Absent("x"), delete={"names": frozenset({"a", "b"})})
    assert "names" not in apply(emptied, ROW)
    with pytest.raises(ValueError, match=r"missing\.field"):
        apply(Write(name="bad", key=Key("p", "s"), condition=Absent("x"), set={"missing.field": 1}), ROW)


class Scene:
    """One process and a table in some weather."""

    def __init__(self, **weather: Any) -> None:
        self.timetable = Timetable()
        self.table = Table(self.timetable, Random(1))
        self.errors: list[str] = []
        clock = LocalClock(self.timetable, 1.0, 1e9)
        self.process = Process(self.timetable, "p", clock, lambda process, what: self.errors.append(what))
        self.store = TableStore(self.table, self.process, 1.0)
        self.calm = self.table.bad_weather(**weather) if weather else lambda: None

    def ask(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        answers: list[Any] = []

        async def main() -> None:
            try:
                answers.append(await call())
            except Unknown as unknown:
                answers.append(unknown)

        self.process.run(main())
        started = self.timetable.now
        while not answers:
            assert self.timetable.now < started + 2, "every call is bounded in time"
            self.timetable.run(self.timetable.now + 0.01)
        assert self.errors == []
        return answers[0]

    def count(self) -> Any:
        return self.ask(lambda: self.store.write(COUNT))


@pytest.fixture
def scenes() -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**weather: Any) -> Scene:
        made.append(Scene(**weather))
        return made[-1]

    yield make
    for scene in made:
        scene.process.bury()


Scenes = Callable[..., Scene]

COUNT = Write(name="count", key=connection_key("c"), condition=AnyOf((Absent("n"), Below("n", 1))), set={"n": 1})


def test_a_write_is_applied_once_and_refused_with_the_row(scenes: Scenes) -> None:
    scene = scenes()
    assert isinstance(scene.count(), Written)
    refused = scene.count()
    assert isinstance(refused, Refused)
    assert refused.image is not None
    assert refused.image["n"] == 1


def test_an_unanswered_write_is_applied_all_the_same(scenes: Scenes) -> None:
    scene = scenes(unanswered=1.0)
    assert isinstance(scene.count(), Unknown)
    assert scene.table.rows[COUNT.key]["n"] == 1


@pytest.mark.parametrize("weather", [{"throttled": 1.0}, {"down": True}, {"unwritable": True}])
def test_an_unapplied_write_is_unknown_too(scenes: Scenes, weather: dict[str, Any]) -> None:
    scene = scenes(**weather)
    assert isinstance(scene.count(), Unknown)
    scene.timetable.run(100.0)
    assert COUNT.key not in scene.table.rows
    scene.calm()
    assert isinstance(scene.count(), Written)


def test_a_late_write_lands_when_its_caller_has_long_given_up_or_crashed(scenes: Scenes) -> None:
    scene = scenes(late=1.0, late_seconds=50.0)
    assert isinstance(scene.count(), Unknown)
    scene.process.exit()
    assert COUNT.key not in scene.table.rows
    scene.timetable.run(100.0)
    assert scene.table.rows[COUNT.key]["n"] == 1


def test_a_repeated_write_meets_its_own_effect(scenes: Scenes) -> None:
    scene = scenes(repeated=1.0, late_seconds=1.0)
    met: list[bool] = []

    class Seen:
        def sent(self, process: Process, write: Write) -> None:
            pass

        def got(self, process: Process, key: Key, row: Any) -> None:
            pass

        def wrote(self, process: Process, write: Write, before: Any, after: Any) -> None:
            met.append(after is not None)

    scene.table.witnesses.append(Seen())
    scene.count()
    scene.timetable.run(10.0)
    assert met == [True, False]


def test_the_index_is_paged_and_a_first_page_may_be_empty(scenes: Scenes) -> None:
    for page in (1, 2, 1000):
        scene = scenes(page=page)
        for name in "edcba":
            scene.table.put(connection_key(name), {"owner": "s", "epoch": 1})
        scene.table.put(connection_key("x"), {"owner": "other", "epoch": 1})
        answer = scene.ask(partial(scene.store.owned_by, "s", None))
        sizes, found = [len(answer.items)], list(answer.items)
        while answer.next is not None:
            answer = scene.ask(partial(scene.store.owned_by, "s", answer.next))
            sizes.append(len(answer.items))
            found.extend(answer.items)
        assert found == list("abcde")
        assert max(sizes) <= page
        assert (sizes[0] == 0) is (page == 1)


def test_the_index_and_the_sessions_may_be_stale_while_a_read_of_a_row_is_not(scenes: Scenes) -> None:
    scene = scenes(stale_seconds=10.0)
    session = session_key("s")
    scene.table.put(session, {"seq": 0})
    scene.table.put(connection_key("c"), {"owner": "s", "epoch": 1})
    scene.timetable.run(100.0)
    scene.table.put(session, {"seq": 1})
    scene.table.put(connection_key("c"), {"owner": "t", "epoch": 2})
    shard = next(number for number in range(4) if session_shard(number) == session.pk)
    owners, numbers = set(), set()
    for _ in range(40):
        for owner in "st":
            if scene.ask(partial(scene.store.owned_by, owner, None)).items:
                owners.add(owner)
        numbers.add(scene.ask(lambda: scene.store.sessions(shard, None)).items[0]["seq"])
        assert scene.ask(lambda: scene.store.get(session))["seq"] == 1
    assert owners == {"s", "t"}
    assert numbers == {0, 1}
    scene.timetable.run(200.0)
    assert scene.ask(lambda: scene.store.owned_by("s", None)).items == []


def test_a_process_that_is_cut_off_either_does_not_reach_the_table_or_does_not_hear_of_it(scenes: Scenes) -> None:
    scene = scenes()
    scene.store.cut = "both"
    assert isinstance(scene.count(), Unknown)
    assert COUNT.key not in scene.table.rows
    scene.store.cut = "answers"
    assert isinstance(scene.count(), Unknown)
    assert COUNT.key in scene.table.rows


def test_calls_of_one_process_overlap(scenes: Scenes) -> None:
    scene = scenes()

    async def both() -> float:
        start = scene.process.clock.now()
        await asyncio.gather(*(scene.store.get(COUNT.key) for _ in range(50)))
        return scene.process.clock.now() - start

    assert scene.ask(both) < 0.05
