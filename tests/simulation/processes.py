"""Simulated processes and the machines they run on, with what can happen to either."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.loop import LocalClock, Loop, Timetable


class Process:
    """Code on an event loop. It can be stopped (SIGSTOP), go on, and crash; its machine can freeze under it."""

    __slots__ = (
        "_amid",
        "_armed_for",
        "_faults",
        "_stopped",
        "_timetable",
        "alive",
        "calm_since",
        "clock",
        "loop",
        "name",
        "on_exit",
    )

    def __init__(
        self, timetable: Timetable, name: str, clock: LocalClock, failed: Callable[["Process", str], None]
    ) -> None:
        self._timetable = timetable
        self.name = name
        self.clock = clock
        self.loop = Loop(
            clock, self._wake, lambda error, what: failed(self, f"{type(error).__name__}: {error} ({what})")
        )
        self.alive = True
        self.on_exit: list[Callable[[], None]] = []
        """What the outside does when the process is gone: its sockets close, its parent reaps it."""
        self.calm_since = float("-inf")
        """When the last fault of its own (a stop, a freeze, a cut) ended."""
        self._faults = 0
        self._stopped = 0
        self._amid: tuple[int, float] | None = None
        self._armed_for: float | None = None

    def run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task in this process."""
        return self.loop.create_task(coroutine)

    def exit(self) -> None:
        """The process is gone, at the end of what it is doing or by SIGKILL. No code of it runs any more."""
        if not self.alive:
            return
        self.alive = False
        self.loop.drop()
        for act in self.on_exit:
            act()

    def call(self, act: Callable[..., object], *args: Any) -> None:
        """Have something from outside (an answer, a frame) found by the process when it next runs."""
        if self.alive:
            self.loop.call_soon(act, *args)

    def pause_amid(self, callbacks: int, seconds: float) -> None:
        """Stop for `seconds` amid its next burst of work, after so many callbacks, rather than between two bursts."""
        self._amid = callbacks, seconds

    def stop(self) -> None:
        """SIGSTOP, or its machine stops. Calls nest."""
        self._stopped += 1
        self.disturb()

    def go_on(self) -> None:
        """SIGCONT, or its machine goes on."""
        self._stopped -= 1
        self.calm()
        self._wake()

    @property
    def stopped(self) -> bool:
        """Whether it is not being run at the moment."""
        return self._stopped > 0

    def disturb(self) -> None:
        """Note that a fault of its own begins. Calls nest."""
        self._faults += 1

    def calm(self) -> None:
        """Note that a fault of its own ends."""
        self._faults -= 1
        self.calm_since = self._timetable.now

    def undisturbed_for(self) -> float:
        """World seconds since the last fault of its own ended; 0 while one is in force."""
        return 0.0 if self._faults else self._timetable.now - self.calm_since

    def rearm(self) -> None:
        """The clock has changed: find anew when the next timer is due."""
        self._armed_for = None
        self._wake()

    def _wake(self) -> None:
        if not self.alive or self._stopped:
            return
        timetable = self._timetable
        if self.loop.awake:
            when = timetable.now
        else:
            due = self.loop.next_timer()
            if due is None:
                return
            when = self.clock.world(due)
        armed = self._armed_for
        if armed is None or when < armed:
            self._armed_for = when
            timetable.at(when, self._step, when)

    def _step(self, when: float) -> None:
        if when != self._armed_for:
            return
        self._armed_for = None
        if not self.alive or self._stopped:
            return
        if self._amid is None:
            self.loop.step(None)
            self._wake()
        else:
            (callbacks, seconds), self._amid = self._amid, None
            self.loop.step(callbacks)
            self.stop()
            self._timetable.after(seconds, self.go_on)

    def bury(self) -> None:
        """Free everything after the last step of the world."""
        self.loop.bury()


class Machine:
    """A task of the fleet: processes that share clocks and fate."""

    __slots__ = ("_timetable", "clock", "frozen", "name", "processes")

    def __init__(self, timetable: Timetable, name: str, clock: LocalClock) -> None:
        self._timetable = timetable
        self.name = name
        self.clock = clock
        self.processes: list[Process] = []
        self.frozen = False

    def add(self, process: Process) -> None:
        """A process starts here."""
        self.processes.append(process)
        if self.frozen:
            process.stop()

    def freeze(self) -> None:
        """All its clocks stop, and with them all that runs here."""
        self.frozen = True
        for process in self.processes:
            process.stop()
        self.clock.stop()

    def thaw(self, boot_ahead: float) -> None:
        """It goes on as if nothing had happened, unless its boot-time clock ran `boot_ahead` seconds on."""
        self.frozen = False
        self.clock.start(boot_ahead)
        for process in self.processes:
            process.rearm()
            process.go_on()

    def drift(self, rate: float) -> None:
        """Its clocks run at another rate from now on."""
        self.clock.drift(rate)
        for process in self.processes:
            process.rearm()

    def lose(self) -> None:
        """The host is gone, with all that runs on it."""
        for process in self.processes:
            process.exit()
