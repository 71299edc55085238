"""A running fleet with a fault proxy before the table of each task, watched from outside: upstream, stream and rows."""

import json
import math
import sys
import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from leases.dynamodb import Table
from leases.rows import SESSION_SHARDS, ConnectionRow, SessionRow, connection_key, session_key
from leases.timings import Timings
from local.api import Answer, Api
from local.checker import Verdict
from local.demo import Stream
from local.processes import Processes, python_environment
from local.reader import lines, records
from local.system import System, deployed, system
from local.tasks import Task
from local.upstream import Socket
from local.witness import Report, Witness
from tests.support.proxy import FaultProxy

TIMINGS = Timings()
JUDGED_SECONDS = TIMINGS.takeover + 2 * TIMINGS.judge_poll
"""Within this a session that stands still is declared dead."""
SLACK_SECONDS = 3.0
"""For processes that wait for a processor, all on one small machine."""
PATIENCE_SECONDS = 90.0
"""For what must happen, but is no promise about time."""
POLL_SECONDS = 0.1
CALLERS = 4
TABLE_ENDPOINT = "AWS_ENDPOINT_URL_DYNAMODB"
"""The variable by which the SDKs find DynamoDB elsewhere than all other services."""
THROTTLED_SECONDS = 0.5

SKEW_SECONDS = 300
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""From the Debian package libfaketime; None where it is not installed."""
needs_faketime = pytest.mark.skipif(FAKETIME is None, reason="needs the Debian package libfaketime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many connections, and how many seconds of each kind of weather."""

    connections: int
    period: float = 1.0
    """Seconds between two messages of a feed."""
    shared_file: bool = False
    """Whether the output goes to a file, where the emulator's stream would be too slow for so many messages."""
    lost_answers: float = 0.0
    throttled: float = 0.0
    outage: float = 0.0
    stale: float = 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, and what was the case then."""

    at: float
    rows: Mapping[str, ConnectionRow]
    verdict: Verdict

    def owned_by(self, session: str) -> frozenset[str]:
        """Paths of the connections that a session owned."""
        return frozenset(path for path, row in self.rows.items() if row.owner == session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What has happened since a moment. Paths stand for connections."""

    reconnected: frozenset[str] = frozenset()
    """A socket was opened or closed."""
    moved: frozenset[str] = frozenset()
    """Another owner or epoch."""
    lost: frozenset[str] = frozenset()
    """A message did not come though a later one did."""
    doubled: int = 0
    """Messages that came as two records."""
    dual_owners: int = 0
    """Records of an epoch after one of a higher epoch."""
    broken: tuple[str, ...] = ()
    """Rules that records broke."""


UNTOUCHED = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """How a death was noticed and made good. Seconds since the fault; what did not happen is infinite."""

    session: SessionRow
    """The one that ended."""
    detected: float
    claimed: float
    """When the last of its connections had a new owner."""
    outages: Mapping[str, float]
    """Until its new subscription, of each connection by its path."""

    def outage(self, share: float) -> float:
        """The outage that this share of the connections did not exceed."""
        ordered = sorted(self.outages.values())
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

    @property
    def figures(self) -> dict[str, Any]:
        """For the report."""
        return {
            "struck": len(self.outages),
            "deadBy": self.session.dead_by,
            "detectedSeconds": round(self.detected, 2),
            "claimedSeconds": round(self.claimed, 2),
            "outageSeconds": {f"p{100 * share:g}": round(self.outage(share), 2) for share in (0.5, 0.99, 1.0)},
        }


