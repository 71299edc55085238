"""The promises of the protocol, checked at every write that meets the table and every record that lands.

1. With sound clocks, no record of an epoch lands after one of a higher epoch; and one epoch has one emitter.
2. With any clocks, no checkpoint or status of a lower epoch is accepted.
3. Convergence is checked by the world once its faults are over.
4. A session that its own machine and network left in peace is never ended by others, nor gives up what it holds.
Beside these: planned moves lose nothing and double nothing, and what is told is true (a socket is closed before it is
said to be, nothing is emitted once a write that ends the epoch has been sent).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leases.conditions import AllOf, Condition, Equals, Write
from leases.events import HoldBegan, LeaseLost
from leases.rows import DeadBy, Item, Key, SessionState, connection_key, connection_of, is_free, is_session, session_key
from leases.timings import Timings
from tests.simulation.loop import Timetable
from tests.simulation.output import Entry, Landed, Record
from tests.simulation.processes import Process
from tests.simulation.runners import SimHost, SimRunner
from tests.simulation.table import Table

ENDING = ("release", "transfer", "park", "stop", "fail")
"""Writes after whose sending nothing of the epoch may be emitted."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    at: float
    invariant: str
    connection: str | None
    what: str

    def __str__(self) -> str:
        return f"at {self.at:.4f} s: invariant {self.invariant}: {self.connection or ''} {self.what}"


def demanded(condition: Condition, path: str) -> Any:
    """The value that a condition demands of an attribute; None if it leaves it open."""
    if isinstance(condition, Equals) and condition.path == path:
        return condition.value
    if isinstance(condition, AllOf):
        return next((value for part in condition.parts if (value := demanded(part, path)) is not None), None)
    return None


@dataclass(slots=True)
class Life:
    """What is known of a session from outside."""

    process: Process
    beaten_at: float
    """When its last heartbeat was applied."""
    tried: int = 0
    """Heartbeats sent since."""


