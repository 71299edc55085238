"""Code on a clock that costs no time."""

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.loop import LocalClock, Loop, Timetable


def run(code: Callable[[LocalClock], Coroutine[Any, Any, None]], seconds: float) -> None:
    """Run a coroutine for so many seconds of its clock, or to its end; what it raises is raised."""
    timetable = Timetable()
    clock = LocalClock(timetable, 1.0, wall=1_800_000_000.0)
    failures: list[BaseException] = []
    loop = Loop(clock, lambda: None, lambda error, _: failures.append(error))
    main = loop.create_task(code(clock))
    try:
        while timetable.now < seconds and not main.done():
            loop.step(None)
            timer = loop.next_timer()
            timetable.run(seconds if timer is None else clock.world(timer))
        assert not failures
        if main.done():
            main.result()
    finally:
        loop.bury()
