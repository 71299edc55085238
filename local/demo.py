"""`make demo`: breaks what may break, and checks what is promised.

Outages are measured at the upstream, losses and doubles by the numbers of its messages, owners by the stream itself.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus

from leases.conditions import Written
from leases.dynamodb import Table
from leases.rows import ConnectionRow, Desired, connection_key, free_owner, is_free
from leases.writes import claim
from local.api import Api
from local.checker import Checker, Verdict
from local.processes import Processes
from local.reader import Record, records
from local.system import System, deployed, system
from local.tasks import Task
from local.witness import Report, Witness

TASKS = 3
CONNECTIONS = 200
CALLERS = 4
PATIENCE_SECONDS = 30.0
"""How long to wait for what should happen, beyond what is promised."""
FREEZE_SECONDS = 12.0
REPEATED_HINTS = 3
SQS_BATCH = 10
CALM_SECONDS = 3.0
"""How long to go on watching when a fault is over."""
POLL_SECONDS = 0.25
PROGRESS_SECONDS = 1.0
THROTTLED_SECONDS = 0.5
SHOWN = 10
"""Broken promises that are shown of each event."""


class DemoError(RuntimeError):
    """The demo could not go on. The message says what did not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is promised of an event."""

    event: str
    outage: float
    """Seconds, 99th percentile: what holds on AWS, and what one small machine with its emulator takes on top."""
    planned: bool = False
    """A planned move loses nothing."""


CRASH = Promise(event="worker process killed", outage=2.0)
LOSS = Promise(event="whole task killed", outage=12.0)
FREEZE = Promise(event="worker process frozen", outage=12.0)
LATE = Promise(event="all stopped, then claims of long ago arrive", outage=0.0)
STOP = Promise(event="task stopped cleanly", outage=0.5, planned=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an event."""

    promise: Promise
    outages: Sequence[float]
    """Seconds, sorted, of every connection that it struck."""
    lost: int
    doubled: int
    dual_owners: int
    disturbed: int
    broken: Sequence[str]

    def quantile(self, share: float) -> float:
        """The outage that this share of the connections did not exceed."""
        return self.outages[max(0, math.ceil(share * len(self.outages)) - 1)] if self.outages else 0.0


class Stream:
    """The checked output stream, read by a thread of its own."""

    def __init__(self, batches: Iterable[Iterable[Record]], pool: ThreadPoolExecutor) -> None:
        self._checker = Checker()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._reading: Future[None] = pool.submit(self._read, batches)

    def verdict(self) -> Verdict:
        """What it has shown so far; raises what the reader failed with."""
        if self._reading.done():
            self._reading.result()
        with self._lock:
            return self._checker.verdict

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()

    def _read(self, batches: Iterable[Iterable[Record]]) -> None:
        for batch in batches:
            with self._lock:
                for record in batch:
                    self._checker.add(record)
            if self._stopped.is_set():
                return


