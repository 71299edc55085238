"""The clocks of this machine, and the signs that one of them cannot be trusted."""

import time
from collections.abc import Callable

from leases.ports import Clock

JUMP = 1.0
"""A change of wall clock minus monotonic clock above this many seconds is a jump: somebody set the clock, or the whole
machine was frozen with its monotonic clock (KVM stops CLOCK_MONOTONIC of a paused guest) and then told the time."""


class SystemClock:
    """CLOCK_BOOTTIME, which runs on during suspend (PEP 418), where the OS has it; else CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self.now: Callable[[], float] = lambda: time.clock_gettime(clock)
        self.wall: Callable[[], float] = time.time


class Continuity:
    """Notices clock jumps. Not knowing how long this machine was away, a holder must then prove its life anew."""

    __slots__ = ("_clock", "_offset")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.restart()

    def broken(self) -> bool:
        """Whether a clock has jumped since `restart`. Cheap enough to be asked before every side effect."""
        return abs(self._clock.wall() - self._clock.now() - self._offset) > JUMP

    def restart(self) -> None:
        """A jump has been taken account of. No earlier: several threads ask, and none of them may get past it."""
        self._offset = self._clock.wall() - self._clock.now()
