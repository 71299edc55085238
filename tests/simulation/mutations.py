"""One-line breakages of the protocol, each of which the simulation must find: what it cannot find it does not check.

What only a rarer coincidence would show (a `ready` that outlives its offer), or what two rules of the code prevent each
on its own (observations kept across an outage), is refuted by the formal model in `spec/`.

`python -m tests.simulation.mutations` applies each to a copy and runs seeds until one breaks a promise.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 2000
NEARBY = 25
"""Seeds to try from the known one on, before all are."""
RUN = (sys.executable, "-m", "tests.simulation.run")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One breakage: `old` occurs exactly once in `file` of `leases/`, and becomes `new`."""

    what: str
    file: str
    old: str
    new: str
    seed: int = 0
    """A seed that has found it: the hunt begins there, and at 0 only once the protocol has changed what it shows."""
    model: str = ""
    """The mutation of the formal model that is the same breakage, where a random search finds it too seldom."""

    def apply(self, packages: Path) -> None:
        """Break a copy. Raises `ValueError` if the text is not there exactly once."""
        path = packages / "leases" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.what}: the text occurs {text.count(self.old)} times in {self.file}: {self.old}")
        path.write_text(text.replace(self.old, self.new))


MUTATIONS = (
    # The holder
    Mutation(
        "the deadline counts from the answer",
        "session.py",
        "self._deadline = max(self._deadline, sent_at + self._timings.self_fence)",
        "self._deadline = max(self._deadline, now + self._timings.self_fence)",
        seed=173,
    ),
    Mutation(
        "the deadline counts from the last attempt",
        "session.py",
        "                await self._sleep(RETRY_SECONDS * self._rng.uniform(0.5, 1))\n",
        "                await self._sleep(RETRY_SECONDS * self._rng.uniform(0.5, 1))\n"
        "                sent_at = self._clock.now()\n",
        seed=173,
    ),
    Mutation(
        "no margin between self-fence and takeover",
        "timings.py",
        "return round(self.takeover * 1000)",
        "return round(self.self_fence * 1000)",
        seed=5,
    ),
    Mutation(
        "the emit path does not ask the session",
        "holding.py",
        " and self._gate.may_emit()",
        "",
        seed=15,
    ),
    Mutation(
        "a jump of the clock changes nothing",
        "session.py",
        "        self._distrusted_at = self._clock.now()\n",
        "        pass\n",
        seed=15,
    ),
    Mutation(
        "a dead session goes on",
        "session.py",
        "        if not row.alive:\n"
        '            raise self._over(f"declared dead by {row.dead_by}")\n'
        "        if row.seq < self._seq:",
        "        if row.seq < self._seq - 1000:",
        seed=15,
    ),
    Mutation(
        "an unknown heartbeat is a lost one",
        "session.py",
        "                self._note_hold()\n",
        '                raise self._over("no answer") from unknown\n',
    ),
    Mutation(
        "an unknown heartbeat is a good one",
        "session.py",
        "                self._note_hold()\n",
        "                self._acknowledge(sent_at)\n",
        seed=15,
    ),
    Mutation(
        "rows are read before their ids are out of the inbox",
        "session.py",
        "        if shown:\n            self.inbox.put_nowait(shown)",
        "        if row.inbox - shown:\n            self.inbox.put_nowait(row.inbox - shown)",
        seed=813,
    ),
    Mutation(
        "a session gives up after five seconds on hold",
        "session.py",
        "now - self._held_since >= self._timings.give_up",
        "now - self._held_since >= 5",
        seed=95,
    ),
    # The judge
    Mutation(
        "a verdict does not name the number that stood still",
        "writes.py",
        '() if seen_seq is None else (Equals("seq", seen_seq),)',
        "()",
        seed=26,
    ),
    Mutation(
        "a judge trusts itself whatever becomes of its own heartbeats",
        "judging.py",
        "self._judge.own_heartbeat(self._session.acknowledged_at)",
        "self._judge.own_heartbeat(self._clock.now())",
        seed=94,
    ),
    Mutation(
        "the judges of last resort never hear that they live",
        "judging.py",
        "        self._everybody.own_heartbeat(self._session.acknowledged_at)\n",
        "",
        seed=363,
    ),
    Mutation(
        "observations are kept across an outage",
        "judge.py",
        "            self._own_sound_since = acknowledged_at\n            self._seen.clear()\n",
        "            self._own_sound_since = acknowledged_at\n",
        model="observations kept",
    ),
    Mutation(
        "only the first page of sessions is read",
        "fleet.py",
        "            while page.next is not None:\n",
        "            while False:\n",
    ),
    # Taking
    Mutation(
        "a session whose row is absent is dead at once",
        "holdings.py",
        "- absent_since < self._timings.takeover",
        "< 0",
        seed=1831,
    ),
    Mutation(
        "a row is claimed from a living session",
        "holdings.py",
        "if not sessions or sessions[0].alive:",
        "if not sessions:",
        seed=4,
    ),
    Mutation(
        "a claim ignores what is wanted",
        "writes.py",
        '(Equals("owner", row.owner), Equals("epoch", row.epoch), Equals("desired", Desired.RUNNING.value))',
        '(Equals("owner", row.owner), Equals("epoch", row.epoch))',
        seed=509,
    ),
    Mutation(
        "a claim asks neither for the owner nor for the epoch that it saw",
        "writes.py",
        '(Equals("owner", row.owner), Equals("epoch", row.epoch), Equals("desired", Desired.RUNNING.value))',
        '(Equals("desired", Desired.RUNNING.value),)',
        seed=38,
    ),
    Mutation(
        "a claim does not raise the epoch",
        "writes.py",
        'set={"owner": session, "epoch": row.epoch + 1, "grant": nonce}',
        'set={"owner": session, "epoch": row.epoch, "grant": nonce}',
    ),
    Mutation(
        "an unanswered claim is taken to be applied",
        "holdings.py",
        "            self._observer.saw(events.ClaimUnsettled(row.connection))\n            return Considered.LATER\n",
        "            result = Written(\n"
        '                {"pk": write.key.pk, "desired": "RUNNING", "generation": row.generation, **write.set}\n'
        "            )\n",
        seed=94,
    ),
    Mutation(
        "a new owner emits at once",
        "holdings.py",
        "self._clock.now() + self._timings.rate_ratio * self._timings.drain",
        "self._clock.now()",
    ),
    Mutation(
        "a new owner waits D by its own clock",
        "holdings.py",
        "self._clock.now() + self._timings.rate_ratio * self._timings.drain",
        "self._clock.now() + self._timings.drain",
        seed=263,
    ),
    Mutation(
        "deaths by exit are not counted",
        "holdings.py",
        "strike=vacancy.dead_by is DeadBy.EXIT",
        "strike=False",
        seed=54,
    ),
    Mutation(
        "only the first page of the index is read",
        "holdings.py",
        "        while page.next is not None:\n",
        "        while False:\n",
        seed=3,
    ),
    Mutation(
        "dead sessions are swept once",
        "sweeper.py",
        "for owner in (*dead, *shards)",
        "for owner in shards",
        seed=5,
    ),
    Mutation(
        "the self-audit reads only rows that the index shows wrong",
        "holdings.py",
        ") | turn | unsettled)",
        ") | unsettled)",
        seed=70,
    ),
    # Holding
    Mutation(
        "what is held is not fenced by the epoch",
        "writes.py",
        'return Equals("owner", session), Equals("epoch", epoch)',
        'return Equals("owner", session), OneOf("state", ()) if False else Equals("owner", session)',
        seed=84,
    ),
    Mutation(
        "an older row is believed",
        "decisions.py",
        "    if row.epoch < holding.epoch:\n        return Act.NOTHING\n"
        "    if row.owner != session:\n        return Act.ABORT\n",
        "    if row.owner != session:\n        return Act.ABORT\n",
        seed=29,
    ),
    Mutation(
        "a newer request is overlooked by a standby that becomes the owner",
        "holding.py",
        "newer = row.generation > self.row.generation",
        "newer = False",
        seed=347,
    ),
    Mutation(
        "a row that is not wanted is not let go",
        "decisions.py",
        "        return Act.FINALIZE\n    if row.epoch > holding.epoch:",
        "        return Act.NOTHING\n    if row.epoch > holding.epoch:",
        seed=7,
    ),
    # Letting go
    Mutation(
        "a connection is released before it is flushed",
        "holdings.py",
        "            remains = await holding.settle(Parting.RELEASED)\n"
        "            if remains is None:\n                return False\n",
        '            remains = Remains(cursor=None, handoff=writes.Handoff(digests=b"", last_seq=0))\n',
        seed=13,
    ),
    Mutation(
        "a release leaves a standby nothing",
        "holdings.py",
        "handoff = remains.handoff if holding.invited else None",
        "handoff = None",
        seed=36,
    ),
    Mutation(
        "a connection is shown as closed before its socket is",
        "holdings.py",
        "            await holding.runner.close()\n            self.forget(holding)\n        return remains",
        "            self.close_later(holding)\n            self.forget(holding)\n        return remains",
    ),
    Mutation(
        "a park ignores what is wanted by now",
        "writes.py",
        '                Equals("generation", row.generation),\n'
        '                Equals("desired", row.desired.value),\n',
        "",
        seed=27,
    ),
    Mutation(
        "a failure ignores a newer request",
        "writes.py",
        '(*_held(str(row.owner), row.epoch), Equals("generation", row.generation))',
        "(*_held(str(row.owner), row.epoch),)",
        seed=10,
    ),
    Mutation(
        "a change does not ask who owns the row",
        "writes.py",
        'AllOf((Equals("generation", row.generation), same_owner))',
        'Equals("generation", row.generation)',
        seed=1442,
    ),
    # Handing over
    Mutation(
        "a standby is ready for whatever offer names it by now",
        "writes.py",
        'condition=_standing(row, offer), set={"next.ready": True}',
        'condition=AllOf(_standing(row, offer).parts[:3]), set={"next.ready": True}',
        model="ready without nonce",
    ),
    Mutation(
        "a transfer does not wait for the flush",
        "handover.py",
        "remains = await holding.settle(Parting.HANDED_OVER)",
        "from leases.ports import Remains\n"
        '        remains = Remains(cursor=None, handoff=writes.Handoff(digests=b"", last_seq=0))',
        seed=13,
    ),
    Mutation(
        "a transfer does not raise the epoch",
        "writes.py",
        '"epoch": offer.for_epoch + 1,',
        '"epoch": offer.for_epoch,',
        seed=32,
    ),
    Mutation(
        "what the old owner left is not read",
        "holding.py",
        "handoff = row.handoff if self.phase is Phase.STANDBY else None",
        "handoff = None",
        seed=32,
    ),
    Mutation(
        "a regrant keeps the epoch",
        "writes.py",
        'set={"epoch": epoch + 1, "grant": nonce}',
        'set={"epoch": epoch, "grant": nonce}',
        seed=13,
    ),
    Mutation(
        "a standby emits before it is the owner",
        "decisions.py",
        "    if row.epoch < holding.for_epoch:\n        return Act.NOTHING\n    if row.owner == session:\n",
        "    if row.owner is not None:\n",
        seed=13,
    ),
    Mutation(
        "a connection is handed to whoever was asked, dead or alive",
        "handover.py",
        "if not await self._live(offer.session):",
        "if False:",
        seed=13,
    ),
    Mutation(
        "an unknown transfer is taken to be refused",
        "handover.py",
        "result = await self._holdings.insist.write(write)\n        row = None",
        "try:\n            result = await self._holdings.insist.write(write, attempts=1)\n"
        "        except Unknown:\n            holding.begin(holding.row, 0.0)\n            return False\n"
        "        row = None",
        seed=339,
    ),
)