class Demo:
    """A running system, and what is done to it."""

    def __init__(self, running: System, witness: Witness, stream: Stream) -> None:
        self._running = running
        self._witness = witness
        self._stream = stream
        self._begun = time.monotonic()
        self._connections: dict[str, str] = {}
        """Connection ids by the path of their feed."""
        self._created: list[ConnectionRow] = []
        """Their rows as they were created."""

    def open_connections(self, pool: ThreadPoolExecutor) -> None:
        """POST all requests and wait until every one is open and delivers."""
        paths = [f"/feed/{number:03}" for number in range(CONNECTIONS)]
        api = Api(self._running.deployed.api_url)
        self._say(f"POST of {CONNECTIONS} connection requests")
        self._connections = dict(zip(paths, pool.map(lambda path: self._post(api, path), paths), strict=True))
        if not self._until(lambda report: report.served(), set(paths), PATIENCE_SECONDS, "open"):
            raise DemoError("not every connection opened")
        if behind := self._behind():
            raise DemoError(behind)

    def crash(self) -> Outcome:
        """SIGKILL to a worker process: its supervisor reaps it, and says so.

        Assignment messages for all that it held are repeated meanwhile, so that the others race for them.
        """
        pid = self._busiest_worker()
        paths = self._witness.held_by([pid])

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            self._hint(paths)

        return self._strike(CRASH, [pid], kill)

    def lose_task(self) -> Outcome:
        """SIGKILL to a supervisor and its workers at once, as when a host is lost: only judges can notice."""
        task = self._busiest_task()
        outcome = self._strike(LOSS, task.worker_pids, task.kill)
        self._say("a new task, as ECS would start one")
        self._running.start(1)
        return outcome

    def freeze(self) -> Outcome:
        """SIGSTOP to a worker process until others have taken over, then SIGCONT: it must not emit what it held."""
        pid = self._busiest_worker()

        def thaw(moment: float, victims: frozenset[str]) -> Sequence[str]:
            while time.monotonic() < moment + FREEZE_SECONDS:
                time.sleep(POLL_SECONDS)
            self._say("SIGCONT")
            os.kill(pid, signal.SIGCONT)
            left = self._until(
                lambda report: victims - report.crowded(), victims, PATIENCE_SECONDS, "left to their new owner"
            )
            return () if left else ("the thawed process kept its sockets",)

        return self._strike(FREEZE, [pid], lambda: os.kill(pid, signal.SIGSTOP), thaw)

    def stop_task(self) -> Outcome:
        """SIGTERM to a supervisor: its connections are handed over, and it ends with 0."""
        task = self._busiest_task()

        def ended(_moment: float, _victims: frozenset[str]) -> Sequence[str]:
            code = task.stop()
            return () if code == 0 else (f"the stopped task ended with {code}",)

        return self._strike(STOP, task.worker_pids, task.begin_stop, ended)

    def late_claims(self) -> Outcome:
        """SIGTERM to all tasks, so that every connection is free again; then a claim of each is delivered that may have
        been on its way since the connection was free for the first time. The fencing token has to refuse it."""
        self._say(f"{LATE.event}: {len(self._created)} connections")
        running = [task for task in self._running.tasks.started if task.running]
        for task in running:
            task.begin_stop()
        codes = [task.stop() for task in running]
        stacks = self._running.deployed
        client = stacks.aws.session.client("dynamodb", endpoint_url=stacks.aws.endpoint, config=stacks.aws.config)
        table = Table(client, stacks.outputs["TableName"], stacks.outputs["OwnerIndex"])
        items = table.get_many([connection_key(row.connection) for row in self._created])
        rows = {row.connection: row for row in map(ConnectionRow.from_item, items.values())}
        kept = [row.connection for row in rows.values() if not is_free(row.owner)]
        accepted = [
            f"a claim of epoch {first.epoch} was accepted in epoch {rows[first.connection].epoch}"
            for first in self._created
            if isinstance(table.write(claim(first, "a-session-of-long-ago", "its-nonce", strike=False)), Written)
        ]
        unclean = [f"a stopped task ended with {code}" for code in codes if code]
        held = [f"{len(kept)} connections were not released"] if kept else []
        return Outcome(
            promise=LATE,
            outages=[0.0] * len(self._created),
            lost=0,
            doubled=0,
            dual_owners=len(accepted),
            disturbed=0,
            broken=[*unclean, *held, *accepted],
        )

    def _strike(
        self,
        promise: Promise,
        pids: Collection[int],
        act: Callable[[], None],
        settle: Callable[[float, frozenset[str]], Sequence[str]] = lambda _moment, _victims: (),
    ) -> Outcome:
        before = self._stream.verdict()
        victims = self._witness.held_by(pids)
        self._say(f"{promise.event}: {len(victims)} connections")
        moment = time.monotonic()
        act()
        self._until(
            lambda report: {path for path in victims if report.successor(path, moment)},
            victims,
            promise.outage + PATIENCE_SECONDS,
            "reopened",
        )
        unsettled = settle(moment, victims)
        time.sleep(CALM_SECONDS)
        behind = self._behind()
        outcome = self._judge(promise, moment, victims, before)
        return replace(outcome, broken=[*unsettled, *([behind] if behind else []), *outcome.broken])

    def _judge(self, promise: Promise, moment: float, victims: frozenset[str], before: Verdict) -> Outcome:
        report, after = self._witness.report(), self._stream.verdict()
        lost = {
            path: len(after.missing[connection] - before.missing.get(connection, frozenset()))
            for path, connection in self._connections.items()
        }
        strangers = self._connections.keys() - victims
        disturbed = {path for path in strangers if lost[path]} | (report.changed(moment) & strangers)
        outcome = Outcome(
            promise=promise,
            outages=sorted(report.outage(path, moment, planned=promise.planned) for path in victims),
            lost=sum(lost[path] for path in victims),
            doubled=after.doubled - before.doubled,
            dual_owners=after.dual_owners - before.dual_owners,
            disturbed=len(disturbed),
            broken=(),
        )
        rules = [
            (bool(victims), "it struck no connection"),
            (outcome.quantile(1.0) < math.inf, f"{outcome.outages.count(math.inf)} connections were not reopened"),
            (
                outcome.quantile(0.99) <= promise.outage,
                f"the outage was {outcome.quantile(0.99):.2f} s (p99), promised are {promise.outage} s",
            ),
            (not (promise.planned and outcome.lost), f"a planned move lost {outcome.lost} messages"),
            (not disturbed, f"others were disturbed: {', '.join(sorted(disturbed)[:SHOWN])}"),
            (not report.crowded(), f"two sockets are open: {', '.join(sorted(report.crowded())[:SHOWN])}"),
            (
                not (promise.planned and report.long_overlaps(moment)),
                f"two sockets were open for long: {', '.join(sorted(report.long_overlaps(moment))[:SHOWN])}",
            ),
        ]
        seen = dict.fromkeys(after.broken[len(before.broken) :])
        return replace(outcome, broken=[message for holds, message in rules if not holds] + list(seen))

    def _busiest_task(self) -> Task:
        running = (task for task in self._running.tasks.started if task.running)
        return max(running, key=lambda task: len(self._witness.held_by(task.worker_pids)))

    def _busiest_worker(self) -> int:
        return max(self._busiest_task().worker_pids, key=lambda pid: len(self._witness.held_by([pid])))

    def _post(self, api: Api, path: str) -> str:
        body = {"url": f"{self._witness.url}{path}", "onOpen": [{"text": "subscribe"}]}
        while (answer := api.call("POST", "/connections", body)).status == HTTPStatus.TOO_MANY_REQUESTS:
            time.sleep(THROTTLED_SECONDS)
        if answer.status != HTTPStatus.ACCEPTED:
            raise DemoError(f"POST /connections was answered with {answer.status}: {answer.body}")
        connection: str = answer.body["connectionId"]
        self._created.append(
            ConnectionRow(
                connection=connection,
                owner=free_owner(connection),
                epoch=answer.body["epoch"],
                desired=Desired.RUNNING,
                generation=answer.body["generation"],
            )
        )
        return connection

    def _hint(self, paths: Collection[str]) -> None:
        """Queue assignment messages, each repeated, as the queue itself may: so several workers get each at once."""
        stacks = self._running.deployed
        sqs = stacks.aws.session.client("sqs", endpoint_url=stacks.aws.endpoint, config=stacks.aws.config)
        bodies = [json.dumps({"connectionId": self._connections[path]}) for path in paths]
        batches = [bodies[start : start + SQS_BATCH] for start in range(0, len(bodies), SQS_BATCH)]
        for batch in (batch for batch in batches for _ in range(REPEATED_HINTS)):
            sqs.send_message_batch(
                QueueUrl=stacks.outputs["QueueUrl"],
                Entries=[{"Id": str(number), "MessageBody": body} for number, body in enumerate(batch)],
            )

    def _behind(self) -> str:
        """Wait until the stream has, of every feed, what the upstream had sent by now; what it does not deliver."""
        sent = self._witness.report().numbers
        deadline = time.monotonic() + PATIENCE_SECONDS
        while behind := [
            path
            for path, connection in self._connections.items()
            if self._stream.verdict().highest.get(connection, 0) < sent[path]
        ]:
            if time.monotonic() > deadline:
                return f"the stream does not deliver {', '.join(sorted(behind)[:SHOWN])}"
            time.sleep(POLL_SECONDS)
        return ""

    def _until(
        self, reached: Callable[[Report], Set[str]], wanted: Collection[str], patience: float, what: str
    ) -> bool:
        begun = said = time.monotonic()
        while True:
            now, count = time.monotonic(), len(reached(self._witness.report()) & set(wanted))
            if count == len(wanted) or now > said + PROGRESS_SECONDS:
                self._say(f"  {count} of {len(wanted)} {what}")
                said = now
            if count == len(wanted):
                return True
            if now > begun + patience:
                return False
            time.sleep(POLL_SECONDS)

    def _say(self, what: str) -> None:
        _say(f"{time.monotonic() - self._begun:6.1f} s  {what}")