class Arena:
    """The fleet, and what a test does to it and sees of it."""

    def __init__(
        self,
        running: System,
        proxy: FaultProxy,
        witness: Witness,
        stream: Stream,
        environment: dict[str, str],
        scale: Scale,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.proxy = proxy
        self.scale = scale
        self._running = running
        self._witness = witness
        self._stream = stream
        self._pool = pool
        self._environment = environment
        """Of the next task that starts."""
        aws = running.deployed.aws
        client = aws.session.client("dynamodb", endpoint_url=aws.endpoint, config=aws.config)
        outputs = running.deployed.outputs
        self.table = Table(client, outputs["TableName"], outputs["OwnerIndex"])
        """The table by a way that no fault strikes."""
        self.endpoint = aws.endpoint
        """Of all services, by a way that no fault strikes."""
        self._api = Api(running.deployed.api_url)
        self._lambda = aws.session.client("lambda", endpoint_url=aws.endpoint, config=aws.config)
        self._divert_api()
        self.tasks: dict[str, Task] = {}
        """By the name of their caller."""
        self._connections: dict[str, str] = {}
        """Ids by path."""

    # Doing

    def _divert_api(self) -> None:
        """Have the function behind the API reach the table as the caller `api` of the proxy."""
        function = self._function("api")
        variables = {**function["Environment"]["Variables"], TABLE_ENDPOINT: self.proxy.endpoint("api")}
        self._lambda.update_function_configuration(
            FunctionName=function["FunctionName"], Environment={"Variables": variables}
        )

    def _function(self, name: str) -> Any:
        handler = f"lambdas.{name}.handler.handler"
        (function,) = (one for one in self._lambda.list_functions()["Functions"] if one["Handler"] == handler)
        return function

    def start(self, name: str, variables: Mapping[str, str] | None = None, *, revision: int | None = None) -> Task:
        """Start a task that reaches the table as the caller `name` of the proxy, or as `variables` say; of another
        revision if asked to."""
        self._environment.clear()
        self._environment[TABLE_ENDPOINT] = self.proxy.endpoint(name)
        self._environment.update(variables or {})
        (self.tasks[name],) = self._running.start(1, revision)
        return self.tasks[name]

    def begin(self) -> Task:
        """Start a task, and do not wait until it is a member of the fleet."""
        self._environment.clear()
        return self._running.tasks.start()

    def freeze_upstream(self) -> AbstractContextManager[None]:
        """Have no peer do anything for a while. Nothing that the upstream saw can be asked for meanwhile."""
        return self._witness.frozen()

    def open(self, **fields: Any) -> None:
        """POST all connections, with more `fields` in each request, and wait until each is open and delivers."""
        self.ask(range(self.scale.connections), **fields)
        self.calm()

    def ask(self, numbers: Iterable[int], **fields: Any) -> list[str]:
        """POST connections, with more `fields` in each request; returns their paths."""
        paths = [f"/feed/{number:04}" for number in numbers]
        names = self._pool.map(lambda path: self._post(path, fields), paths)
        self._connections |= dict(zip(paths, names, strict=True))
        return paths

    def _post(self, path: str, fields: Mapping[str, Any]) -> str:
        while (answer := self.post(path, **fields)).status == HTTPStatus.TOO_MANY_REQUESTS:
            time.sleep(THROTTLED_SECONDS)
        assert answer.status == HTTPStatus.ACCEPTED, answer
        connection: str = answer.body["connectionId"]
        return connection

    def post(self, path: str, **fields: Any) -> Answer:
        """Ask for one connection, with more `fields` in the request."""
        request = {"url": f"{self._witness.url}{path}", "onOpen": [{"text": "subscribe"}], **fields}
        return self._api.call("POST", "/connections", request)

    def delete(self, path: str) -> None:
        """Ask for the end of a connection, and forget it."""
        answer = self._api.call("DELETE", f"/connections/{self._connections.pop(path)}")
        assert answer.status == HTTPStatus.ACCEPTED, answer

    def drain(self, task: Task) -> None:
        """Ask the API to have the worker process of a task hand over all that it holds."""
        answer = self._api.call("POST", f"/workers/{self.session(task).session}/drain")
        assert answer.status == HTTPStatus.ACCEPTED, answer

    def workers(self) -> dict[str, Any]:
        """All worker processes as the API shows them, by their id."""
        return {worker["workerId"]: worker for worker in self._api.call("GET", "/workers").body["workers"]}

    def invoke(self, function: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """Call a function as the service would that triggers it; returns what it counted, by metric."""
        name = self._function(function)["FunctionName"]
        answer = self._lambda.invoke(FunctionName=name, Payload=json.dumps(event).encode(), LogType="Tail")
        assert not answer.get("FunctionError"), answer["Payload"].read()
        logged = b64decode(answer.get("LogResult", "")).decode().splitlines()
        counted = [json.loads(line) for line in logged if line.startswith("{") and '"CloudWatchMetrics"' in line]
        return {name: value[0] for line in counted for name, value in line.items() if isinstance(value, list)}

    def stop(self, tasks: Collection[Task], within: float) -> list[float]:
        """SIGTERM to tasks at once; returns how many seconds each took to end."""
        begun = time.monotonic()
        for task in tasks:
            task.begin_stop()
        return self.ends(tasks, begun, within)

    def ends(self, tasks: Collection[Task], begun: float, within: float) -> list[float]:
        """Wait until tasks have ended; returns how many seconds after a moment each did."""
        ends: dict[str, float] = {}

        def running() -> list[str]:
            for task in tasks:
                if task.exit_code is not None:
                    ends.setdefault(task.name, time.monotonic() - begun)
            return [task.name for task in tasks if task.name not in ends]

        self.until(running, "tasks that do not end", within)
        return sorted(round(seconds, 1) for seconds in ends.values())

    # Seeing

    def rows(self) -> dict[str, ConnectionRow]:
        """The row of each path, consistently read."""
        items = self.table.get_many(map(connection_key, self._connections.values()))
        return {path: ConnectionRow.from_item(items[connection_key(name)]) for path, name in self._connections.items()}

    def sessions(self) -> dict[str, SessionRow]:
        """All sessions by their id."""
        items = (item for shard in range(SESSION_SHARDS) for item in self.table.sessions(shard).items)
        return {row.session: row for row in map(SessionRow.from_item, items)}

    def shown(self, path: str) -> Any:
        """A connection as the API shows it."""
        return self._api.call("GET", f"/connections/{self._connections[path]}").body

    def session(self, task: Task) -> SessionRow:
        """The live session of a task with one worker process."""
        (row,) = (row for row in self.sessions().values() if row.task_arn == task.arn and row.alive)
        return row

    def held_by(self, task: Task) -> frozenset[str]:
        """Paths of the connections whose sockets a task has open."""
        return self._witness.held_by(task.worker_pids)

    def report(self) -> Report:
        """What the upstream has seen."""
        return self._witness.report()

    def mark(self) -> Mark:
        """Remember this moment."""
        return Mark(time.monotonic(), self.rows(), self._stream.verdict())

    def since(self, mark: Mark) -> Change:
        """What has happened since a moment. Call `catch_up` before."""
        verdict, before, rows = self._stream.verdict(), mark.verdict, self.rows()
        return Change(
            reconnected=frozenset(self.report().changed(mark.at)),
            moved=frozenset(
                path
                for path, row in rows.items()
                if (row.owner, row.epoch) != (mark.rows[path].owner, mark.rows[path].epoch)
            ),
            lost=frozenset(
                path
                for path, name in self._connections.items()
                if verdict.missing.get(name, frozenset()) - before.missing.get(name, frozenset())
            ),
            doubled=verdict.doubled - before.doubled,
            dual_owners=verdict.dual_owners - before.dual_owners,
            broken=verdict.broken[len(before.broken) :],
        )

    # Waiting

    def until(self, look: Callable[[], object], what: str, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until `look` finds nothing any more that is still to come."""
        deadline = time.monotonic() + patience
        while left := look():
            assert time.monotonic() < deadline, f"{what}: {left}"
            time.sleep(POLL_SECONDS)

    def watch(self, seconds: float) -> None:
        """Let time pass, in which nothing is to happen."""
        time.sleep(seconds)

    def catch_up(self) -> None:
        """Wait until the stream has, of each feed, what the upstream has sent by now."""
        sent = self.report().numbers
        self.until(lambda: self.backlog(sent), "messages that are not on the stream")

    def backlog(self, sent: Mapping[str, int]) -> int:
        """How many of the messages that the upstream has sent are not on the stream."""
        highest = self._stream.verdict().highest
        return sum(max(0, sent.get(path, 1) - highest.get(name, 0)) for path, name in self._connections.items())

    def calm(self) -> None:
        """Wait until every connection has one live owner, one open socket, and delivers."""

        def unrest() -> list[str]:
            live = {name for name, row in self.sessions().items() if row.alive}
            report = self.report()
            served = report.served() - report.crowded()
            return [path for path, row in self.rows().items() if row.owner not in live or path not in served]

        self.until(unrest, "not every connection is held and served")
        self.catch_up()

    def follow(self, session: str, victims: Collection[str], moment: float) -> Future[Failover]:
        """Watch, in the background, how a session's death is noticed and made good."""
        return self._pool.submit(self._follow, session, victims, moment)

    def _follow(self, session: str, victims: Collection[str], moment: float) -> Failover:
        detected = claimed = math.inf

        def unfinished() -> object:
            nonlocal detected, claimed
            now = time.monotonic() - moment
            if detected == math.inf:
                row = self.table.get(session_key(session))
                assert row is not None
                if SessionRow.from_item(row).alive:
                    return "its session is alive"
                detected = now
            if claimed == math.inf:
                rows = self.rows()
                if left := [path for path in victims if rows[path].owner == session]:
                    return left
                claimed = now
            report = self.report()
            return [path for path in victims if report.successor(path, moment) is None]

        self.until(unfinished, "not every connection was taken over")
        report = self.report()
        return Failover(
            session=self.sessions()[session],
            detected=detected,
            claimed=claimed,
            outages={path: report.outage(path, moment, planned=False) for path in victims},
        )


def served_throughout(sockets: Iterable[Socket], begin: float) -> bool:
    """Whether at every moment since `begin` one of these sockets was open and had subscribed."""
    served_until = begin
    for socket in sorted(sockets, key=lambda socket: socket.opened):
        if socket.subscribed is not None and socket.subscribed <= served_until:
            served_until = max(served_until, socket.closed or math.inf)
    return served_until == math.inf


def set_by(clock: Path) -> dict[str, str]:
    """Variables that put the wall clock of a process, and none of its other clocks, under the control of a file."""
    if FAKETIME is None:
        return {}
    return {
        "LD_PRELOAD": str(FAKETIME),
        "PYTHONPATH": str(Path(__file__).parent / "under_faketime"),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Its cure for an old glibc keeps the threads of CPython from handing each other the interpreter lock.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
    }


@contextmanager
def arena(
    processes: Processes, scale: Scale, settings: Mapping[str, str], upstream: Sequence[str] = ("local.upstream",)
) -> Iterator[Arena]:
    """A fleet without tasks, on an emulator of its own, with a module and its arguments as the upstream."""
    environment: dict[str, str] = {}
    file = processes.scratch / f"{uuid.uuid4().hex}.jsonl"
    output = {"OUTPUT_SINK": "json_lines", "OUTPUT_FILE": str(file)} if scale.shared_file else {}
    with (
        deployed(processes, {"WORKER_PROCESSES": "1", **output, **settings}) as stacks,
        FaultProxy(stacks.aws.endpoint) as proxy,
        system(stacks, processes, environment) as running,
        ThreadPoolExecutor(CALLERS + 1) as pool,
    ):
        argv = [sys.executable, "-m", *upstream, "--period", str(scale.period)]
        sender = processes.spawn("upstream", argv, env=python_environment(), piped=True)
        stream = Stream(lines(file) if scale.shared_file else records(stacks.aws, stacks.outputs["StreamName"]), pool)
        try:
            yield Arena(running, proxy, Witness(sender), stream, environment, scale, pool)
        finally:
            stream.stop()
            sender.kill()
            processes.forget(sender)