def copy(source: Path, target: Path) -> None:
    """Copy the packages that a run needs."""
    for package in ("leases", "tests/simulation"):
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))


def hunt(mutation: Mutation, seeds: int, source: Path = ROOT) -> tuple[bool, str]:
    """Whether one of the first seeds finds the mutation, and which promise it breaks."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy(source, Path(folder))
        mutation.apply(Path(folder))
        started = time.perf_counter()
        found = _first_broken(Path(folder), mutation.seed, NEARBY) or _first_broken(Path(folder), 0, seeds)
        took = time.perf_counter() - started
    return found is not None, f"{took:5.0f} s  {found or 'NOT FOUND'}"


def _first_broken(packages: Path, first: int, seeds: int) -> str | None:
    """What the first seed says that breaks a promise. Raises `RuntimeError` if the simulation itself fails."""
    done = subprocess.run(
        [*RUN, "--first", str(first), "--seeds", str(seeds), "--jobs", "1"],
        cwd=packages,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr[-2000:])
    return next((line for line in done.stdout.splitlines() if line.startswith("seed ")), None)


def main() -> int:
    """Hunt all mutations, or those whose description holds a word; 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=LIMIT)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("word", nargs="?", default="")
    asked = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if asked.word in mutation.what and not mutation.model]
    for mutation in MUTATIONS:
        if mutation.model:
            print(f"{mutation.what}: found by `make model` as '{mutation.model}'")
    found = 0
    with tempfile.TemporaryDirectory(prefix="unbroken-") as folder, ThreadPoolExecutor(asked.jobs) as pool:
        # From one copy, so that edits meanwhile do not mix versions.
        copy(ROOT, Path(folder))
        hunts = {pool.submit(hunt, mutation, asked.seeds, Path(folder)): mutation for mutation in chosen}
        for done in as_completed(hunts):
            hit, how = done.result()
            found += hit
            print(f"{hunts[done].what}: {how[:180]}", flush=True)
    print(f"{found} of {len(chosen)} mutations found, each within {asked.seeds} seeds")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
