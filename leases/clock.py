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
        self._offset = clock.wall() - clock.now()

    def broken(self) -> bool:
        """Whether a clock has jumped since the last call. Cheap enough to be asked before every side effect."""
        offset = self._clock.wall() - self._clock.now()
        jumped = abs(offset - self._offset) > JUMP
        if jumped:
            self._offset = offset
        return jumped
