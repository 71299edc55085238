"""Check the formal model of the lease protocol with Spin; exit code 1 if any verdict is not the expected one.

Three kinds of run:

- ``holds``: the whole state space of a model is searched without an error (no bit-state hashing, no limit reached);
- ``refuted``: the same model with one rule of the protocol broken (``-DM_...``); Spin must find a counterexample;
- ``reached``: the unbroken model with ``assert(false)`` where something interesting happens (``-DREACH=...``); Spin
  must get there, which shows that what ``holds`` is not empty.

``python spec/check.py`` runs all of them, ``--only TEXT`` those whose name contains TEXT, ``--trace`` prints their
counterexamples as well, ``--deep`` adds larger bounds (minutes, 4 GB).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

SPEC = Path(__file__).resolve().parent
BUILD = SPEC / "build"
MEMORY_MIB = 3900
"""For all runs that go on at once."""
SECONDS = 900
"""Most that one tool may take; ordinarily it takes seconds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One model under one set of definitions, and the verdict that it must end in."""

    model: str
    name: str
    expected: str
    defines: tuple[str, ...]
    claim: str

    @property
    def liveness(self) -> bool:
        return self.model == "liveness"


@dataclass(frozen=True, slots=True)
class Result:
    """What Spin said: figures as it printed them, and the verdict drawn from them."""

    run: Run
    verdict: str
    states: int
    transitions: int
    depth: int
    memory_mib: float
    seconds: float
    note: str


INVARIANT_1 = "1: epochs land in order"
INVARIANT_2 = "2: no lower-epoch checkpoint"
INVARIANT_3 = "3: settled for ever"
INVARIANT_4 = "4: healthy is not declared"
LOSSLESS = "1, and none lost or doubled"

HANDOVER = ("MESSAGES=2", "NONCES=2", "EPOCHS=3")
RELEASES = ("MESSAGES=0", "NONCES=1", "EPOCHS=3", "RELEASING=true", "CHANGES=1")
LEAVES = ("MESSAGES=2", "NONCES=1", "EPOCHS=3", "RELEASING=true")
DECLINES = ("MESSAGES=0", "NONCES=1", "EPOCHS=3", "DECLINES_AFTER_READY")
ANY_CLOCKS = ("MESSAGES=0", "NONCES=2", "EPOCHS=2", "RELEASING=true", "DECLINES_AFTER_READY", "ANY_CLOCKS")
ANY_CLOCKS_LONGER = ("MESSAGES=0", "NONCES=2", "EPOCHS=3", "DECLINES_AFTER_READY", "ANY_CLOCKS")
LIVENESS = ("NONCES=1", "LOSSES=1", "CHANGES=1")

PROOFS = (
    Run("death", "death", "holds", ("EPOCHS=2",), INVARIANT_1),
    Run("exit", "exit", "holds", ("EPOCHS=4", "CHANGES=1"), INVARIANT_1),
    Run("handover", "handover", "holds", HANDOVER, LOSSLESS),
    Run("handover", "handover, releases and API", "holds", RELEASES, INVARIANT_1),
    Run("handover", "handover, releases beside a standby", "holds", LEAVES, LOSSLESS),
    Run("handover", "handover, late declines", "holds", DECLINES, INVARIANT_1),
    Run("handover", "any clocks", "holds", ANY_CLOCKS, INVARIANT_2),
    Run("handover", "any clocks, three owners", "holds", ANY_CLOCKS_LONGER, INVARIANT_2),
    Run("outage", "outage", "holds", (), INVARIANT_4),
    Run("liveness", "liveness", "holds", LIVENESS, INVARIANT_3),
)

DEEP_PROOFS = (
    Run("death", "death, deep", "holds", ("EPOCHS=3",), INVARIANT_1),
    Run("exit", "exit, deep", "holds", ("EPOCHS=4", "CHANGES=2"), INVARIANT_1),
    Run("liveness", "liveness, deep", "holds", ("NONCES=2", "LOSSES=2", "CHANGES=1"), INVARIANT_3),
    Run("handover", "any clocks, deep", "holds", (*ANY_CLOCKS_LONGER, "RELEASING=true"), INVARIANT_2),
)


def broken(model: str, rule: str, defines: Sequence[str], what: str) -> Run:
    """The run of a model in which ``rule`` is broken."""
    return Run(model, rule.lower().replace("_", " "), "refuted", (*defines, f"M_{rule}"), what)


MUTATIONS = (
    *(
        broken("death", rule, ("EPOCHS=2",), INVARIANT_1)
        for rule in (
            "STAMPED_ON_ANSWER",
            "NO_MARGIN",
            "MARGIN_WITHOUT_RHO",
            "DEAD_WITHOUT_SEQ",
            "UNOBSERVED_DEAD_AT_ONCE",
            "ABSENT_DEAD_AT_ONCE",
            "UNKNOWN_BEAT_TAKEN_AS_OK",
            "UNKNOWN_CLAIM_TAKEN_AS_OK",
            "RELEASE_BEFORE_DRAIN",
            "LOST_RELEASES_BEFORE_DRAIN",
        )
    ),
    *(
        broken("exit", rule, ("EPOCHS=4", "CHANGES=2"), INVARIANT_1)
        for rule in (
            "NO_WAIT",
            "WAIT_WITHOUT_RHO",
            "TRANSFER_DURING_WAIT",
            "WAIT_ONLY_AFTER_EXIT",
            "WAIT_ONLY_AFTER_DEATH",
        )
    ),
    *(
        broken("handover", rule, HANDOVER, LOSSLESS)
        for rule in (
            "TRANSFER_BEFORE_FLUSH",
            "STOPS_READING_WITHOUT_OVERLAP",
            "READY_WITHOUT_NONCE",
            "DECLINES_AFTER_READY",
            "UNKNOWN_TRANSFER_TAKEN_AS_LOST",
        )
    ),
    broken("handover", "CLAIM_KEEPS_AN_OLD_HANDOFF", LEAVES, LOSSLESS),
    broken("handover", "GOES_ON_AFTER_REFUSED_TRANSFER", DECLINES, INVARIANT_1),
    broken("handover", "REGRANT_KEEPS_EPOCH", DECLINES, INVARIANT_1),
    broken("handover", "GOES_ON_AFTER_REFUSED_RELEASE", (*RELEASES[:-1], "CHANGES=2"), INVARIANT_1),
    broken("handover", "PARK_IGNORES_GENERATION", (*RELEASES[:-1], "CHANGES=2"), "3: parks only the unwanted"),
    broken("handover", "CLAIM_IGNORES_DESIRED", RELEASES, "3: claims only the wanted"),
    broken("handover", "EPOCH_NOT_RAISED", ANY_CLOCKS, INVARIANT_2),
    broken("handover", "CHECKPOINT_WITHOUT_EPOCH", ANY_CLOCKS, INVARIANT_2),
    *(broken("outage", rule, (), INVARIANT_4) for rule in ("OBSERVATIONS_KEPT", "DECLARES_WITHOUT_OWN_W")),
    *(
        broken("liveness", rule, LIVENESS, INVARIANT_3)
        for rule in (
            "NO_AUDIT",
            "SWEPT_ONLY_ONCE",
            "CLAIMER_WAITS_FOR_NEXT",
            "UNWANTED_NOT_FINALIZED",
            "REFUSED_TRANSFER_IS_KEPT",
        )
    ),
)

REACHES: dict[str, tuple[str, ...]] = {
    "death": ("EPOCHS=3",),
    "exit": ("EPOCHS=4", "CHANGES=2"),
    "handover": (*RELEASES[:-1], "CHANGES=2"),
    "outage": (),
}
REACHES_OTHERWISE: dict[str, tuple[str, ...]] = {
    "TRANSFERRED_AND_EMITTED": HANDOVER,
    "HANDED_BACK": HANDOVER,
    "BUFFER_OVERLAP_DROPPED": HANDOVER,
    "CLAIMED_BEHIND_A_RELEASE": LEAVES,
    "STALE_READY_REFUSED": HANDOVER,
    "TRANSFER_REFUSED_THEN_REGRANT": DECLINES,
    "LATE_CHECKPOINT_REFUSED": ANY_CLOCKS,
}


def reaches() -> tuple[Run, ...]:
    """One run per ``R_...`` that a model names: a situation added to a model is asked for without a second list."""
    found = []
    for model, usual in REACHES.items():
        for situation in re.findall(r"^#define R_(\w+) \d+$", (SPEC / f"{model}.pml").read_text(), re.MULTILINE):
            defines = (*REACHES_OTHERWISE.get(situation, usual), f"REACH=R_{situation}")
            found.append(Run(model, situation.lower().replace("_", " "), "reached", defines, "is reachable"))
    return tuple(found)


def output_of(command: Sequence[str], directory: Path) -> str:
    """Runs one tool to its end.

    Raises:
        RuntimeError: it failed or took longer than ``SECONDS``.
    """
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as stop:
        raise RuntimeError(f"{command[0]} took more than {SECONDS} s") from stop
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said[-2000:]}")
    return said


def figure(pattern: str, said: str) -> float:
    found = re.search(pattern, said, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def verdict_of(run: Run, said: str) -> tuple[str, str]:
    """The verdict, and why if it is no verdict at all."""
    errors = re.search(r"errors: (\d+)", said)
    if errors is None:
        return "no result", said.strip().splitlines()[-1] if said.strip() else "no output"
    if errors.group(1) != "0":
        return ("reached" if run.expected == "reached" else "refuted"), ""
    for truncated in ("max search depth too small", "Search not completed", "out of memory", "Bit statespace search"):
        if truncated in said:
            return "truncated", truncated
    return ("not reached" if run.expected == "reached" else "holds"), ""


def directory_of(run: Run) -> Path:
    return BUILD / f"{run.model}-{re.sub(r'[^a-z0-9]+', '-', run.name)}"


def check(run: Run, memory_mib: int) -> Result:
    """Generates, compiles and runs the verifier of one run in a directory of its own."""
    directory = directory_of(run)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for source in SPEC.glob("*.pml"):
        shutil.copy(source, directory)
    whole = run.expected == "holds"
    kind = ("-DNFAIR=8",) if run.liveness else ("-DSAFETY", "-DNOCLAIM", *(() if whole else ("-DBFS",)))
    options = ("-a", "-f") if run.liveness else ()
    started = time.monotonic()
    try:
        output_of(("spin", *(f"-D{define}" for define in run.defines), "-a", f"{run.model}.pml"), directory)
        limit = f"-DMEMLIM={memory_mib}"
        output_of(("gcc", "-O2" if whole else "-O1", "-w", *kind, limit, "-o", "pan", "pan.c"), directory)
        said = output_of(("./pan", *options, "-E", "-m2000000" if whole else "-m100000", "-w22"), directory)
    except RuntimeError as failure:
        return Result(run, "no result", 0, 0, 0, 0.0, time.monotonic() - started, str(failure))
    (directory / "pan.txt").write_text(said)
    verdict, note = verdict_of(run, said)
    return Result(
        run,
        verdict,
        int(figure(r"^\s*([0-9.e+]+) states, stored", said)),
        int(figure(r"^\s*([0-9.e+]+) transitions", said)),
        int(figure(r"depth reached (\d+)", said)),
        figure(r"([0-9.]+)\s+total actual memory usage", said),
        time.monotonic() - started,
        note,
    )


def trace(run: Run) -> str:
    """The steps of the counterexample that the last run of ``run`` left, without bookkeeping of Spin's own."""
    defines = (f"-D{define}" for define in run.defines)
    said = output_of(("spin", *defines, "-t", "-p", f"{run.model}.pml"), directory_of(run))
    noise = re.compile(
        r"sub-sequence|goto|\[IF\]|\[DO\]|\[else\]|:init:|<valid end state>|\[\(1\)\]|row\.(next\.\w+|hand\w+) = 0"
    )
    steps = (line for line in said.splitlines() if re.match(r"\s*\d+:\s+proc.*\[|\s*<<<<<|spin: text", line))
    return "\n".join(line for line in steps if not noise.search(line))


