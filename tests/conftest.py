"""What more than one kind of test needs: an emulator, and the deployed stacks on one."""

import signal
from collections.abc import Iterator

import pytest

from local import emulator
from local.aws import Aws
from local.processes import Processes
from local.system import Deployed, System, deployed, system


def pytest_configure() -> None:
    """Started in the background of a shell, this process ignores SIGINT, and would pass that on to what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Child processes that end with the test run, even if it is killed."""
    with Processes("tests") as processes:
        yield processes


@pytest.fixture(scope="session")
def aws(processes: Processes) -> Iterator[Aws]:
    """An empty emulator, shared by all tests of the run: use names of your own."""
    child, aws = emulator.start(processes)
    yield aws
    child.stop(grace=5.0)
    processes.forget(child)


@pytest.fixture(scope="session")
def stacks(processes: Processes) -> Iterator[Deployed]:
    """The deployed stacks on an emulator of their own, without workers, shared by all tests of the run."""
    with deployed(processes, {}) as stacks:
        yield stacks


@pytest.fixture
def fleet(stacks: Deployed, processes: Processes) -> Iterator[System]:
    """Worker tasks on the shared stacks: call `start`; they end with the test."""
    with system(stacks, processes, {}) as running:
        yield running
