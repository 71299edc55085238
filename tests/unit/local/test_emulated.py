"""What differs in our emulator from ministack as it comes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ministack.services import lambda_svc

from local.emulated import take_turns

AT_ONCE = 3
CALLS = 12


def test_functions_take_turns_and_all_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Barrier(AT_ONCE)
    running = 0
    most = 0
    lock = threading.Lock()

    def function(*call: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.wait(10)
        with lock:
            running -= 1
        return call

    monkeypatch.setattr(lambda_svc, "_execute_function_warm", function)
    take_turns(AT_ONCE)
    with ThreadPoolExecutor(CALLS) as pool:
        answers = list(pool.map(lambda number: lambda_svc._execute_function_warm({}, {}, number), range(CALLS)))

    assert answers == [({}, {}, number) for number in range(CALLS)]
    assert most == AT_ONCE
