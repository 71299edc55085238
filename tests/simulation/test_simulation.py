"""The protocol keeps its promises in random worlds, and a seed always makes the same world."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.mutations import ROOT
from tests.simulation.run import fingerprint, shown, simulate

SEEDS = range(60)
NOT_VACUOUS = (
    "takeovers",
    "dead by exit",
    "dead by judge",
    "event HoldEnded",
    "event Transferred",
    "event SessionLost",
    "park applied",
    "stop applied",
    "fail applied",
    "calls unanswered",
    "calls late",
    "calls repeated",
)


def test_no_promise_is_broken_and_everything_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed)
        assert not outcome.violations, shown(outcome, 60)
        counts.update(outcome.counts)
    assert [name for name in NOT_VACUOUS if not counts[name]] == []


@pytest.mark.parametrize("seed", [3, 11, 42])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert fingerprint(simulate(seed)) == fingerprint(simulate(seed))


def test_a_seed_does_not_depend_on_the_hashes_of_the_interpreter() -> None:
    traces = set()
    for hash_seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation.run", "--seed", "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout.splitlines()[-1])
    assert len(traces) == 1


def test_seeds_differ() -> None:
    assert len({fingerprint(simulate(seed)) for seed in range(5)}) == 5
