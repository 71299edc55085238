"""Imported by every Python that starts with this folder on PYTHONPATH, and with libfaketime.

libfaketime 0.9.10 answers the absolute clock_nanosleep(2) of `time.sleep` with EINVAL; select(2) it leaves alone.
"""

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex, /) -> None:
    """See `time.sleep`."""
    select.select([], [], [], float(seconds))


time.sleep = sleep
