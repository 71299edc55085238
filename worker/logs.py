"""Structured logs of the worker: one JSON object per line on stdout, with the keys of `telemetry.logs`.

Never log a URL's query, a header's value, an onOpen payload, or the text of an error that may quote one.
"""

import traceback
from pathlib import Path

from aws_lambda_powertools import Logger

from telemetry.logs import Field


def logger() -> Logger:
    """The worker's logger. Service and level come from POWERTOOLS_SERVICE_NAME and POWERTOOLS_LOG_LEVEL."""
    return Logger(utc=True, use_rfc3339=True, location="%(module)s.%(funcName)s:%(lineno)d")


def fault(error: Exception) -> dict[str, str]:
    """What to log of an error that nobody expected: its type, and where it was raised, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        Field.REASON: type(error).__name__,
        Field.STACK: " > ".join(f"{Path(frame.filename).stem}.{frame.name}:{frame.lineno}" for frame in frames),
    }


class Recurring:
    """Which of the events of one connection that come again and again are worth a line.

    The first one, the first one for each other reason, and then one for a reason in `seconds`.
    """

    __slots__ = ("_seconds", "_told")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._told: dict[str, tuple[float, int]] = {}

    def due(self, reason: str, now: float) -> int:
        """How many events a line would stand for now; 0 if there is to be none. `now` is in seconds."""
        told_at, untold = self._told.get(reason, (float("-inf"), 0))
        due = now - told_at >= self._seconds
        self._told[reason] = (now, 0) if due else (told_at, untold + 1)
        return untold + 1 if due else 0
