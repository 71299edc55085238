"""Virtual time behaves as asyncio does, and processes stop, freeze and crash as processes do."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.simulation.loop import STEP_LIMIT, Livelock, LocalClock, Timetable
from tests.simulation.processes import Machine, Process


class Stage:
    """One machine with one process."""

    def __init__(self, rate: float = 1.0) -> None:
        self.timetable = Timetable()
        self.clock = LocalClock(self.timetable, rate, 1e9)
        self.machine = Machine(self.timetable, "m", self.clock)
        self.errors: list[str] = []
        self.process = Process(self.timetable, "p", self.clock, lambda process, what: self.errors.append(what))
        self.machine.add(self.process)
        self.seen: list[Any] = []

    def see(self, what: Any) -> None:
        self.seen.append((round(self.timetable.now, 6), what))

    def play(self, code: Callable[[], Coroutine[Any, Any, None]], until: float) -> list[Any]:
        self.process.run(code())
        self.timetable.run(until)
        return self.seen


@pytest.fixture
def stages() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(rate: float = 1.0) -> Stage:
        made.append(Stage(rate))
        return made[-1]

    yield make
    for stage in made:
        stage.process.bury()


Stages = Callable[..., Stage]


def test_sleeps_timeouts_queues_and_groups_work(stages: Stages) -> None:
    stage = stages()
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def put() -> None:
        await asyncio.sleep(2)
        queue.put_nowait("put")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(put())
            stage.see(await queue.get())
        try:
            async with asyncio.timeout(3):
                await asyncio.sleep(10)
        except TimeoutError:
            stage.see("timeout")
        stage.see(sum(await asyncio.gather(*(asyncio.sleep(1, n) for n in range(4)))))
        done, waiting = await asyncio.wait({asyncio.ensure_future(asyncio.sleep(n)) for n in (1, 9)}, timeout=4)
        stage.see((len(done), len(waiting)))

    assert stage.play(main, 60) == [(2, "put"), (5, "timeout"), (6, 6), (10, (1, 1))]
    assert stage.errors == []


def test_a_local_clock_runs_at_its_own_rate_and_never_wakes_anybody_early(stages: Stages) -> None:
    stage = stages(rate=1.05)

    async def main() -> None:
        due = stage.clock.monotonic() + 10.5
        await asyncio.sleep(10.5)
        assert stage.clock.monotonic() >= due
        stage.see("awake")

    assert stage.play(main, 60) == [(10, "awake")]


def test_a_stopped_process_finds_its_time_gone(stages: Stages) -> None:
    stage = stages()

    async def main() -> None:
        await asyncio.sleep(1)
        stage.see(round(stage.clock.now() - 1000, 6))

    stage.timetable.at(0.5, stage.process.stop)
    stage.timetable.at(20.0, stage.process.go_on)
    assert stage.play(main, 60) == [(20, 20)]


def test_a_process_can_stop_between_two_callbacks_of_one_instant(stages: Stages) -> None:
    stage = stages()

    async def one(name: str) -> None:
        await asyncio.sleep(1)
        stage.see(name)

    async def main() -> None:
        await asyncio.gather(one("first"), one("second"))

    stage.timetable.at(0.5, stage.process.pause_amid, 3, 7.0)
    assert stage.play(main, 60) == [(1, "first"), (8, "second")]


@pytest.mark.parametrize(("boot_ahead", "expected"), [(0.0, 2.0), (10.0, 12.0)])
def test_a_frozen_machine_loses_time_which_its_boot_clock_may_know(
    stages: Stages, boot_ahead: float, expected: float
) -> None:
    stage = stages()
    start = stage.clock.now()

    async def main() -> None:
        await asyncio.sleep(2)
        stage.see(stage.clock.now() - start)

    stage.timetable.at(1.0, stage.machine.freeze)
    stage.timetable.at(11.0, stage.machine.thaw, boot_ahead)
    assert stage.play(main, 60) == [(12, expected)]


def test_no_code_of_a_crashed_process_runs_and_nothing_is_warned_of(stages: Stages) -> None:
    stage = stages()
    gone: list[str] = []

    async def main() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(5))
                await asyncio.Event().wait()
        finally:
            stage.see("finally")

    stage.process.on_exit.append(lambda: gone.append("exit"))
    stage.timetable.at(1.0, stage.process.exit)
    assert stage.play(main, 60) == []
    assert gone == ["exit"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stage.process.bury()
        gc.collect()
    assert stage.errors == []


def test_an_error_that_nobody_catches_is_told(stages: Stages) -> None:
    stage = stages()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(dict[str, str]().__getitem__, "missing")

    stage.play(main, 1)
    assert len(stage.errors) == 1
    assert "KeyError" in stage.errors[0]


def test_a_process_that_lets_no_time_pass_is_caught(stages: Stages) -> None:
    stage = stages()

    async def spin() -> None:
        for _ in range(STEP_LIMIT):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(spin() for _ in range(2)))

    with pytest.raises(Livelock):
        stage.play(main, 1)


def test_sets_of_tasks_have_one_order(stages: Stages) -> None:
    orders: list[Any] = []
    for _ in range(3):
        stage = stages()

        async def main(stage: Stage = stage) -> None:
            ballast = [object() for _ in range(len(orders) * 1000)]
            tasks = {asyncio.ensure_future(asyncio.sleep(0, n)) for n in range(30)}
            stage.see([await task for task in tasks])
            del ballast

        orders.append(stage.play(main, 1))
    assert orders[0] == orders[1] == orders[2]
