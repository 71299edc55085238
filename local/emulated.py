"""The emulator's process: ministack, in which functions take turns.

On AWS every call that finds no idle function gets a new one, with a processor of its own. Here functions, workers,
upstream and store share the processors of one machine, and a function needs a second of one to start. So a store that
is slow for a moment would keep functions busy, more of them would be started, and these would starve the store.
"""

import os
import threading
from typing import Any

from ministack.app import main
from ministack.services import lambda_svc

AT_ONCE = 2 * (os.cpu_count() or 1)
"""Calls that run at a time; others wait. None of ours calls another function, which would wait for ever."""


def take_turns(at_once: int) -> None:
    """Bound the calls of all functions that run at a time."""
    turns = threading.BoundedSemaphore(at_once)
    run = lambda_svc._execute_function_warm  # noqa: SLF001 - the emulator, at this exact version, has no setting for it

    def in_turn(*call: Any) -> Any:
        with turns:
            return run(*call)

    lambda_svc._execute_function_warm = in_turn  # noqa: SLF001 - as above


if __name__ == "__main__":
    take_turns(AT_ONCE)
    main()