def demo() -> int:
    """Run it; returns 0 if every promise was kept."""
    with Processes("demo") as processes:
        try:
            return _run(processes)
        except DemoError as error:
            processes.keep_logs()
            _say(f"FAILED: {error}\nLogs: {processes.scratch}")
            return 1


def _run(processes: Processes) -> int:
    _say("synthesizing the template, deploying it to the emulator, starting the tasks")
    with (
        ThreadPoolExecutor(CALLERS + 1) as pool,
        deployed(processes, {}) as stacks,
        system(stacks, processes, {}) as running,
    ):
        running.start(TASKS)
        stream = Stream(records(stacks.aws, stacks.outputs["StreamName"]), pool)
        try:
            show = Demo(running, Witness.start(processes), stream)
            show.open_connections(pool)
            outcomes = [show.crash(), show.lose_task(), show.freeze(), show.stop_task()]
            verdict = stream.verdict()
            outcomes.append(show.late_claims())
        finally:
            stream.stop()
    print(_table(outcomes))
    print(f"{verdict.records} records on the stream, {verdict.repeated} of them delivered more than once")
    broken = [f"{outcome.promise.event}: {what}" for outcome in outcomes for what in outcome.broken[:SHOWN]]
    if broken:
        processes.keep_logs()
        print("\n".join(["BROKEN PROMISES", *broken, f"Logs: {processes.scratch}"]))
        return 1
    print("Every promise was kept.")
    return 0


def _table(outcomes: Sequence[Outcome]) -> str:
    heads = ("event", "struck", "p50 s", "p99 s", "max s", "promise", "lost", "doubled", "two owners", "disturbed", "")
    rows = [
        (
            outcome.promise.event,
            str(len(outcome.outages)),
            *(f"{outcome.quantile(share):.2f}" for share in (0.5, 0.99, 1.0)),
            f"<= {outcome.promise.outage:g}",
            str(outcome.lost),
            str(outcome.doubled),
            str(outcome.dual_owners),
            str(outcome.disturbed),
            "BROKEN" if outcome.broken else "kept",
        )
        for outcome in outcomes
    ]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in cells)
        for cells in (enumerate(zip(row, widths, strict=True)) for row in (heads, *rows))
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
