"""Virtual time: one asyncio event loop per simulated process, and one timetable that steps them all.

Nothing here reads a real clock, a selector or a thread. A run is decided by the seed alone: callbacks run in the order
in which they were scheduled, and tasks hash by creation, so that even a `set` of tasks has the same order each time.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

STEP_LIMIT = 100_000
"""Callbacks at one instant of virtual time; more than this is a loop that never sleeps."""

ROUNDING = 1e-9
"""Seconds added until a timer is due on the local clock in spite of floating point."""


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Livelock(Exception):
    """A process does not let time pass."""


class Timetable:
    """World time and what happens next in it. Only the world compares clocks; processes never see this one."""

    __slots__ = ("_heap", "_number", "halted", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.halted = False
        """Set by whoever has seen enough."""
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, act: Callable[..., object], *args: Any) -> None:
        """Call `act(*args)` at world time `when`, or now if that is over."""
        self._number += 1
        heappush(self._heap, (max(when, self.now), self._number, act, args))

    def after(self, delay: float, act: Callable[..., object], *args: Any) -> None:
        """Call `act(*args)` when `delay` seconds of world time have passed."""
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, act, args))

    def run(self, until: float) -> None:
        """Let the world go on until a time."""
        heap = self._heap
        while heap and heap[0][0] <= until and not self.halted:
            self.now, _, act, args = heappop(heap)
            act(*args)
        if not self.halted:
            self.now = until


class LocalClock:
    """The clocks of one machine: they run at a rate of their own, stop when the machine does, and can be set.

    Implements `leases.ports.Clock`.
    """

    __slots__ = ("_boot_ahead", "_local", "_rate", "_set_at", "_timetable", "_wall_ahead", "rate")

    def __init__(self, timetable: Timetable, rate: float, wall: float) -> None:
        self._timetable = timetable
        self.rate = rate
        """Local seconds per world second."""
        self._rate = rate
        self._set_at = timetable.now
        self._local = 1000.0
        self._boot_ahead = 0.0
        self._wall_ahead = wall

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC: what an event loop sleeps by."""
        return self._local + (self._timetable.now - self._set_at) * self._rate

    def now(self) -> float:
        """CLOCK_BOOTTIME: runs on during suspend, but not while a hypervisor has frozen the machine."""
        return self._local + self._boot_ahead + (self._timetable.now - self._set_at) * self._rate

    def wall(self) -> float:
        """Unix seconds, as far as this machine knows."""
        return self.now() + self._wall_ahead

    def world(self, local: float) -> float:
        """The first world time at which `monotonic` shows at least `local`, if the rate stays."""
        when = self._set_at + (local - self._local) / self._rate
        while self._local + (when - self._set_at) * self._rate < local:
            when += ROUNDING
        return when

    def _rebase(self) -> None:
        self._local = self.monotonic()
        self._set_at = self._timetable.now

    def drift(self, rate: float) -> None:
        """Run at another rate from now on; a stopped one, once it goes on."""
        self._rebase()
        self.rate = rate
        if self._rate:
            self._rate = rate

    def stop(self) -> None:
        """The machine is frozen or suspended."""
        self._rebase()
        self._rate = 0.0

    def start(self, boot_ahead: float) -> None:
        """The machine goes on. After a suspend its boot-time clock has run `boot_ahead` seconds meanwhile."""
        self._rebase()
        self._rate = self.rate
        self._boot_ahead += boot_ahead

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._wall_ahead += seconds


class _Handle(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None  # type: ignore[assignment]
        self._args = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<at {self._when}>"


class _Task(asyncio.Task[Any]):
    """Hashes by creation, so that sets of tasks have one order."""

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Loop(asyncio.BaseEventLoop):
    """An event loop whose time is the local clock of its process, stepped by its process."""

    def __init__(
        self, clock: LocalClock, wake: Callable[[], None], failed: Callable[[BaseException, str], None]
    ) -> None:
        super().__init__()
        self._clock = clock
        self._wake = wake
        self._failed = failed
        self._due: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._number = 0
        self._task_number = 0
        self.awake = False
        self.dropped = False

    def time(self) -> float:
        return self._clock.monotonic()

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(0.0, callback, args, context)
        self._due.append(handle)
        if not self.awake:
            self.awake = True
            self._wake()
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, context)
        self._number += 1
        heappush(self._timers, (when, self._number, handle))
        if not self.awake:
            self._wake()
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.monotonic() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        # The number is there before the task is, because its creation already hashes it.
        self._task_number += 1
        task = _Task.__new__(_Task)
        task.number = self._task_number
        _Task.__init__(task, coro, loop=self, name=str(name) if name is not None else "task", context=context)
        return task

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        raise NotImplementedError("there are no threads in the simulation")

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        raise NotImplementedError("there are no threads in the simulation")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(
            error if isinstance(error, BaseException) else RuntimeError("no exception"), str(context.get("message"))
        )

    def next_timer(self) -> float | None:
        """When the first timer is due, on the local clock; None if there is none."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        return timers[0][0] if timers else None

    def step(self, limit: int | None) -> None:
        """Run what is due at this instant, at most `limit` callbacks of it."""
        due, timers = self._due, self._timers
        now = self._clock.monotonic()
        while timers and timers[0][0] <= now:
            due.append(heappop(timers)[2])
        self.awake = True
        events._set_running_loop(self)
        budget = STEP_LIMIT if limit is None else limit
        try:
            while due:
                handle = due.popleft()
                callback, args, context = handle._callback, handle._args, handle._context
                if handle._cancelled:
                    continue
                if budget == 0:
                    due.appendleft(handle)
                    if limit is None:
                        raise Livelock(f"{STEP_LIMIT} callbacks at one instant, next {callback!r}")
                    return
                budget -= 1
                try:
                    if context is None:
                        callback(*args)
                    else:
                        context.run(callback, *args)
                except Exception as error:  # noqa: BLE001 - whatever a callback raises is a finding
                    self._failed(error, f"callback {callback!r}")
                if not due:
                    while timers and timers[0][0] <= now:
                        due.append(heappop(timers)[2])
        finally:
            self.awake = bool(due)
            events._set_running_loop(None)

    def drop(self) -> None:
        """Nothing of this loop runs ever again. What is suspended stays suspended until `bury`."""
        self.dropped = True
        self.awake = True
        self._kept = asyncio.all_tasks(self)
        self._due.clear()
        self._timers.clear()

    def bury(self) -> None:
        """Free what is suspended, after the last step of the world."""
        if self.is_closed():
            return
        if not self.dropped:
            self.drop()
        for task in self._kept:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                # One that awaits while it is closed says so; there is nobody left to wait for.
                with suppress(RuntimeError):
                    coroutine.close()
        self._kept.clear()
        self._due.clear()
        self._timers.clear()
        self.close()