class Monitor:
    """Sees everything, and halts the world at the first broken promise."""

    def __init__(self, timetable: Timetable, table: Table, timings: Timings) -> None:
        self._timetable = timetable
        self._table = table
        self.timings = timings
        self.violations: list[Violation] = []
        self.trace: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.landings: dict[str, Landed] = {}
        self.lives: dict[str, Life] = {}
        self.hosts: dict[str, SimHost] = {}
        """By process name."""
        self.announced: dict[str, list[str]] = {}
        """The sessions of each process, the present one last."""
        self.stopping: set[str] = set()
        """Processes that were asked to drain."""
        self.outage_since: float | None = None
        self._followers: dict[str, tuple[int, frozenset[str]]] = {}
        """Of a connection that its owner has released: in which epoch, and the processes that miss nothing."""
        self._ready_at: dict[str, float] = {}
        """When the standby of a connection became ready."""
        self._reopened: set[str] = set()
        """Sessions whose row was deleted by hand, and put back by a late copy of the write that had opened them."""
        self._held_since: dict[str, float] = {}
        """When a process was last put on hold."""
        self._seen_live: dict[tuple[str, str], float] = {}
        """When a process last read a session as LIVE."""
        self._ending: set[tuple[str, str, int]] = set()
        self.excused: Callable[[Process], bool] = lambda process: False
        """Whether the weather may have silenced a healthy process."""

    def note(self, *what: Any) -> None:
        """Add to the trace."""
        self.trace.append((self._timetable.now, *what))

    def violate(self, invariant: str, connection: str | None, what: str) -> None:
        """A promise is broken: the world halts."""
        self.violations.append(Violation(self._timetable.now, invariant, connection, what))
        self.note("VIOLATION", connection, invariant, what)
        self._timetable.halted = True

    # Records

    def emits(self, entry: Entry) -> None:
        """The guard has allowed an entry."""
        if (entry.process.name, entry.connection, entry.records[0].epoch) in self._ending:
            self.violate(
                "ending",
                entry.connection,
                f"{entry.process.name} emits after it sent the end of epoch {entry.records[0].epoch}",
            )

    def landed(self, entry: Entry) -> None:
        """An entry has landed at the consumer."""
        landed = self.landings.setdefault(entry.connection, Landed())
        self.note("landed", entry.connection, entry.process.name, [tuple(record) for record in entry.records])
        for record in entry.records:
            self._landed(landed, entry, record)

    def _landed(self, landed: Landed, entry: Entry, record: Record) -> None:
        landed.records += 1
        if record.epoch < landed.epoch:
            self.counts["fenced records"] += 1
            if not entry.excused:
                self.violate(
                    "1", entry.connection, f"{record} of {entry.process.name} landed after epoch {landed.epoch}"
                )
            return
        emitter = landed.emitters.setdefault(record.epoch, entry.process.name)
        if emitter != entry.process.name:
            self.violate(
                "1", entry.connection, f"epoch {record.epoch} is emitted by {emitter} and {entry.process.name}"
            )
        known = landed.contents.setdefault((record.epoch, record.seq), (record.kind, record.number))
        if known != (record.kind, record.number):
            self.violate("1", entry.connection, f"{record} was {known} before")
        if (record.epoch, record.seq) <= (landed.epoch, landed.seq):
            landed.repeated += 1
            return
        expected = landed.seq + 1 if record.epoch == landed.epoch else 1
        if record.seq != expected:
            self.violate("order", entry.connection, f"{record} landed where seq {expected} was due")
        if record.kind == "gap" and landed.moved_to == record.epoch:
            self.violate("hand-over", entry.connection, f"{record}: a planned move went on without its hand-off")
        if record.kind != "message":
            landed.joined = False
        else:
            planned = record.epoch == landed.epoch or landed.moved_to == record.epoch
            if landed.joined and planned and record.number != landed.number + 1:
                self.violate(
                    "hand-over",
                    entry.connection,
                    f"{record} landed after message {landed.number} of epoch {landed.epoch}",
                )
            landed.number = record.number
            landed.joined = True
        landed.epoch, landed.seq = record.epoch, record.seq
        self.counts["records"] += 1

    # Writes

    def sent(self, process: Process, write: Write) -> None:
        """A process sends a write."""
        if write.name == "heartbeat":
            life = self.lives.get(write.key.sk)
            if life is not None:
                life.tried += 1
        elif write.name in ("release", "transfer"):
            epoch = demanded(write.condition, "epoch")
            if epoch is not None:
                self._ending.add((process.name, connection_of(write.key.pk), epoch))
        if write.name == "transfer":
            connection, target = connection_of(write.key.pk), write.set["owner"]
            seen = self._seen_live.get((process.name, target), float("-inf"))
            if seen < self._ready_at.get(connection, float("-inf")):
                self.violate(
                    "hand-over", connection, f"{process.name} hands over to {target} without a look at its session"
                )

    def got(self, process: Process, key: Key, row: Item | None) -> None:
        """A process reads one row."""
        if row is not None and row.get("state") == SessionState.LIVE:
            self._seen_live[process.name, key.sk] = self._timetable.now

    def told(self, process: Process, event: object) -> None:
        """A process says what it saw."""
        if isinstance(event, HoldBegan):
            self._held_since[process.name] = self._timetable.now
        if isinstance(event, LeaseLost):
            row = self._table.rows.get(connection_key(event.connection), {})
            session = self._table.rows.get(session_key(str(row.get("owner"))))
            life = self.lives.get(str(row.get("owner")))
            mine = (
                life is not None
                and life.process is process
                and session is not None
                and session["state"] != SessionState.DEAD
            )
            if mine and row["epoch"] == event.epoch and row["desired"] == "RUNNING":
                self.violate(
                    "4",
                    event.connection,
                    f"{process.name} drops it in epoch {event.epoch}: {event.reason}; the row says it is its own",
                )

    def wrote(self, process: Process, write: Write, before: Item | None, after: Item | None) -> None:
        """A write met the table."""
        name = write.name
        if name == "heartbeat":
            if after is not None:
                life = self.lives[write.key.sk]
                life.beaten_at = self._timetable.now
                life.tried = 0
            return
        self.counts[f"{name} {'applied' if after is not None else 'refused'}"] += 1
        self.note(
            name,
            write.key.sk if write.key.pk.startswith("SESSIONS#") else connection_of(write.key.pk),
            process.name,
            _change(before, after),
        )
        if after is None:
            return
        if name == "ready" and after != before:
            self._ready_at[connection_of(write.key.pk)] = self._timetable.now
        if name == "open":
            if write.key.sk in self.lives:
                self._reopened.add(write.key.sk)
            self.lives[write.key.sk] = Life(process, self._timetable.now)
        elif name == "declare_dead":
            self._declared(process, write.key.sk, after)
        elif write.key.pk.startswith("CONNECTION#") and before is not None:
            self._moved(process, write, before, after)

    def _declared(self, process: Process, session: str, after: Item) -> None:
        self.counts[f"dead by {after['dead_by']}"] += 1
        life = self.lives.get(session)
        if life is None:
            return
        now, subject = self._timetable.now, life.process
        if subject.alive and self.announced[subject.name][-1] != session:
            return
        if after["dead_by"] == DeadBy.EXIT:
            if subject.alive:
                self.violate("1", None, f"{process.name} says that {session} of {subject.name} has exited, but it runs")
        elif after["dead_by"] == DeadBy.JUDGE:
            if now - life.beaten_at < 0.9 * self.timings.takeover:
                self.violate(
                    "4", None, f"{process.name} declares {session} dead {now - life.beaten_at:.2f} s after a heartbeat"
                )
            if not subject.alive or subject.undisturbed_for() < 2 * self.timings.takeover:
                return
            if self.excused(subject) and life.tried >= 3 and now - life.beaten_at > self.timings.takeover * 0.8:
                self.counts["unlucky sessions"] += 1
                return
            silent = f"heartbeat {now - life.beaten_at:.2f} s ago"
            self.violate("4", None, f"{process.name} declares {session} dead, though {subject.name} is well; {silent}")
        elif process.name not in self.stopping and session not in self._reopened:
            # Not since its last heartbeat was applied: that may have been one that nobody answered.
            held = now - self._held_since.get(process.name, now)
            if held < 0.85 * self.timings.give_up:
                self.violate("4", None, f"{process.name} gives {session} up after {held:.2f} s on hold")

    def _moved(self, process: Process, write: Write, before: Item, after: Item) -> None:
        name, connection = write.name, connection_of(write.key.pk)
        old, new = before.get("owner"), after.get("owner")
        if after["epoch"] < before["epoch"]:
            self.violate("2", connection, f"{name} lowers the epoch from {before['epoch']} to {after['epoch']}")
        if after["generation"] < before["generation"]:
            self.violate("2", connection, f"{name} lowers the generation")
        if new != old:
            self._changed_owner(process, write, before, after)
        self._fenced(process, write, before)

    def _changed_owner(self, process: Process, write: Write, before: Item, after: Item) -> None:
        name, connection = write.name, connection_of(write.key.pk)
        old, new = before.get("owner"), after.get("owner")
        self.counts["owner changes"] += 1
        if is_session(new):
            if after["epoch"] <= before["epoch"]:
                self.violate("1", connection, f"{name} gives it to {new} in the same epoch {after['epoch']}")
            if after["desired"] != "RUNNING":
                self.violate("3", connection, f"{name} gives it to {new}, though it is to be {after['desired']}")
        if name == "claim" and is_session(old):
            self.counts["takeovers"] += 1
            row = self._table.rows.get(session_key(str(old)))
            if row is not None and row["state"] != SessionState.DEAD:
                self.violate("1", connection, f"{process.name} claims it from {old}, which is {row['state']}")
        if name == "release":
            self._followers[connection] = before["epoch"], self._standing_by(process, connection)
        landed = self.landings.get(connection)
        if landed is not None:
            follows = name == "claim" and self._follows(process, connection, before)
            self.counts["claims by a standby"] += follows
            landed.moved_to = after["epoch"] if name == "transfer" or follows else None
        if name in ENDING and is_session(old):
            self._let_go(process, write, before)

    def _standing_by(self, owner: Process, connection: str) -> frozenset[str]:
        """The processes that have buffered everything since before the owner stopped reading."""
        old = self.running(owner, connection)
        return frozenset(
            name
            for name, host in self.hosts.items()
            for runner in host.runners
            if old is not None and runner.connection == connection and runner.grant is None and runner.whole
            if runner.opened_at < old.stopped_at
        )

    def _follows(self, process: Process, connection: str, before: Item) -> bool:
        """Whether a claim loses and doubles nothing: that of a standby, of what its last owner has released."""
        epoch, names = self._followers.get(connection, (0, frozenset()))
        runner = self.running(process, connection)
        return (
            is_free(before.get("owner"))
            and epoch == before["epoch"]
            and process.name in names
            and runner is not None
            and runner.grant is None
        )

    def _let_go(self, process: Process, write: Write, before: Item) -> None:
        name, connection = write.name, connection_of(write.key.pk)
        old = str(before["owner"])
        life = self.lives.get(old)
        row = self._table.rows.get(session_key(old))
        if life is None or row is None or row["state"] == SessionState.DEAD:
            return
        if life.process is not process:
            self.violate("4", connection, f"{process.name} writes {name} for {old}, which lives")
        if not process.alive:
            return
        runner = self.running(process, connection)
        if runner is not None and runner.grant is not None and runner.grant.epoch == before["epoch"]:
            if name in ("park", "stop", "fail"):
                self.violate("told", connection, f"{name} is written while {process.name} still has its socket")
            elif not runner.settled or runner.sending:
                self.violate("hand-over", connection, f"{name} is written before {process.name} has flushed")
        drains = row["state"] == SessionState.DRAINING or process.name in self.stopping
        if name == "release" and not drains and process.undisturbed_for() > 3 * self.timings.takeover:
            self.violate("4", connection, f"{process.name} writes {name}, though it is well and not draining")

    def _fenced(self, process: Process, write: Write, before: Item) -> None:
        name, connection = write.name, connection_of(write.key.pk)
        cursor, status = write.set.get("cursor"), write.set.get("status")
        if cursor is not None and name in ("checkpoint", *ENDING):
            known = before.get("cursor")
            if known is not None and int(cursor.split(":")[0]) < int(known.split(":")[0]):
                self.violate(
                    "2", connection, f"{name} of {process.name} takes the cursor back from {known} to {cursor}"
                )
            # What waited to be stored when its writer went on in a new epoch of its own is no older owner's.
            landed = self.landings.get(connection)
            author = landed.emitters.get(int(cursor.split(":")[0])) if landed is not None else None
            if name == "checkpoint" and int(cursor.split(":")[0]) != before["epoch"] and author != process.name:
                self.violate(
                    "2", connection, f"{name} of {cursor} by {process.name} is accepted in epoch {before['epoch']}"
                )
        if (
            name in ("park", "stop", "fail")
            and status
            and status.get("generation", before["generation"]) != before["generation"]
        ):
            self.violate(
                "told", connection, f"{name} of {process.name} is about {status}, not generation {before['generation']}"
            )
        if name == "status" and status and "epoch" in status and status["epoch"] != before["epoch"]:
            self.violate("2", connection, f"status {status} of {process.name} is accepted in epoch {before['epoch']}")

    def running(self, process: Process, connection: str) -> SimRunner | None:
        """The runner of a connection in a process that is not over; the one with a grant, if there are two."""
        host = self.hosts.get(process.name)
        runners = [runner for runner in host.runners if runner.connection == connection] if host else []
        return max(runners, key=lambda runner: runner.grant is not None, default=None)


def _change(before: Item | None, after: Item | None) -> Any:
    """What a write changed, for the trace."""
    if after is None:
        return "refused", None if before is None else (
            before.get("owner", before.get("state")),
            before.get("epoch", before.get("seq")),
        )
    old = before or {}
    return {name: value for name, value in after.items() if old.get(name) != value} | {
        name: None for name in old if name not in after
    }