HEADER = ("model", "run", "property", "states", "transitions", "depth", "MiB", "s", "verdict")
ROW = "{:<9} {:<36} {:<30} {:>10} {:>12} {:>7} {:>6} {:>6}  {}"


def line(result: Result) -> str:
    ok = result.verdict == result.run.expected
    said = result.verdict if ok else f"{result.verdict.upper()}, expected {result.run.expected} {result.note}"
    run = result.run
    figures = (f"{result.states:,}", f"{result.transitions:,}", f"{result.depth:,}")
    return ROW.format(
        run.model, run.name, run.claim, *figures, f"{result.memory_mib:.0f}", f"{result.seconds:.1f}", said
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the formal model of the lease protocol with Spin.")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose model or name contains TEXT")
    parser.add_argument("--trace", action="store_true", help="print the counterexamples of these runs")
    parser.add_argument("--deep", action="store_true", help="add runs with larger bounds")
    chosen = parser.parse_args(arguments)
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"{tool} is not installed: apt-get install -y spin gcc", file=sys.stderr)
            return 2
    runs = (*PROOFS, *(DEEP_PROOFS if chosen.deep else ()), *MUTATIONS, *reaches())
    runs = tuple(run for run in runs if chosen.only in f"{run.model} {run.name}")
    if not runs:
        print(f"no run is named like {chosen.only!r}", file=sys.stderr)
        return 2
    started = time.monotonic()
    print(ROW.format(*HEADER), flush=True)
    failed = 0
    workers = 1 if chosen.deep else min(2, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for result in pool.map(partial(check, memory_mib=MEMORY_MIB // workers), runs):
            print(line(result), flush=True)
            wrong = result.verdict != result.run.expected
            failed += wrong
            if result.verdict in ("refuted", "reached") and (chosen.trace or wrong):
                print(trace(result.run), flush=True)
    print(f"{len(runs)} runs, {failed} unexpected, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
