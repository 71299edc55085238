"""Run seeds: `python -m tests.simulation.run --seeds N [--first K] [--jobs 2]`; `--seed K --trace` replays one."""

import argparse
import gc
import hashlib
import signal
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import Any

from tests.simulation.scenario import Outcome, Scenario

BATCH = 25
TRACE_LINES = 40
STUCK_SECONDS = 15
"""Of computing, for one seed."""


class Stuck(SystemExit):
    """A process of the simulation computes for ever. Passes through tasks, as `SystemExit` does."""


def _stuck(number: int, frame: object) -> None:
    raise Stuck


def simulate(seed: int) -> Outcome:
    """One seed, from the beginning to convergence or the first violation. Raises `Stuck`."""
    # What a crashed process left suspended must stay so until it is buried: the cyclic collector would close it, and
    # so run its code.
    collecting = gc.isenabled()
    gc.disable()
    previous = signal.signal(signal.SIGVTALRM, _stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_SECONDS)
    try:
        return Scenario(seed).run()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
        if collecting:
            gc.enable()


def fingerprint(outcome: Outcome) -> str:
    """A hash of all that happened."""
    return hashlib.sha256("\n".join(map(repr, outcome.trace)).encode()).hexdigest()


def shown(outcome: Outcome, lines: int | None) -> str:
    """The violations and the last events that bear on them."""
    violated = [entry for entry in outcome.trace if entry[1] == "VIOLATION"]
    connection = violated[0][2] if violated else None
    entries = outcome.trace
    if lines is not None:
        entries = [entry for entry in entries if _bears_on(entry, connection)][-lines:]
    text = "\n".join(f"  {entry[0]:9.4f}  {'  '.join(map(_plain, entry[1:]))}" for entry in entries)
    return "\n".join([f"seed {outcome.seed}: {line}" for line in outcome.violations] + [text])


def _plain(value: Any) -> str:
    if isinstance(value, dict) and "handoff" in value:
        value = value | {"handoff": None if value["handoff"] is None else value["handoff"]["last_seq"]}
    return value if isinstance(value, str) else repr(value)


def _bears_on(entry: tuple[Any, ...], connection: str | None) -> bool:
    if entry[1] in ("FAULT", "fault on", "open", "declare_dead", "VIOLATION", "drain"):
        return True
    if type(entry[1]).__name__.startswith(("Session", "Hold", "DeclaredDead")):
        return True
    if connection is None:
        return entry[1] not in ("landed", "checkpoint", "status")
    return connection in entry or getattr(entry[1], "connection", None) == connection


def batch(seeds: list[int], keep_going: bool) -> list[Outcome]:
    """Some seeds in one process; only violations keep their trace, and the first ends it unless told to keep going."""
    outcomes = []
    for seed in seeds:
        try:
            outcome = simulate(seed)
        except Stuck:
            where = traceback.format_exc(limit=-6)
            outcome = Outcome(seed, [f"a process never lets go: {where}"], 0.0, 0.0, {}, [])
        if not outcome.violations:
            outcome.trace.clear()
        outcomes.append(outcome)
        if outcome.violations and not keep_going:
            break
    gc.collect()
    return outcomes


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violations")
    asked = parser.parse_args()
    if asked.seed is not None:
        outcome = simulate(asked.seed)
        print(shown(outcome, None if asked.trace else TRACE_LINES) if asked.trace or outcome.violations else "")
        print(f"seed {outcome.seed}: {outcome.virtual_seconds:.1f} virtual seconds, trace {fingerprint(outcome)[:16]}")
        return 1 if outcome.violations else 0
    return _many(list(range(asked.first, asked.first + asked.seeds)), asked.jobs, asked.keep_going)


def _many(seeds: list[int], jobs: int, keep_going: bool) -> int:
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    virtual, converged, bad = 0.0, [], []
    batches = [seeds[n : n + BATCH] for n in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for outcomes in pool.map(batch, batches, repeat(keep_going)):
            for outcome in outcomes:
                counts.update(outcome.counts)
                virtual += outcome.virtual_seconds
                converged.append(outcome.converged_after)
                if outcome.violations:
                    bad.append(outcome)
                    print(shown(outcome, TRACE_LINES), flush=True)
            if bad and not keep_going:
                pool.shutdown(cancel_futures=True)
                break
    took = time.perf_counter() - started
    print(
        f"{len(converged)} seeds, {virtual / 3600:.1f} virtual hours in {took:.0f} s; {len(bad)} broke a promise",
        end="",
    )
    print(": " + " ".join(str(outcome.seed) for outcome in bad) if bad else "")
    converged.sort()
    if converged:
        print(f"calm to convergence: median {converged[len(converged) // 2]:.0f} s, longest {converged[-1]:.0f} s")
    for name, count in sorted(counts.items()):
        print(f"  {name:32} {count}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
