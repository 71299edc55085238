"""Keeps Python's cyclic garbage collector off objects that live for days.

A full collection visits every object of every connection: a second and more at 10,000 of them, in which nothing is read
and no heartbeat is sent. Sockets make no cycles, so what a storm of connects has left is taken out of its sight.
"""

import asyncio
import gc

STORM = 500
"""Connections opened since the last time that are worth it."""

CALM_SECONDS = 2.0
"""The storm is over when nothing was opened for this long: what a handshake needs is freed by then."""


YOUNG_OBJECTS = 10_000
"""So many new objects between two looks at the youngest, instead of 700: messages come and go without any cycle, and a
look at each of them on its way costs a tenth of what is done to it."""


class Collector:
    """Freezes what is there after a storm of connects (`gc.freeze`), and looks at what is new less often."""

    __slots__ = ("_loop", "_opened", "_thresholds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._opened = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()
        gc.set_threshold(YOUNG_OBJECTS, *self._thresholds[1:])

    def opened(self) -> None:
        """One more WebSocket was opened."""
        self._opened += 1
        if self._opened >= STORM:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CALM_SECONDS, self._freeze)

    def close(self) -> None:
        """Let everything be collected again."""
        if self._timer is not None:
            self._timer.cancel()
        gc.unfreeze()
        gc.set_threshold(*self._thresholds)

    def _freeze(self) -> None:
        self._opened = 0
        self._timer = None
        gc.freeze()
