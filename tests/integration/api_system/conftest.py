"""The whole system, shared by the tests of this folder: each makes connections of its own."""

from collections.abc import Iterator

import pytest

from local.processes import Processes
from local.witness import Witness
from tests.support.watched import Watched, watched, witness


@pytest.fixture(scope="session")
def fleet(processes: Processes) -> Iterator[Watched]:
    """Two tasks with one worker process each."""
    with watched(processes, {}) as fleet:
        fleet.start(2)
        yield fleet


@pytest.fixture(scope="session")
def upstream(processes: Processes) -> Iterator[Witness]:
    """The demo upstream: a path is a feed, and stands for a connection."""
    with witness(processes) as upstream:
        yield upstream
