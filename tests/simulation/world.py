"""The world of one seed: tasks with supervisors and workers, the API, upstreams, the table, the queue, the stream."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from leases import events, writes
from leases.conditions import Absent, Unknown, Write, Written
from leases.holdings import Considered
from leases.late import LateAnswers
from leases.member import Identity, Member
from leases.rows import (
    ALIVE,
    STRIKES_LIMIT,
    ConnectionRow,
    DeadBy,
    Desired,
    Item,
    SessionState,
    connection_key,
    connection_of,
    free_owner,
    is_free,
    is_parked,
    is_session,
    session_key,
)
from leases.timings import Timings
from tests.simulation.feeds import Feed, Temper
from tests.simulation.invariants import Monitor
from tests.simulation.loop import LocalClock, Timetable
from tests.simulation.output import Stream
from tests.simulation.processes import Machine, Process
from tests.simulation.queue import Queue, QueueHints
from tests.simulation.runners import Outside, SimHost, SimRunner
from tests.simulation.table import Table, TableStore

WALL = 1_700_000_000.0
TTL = 1_800_000_000
FIRST_EPOCH = 100
HEARTBEAT_SHARE = 0.88
"""Of the self-fence time: so long the answer to one attempt of a heartbeat is listened for."""
STORE_TIMEOUT = 2.0
AUDIT_SECONDS = 60.0


class Listener:
    """Puts the events of one process into the trace."""

    def __init__(self, monitor: Monitor, process: Process) -> None:
        self._monitor = monitor
        self._process = process

    def saw(self, event: events.Event) -> None:
        """See `leases.events.Observer`."""
        kind = type(event).__name__
        if kind != "HeartbeatAcknowledged":
            self._monitor.counts[f"event {kind}"] += 1
            self._monitor.note(event, self._process.name)
            self._monitor.told(self._process, event)


class Worker:
    """A worker process: a member of the fleet, what it runs, and its way to the queue."""

    def __init__(self, world: "World", task: "Task", name: str) -> None:
        self.process = Process(world.timetable, name, task.machine.clock, world.failed)
        self.task = task
        self.stores = [
            TableStore(world.table, self.process, timeout)
            for timeout in (HEARTBEAT_SHARE * world.timings.self_fence, STORE_TIMEOUT)
        ]
        self.hints = QueueHints(world.queue)
        outside = Outside(self.process, world.timetable, world.rng("outside", name), world.feeds, world.stream)
        outside.distrusted = lambda: task.unaware
        self.host = SimHost(outside)
        self.sessions: list[str] = []
        self._ids = 0
        self.member = Member(
            identity=Identity(task_arn=task.machine.name, revision=task.revision, capacity=world.capacity),
            store=self.stores[1],
            heartbeat_store=LateAnswers(self.stores[0]),
            judge_store=self.stores[1],
            hints=self.hints,
            clock=task.machine.clock,
            timings=world.timings,
            rng=world.rng("member", name),
            host=self.host,
            observer=Listener(world.monitor, self.process),
            new_session=self._announce,
            new_id=self._new_id,
            drain_seconds=world.drain_seconds,
        )
        world.monitor.hosts[name] = self.host
        world.monitor.announced[name] = self.sessions
        self.process.on_exit.append(self._sockets_close)
        task.machine.add(self.process)
        self.process.run(self.member.run()).add_done_callback(lambda done: self._finished(world, done))

    def _finished(self, world: "World", done: "asyncio.Task[None]") -> None:
        error = done.exception()
        if error is not None:
            world.failed(self.process, f"the member raised {error!r}")
        if world.monitor.hosts[self.process.name].runners:
            world.monitor.violate("told", None, f"{self.process.name} ends with connections that it still runs")
        world.timetable.after(0.0, self.process.exit)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.process.name}#{self._ids}"

    async def _announce(self) -> str:
        self.sessions.append(f"{self.process.name}/{len(self.sessions) + 1}")
        await asyncio.sleep(0.001)
        return self.sessions[-1]

    def _sockets_close(self) -> None:
        for runner in self.host.runners:
            if runner.socket is not None:
                runner.socket.close()

    def takes_hints(self) -> bool:
        """See `tests.simulation.queue.Receiver`."""
        return self.member.room > 0 and not self.process.stopped

    def receive(self, connection: str, delete: Callable[[], None]) -> None:
        """See `tests.simulation.queue.Receiver`."""
        self.process.run(self._consider(connection, delete))

    async def _consider(self, connection: str, delete: Callable[[], None]) -> None:
        try:
            outcomes = await self.member.consider([connection])
        except Unknown:
            return
        if outcomes[connection] is Considered.DONE:
            delete()


class Task:
    """A task of the service: a machine with a supervisor (PID 1) and its worker processes."""

    def __init__(self, world: "World", name: str, revision: int, workers: int) -> None:
        self._world = world
        self.revision = revision
        self.machine = Machine(world.timetable, name, world.clock(name))
        self.unaware = False
        """Whether the machine was frozen and cannot know it yet."""
        self.lost = False
        self.stopping = False
        self.workers: list[Worker] = []
        self._started = 0
        self.supervisor = Process(world.timetable, f"{name}.0", self.machine.clock, world.failed)
        self.machine.add(self.supervisor)
        self._store = TableStore(world.table, self.supervisor, STORE_TIMEOUT)
        self._hints = QueueHints(world.queue)
        for _ in range(workers):
            self.start()

    def start(self) -> None:
        """Start one worker process."""
        if self.stopping or self.lost:
            return
        self._started += 1
        worker = Worker(self._world, self, f"{self.machine.name}.{self._started}")
        worker.process.on_exit.append(lambda: self._exited(worker))
        self.workers.append(worker)
        self._world.queue.receivers.append(worker)

    def stop(self) -> None:
        """SIGTERM: every worker drains, and none is started again."""
        self.stopping = True
        for worker in self.workers:
            self._world.monitor.stopping.add(worker.process.name)
            worker.process.call(worker.member.stop)

    def lose(self) -> None:
        """The host is gone."""
        self.lost = True
        self.machine.lose()

    def _exited(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._world.queue.receivers.remove(worker)
        if not self.lost:
            self._world.timetable.after(0.002, self.supervisor.call, self._reap, worker.sessions)

    def _reap(self, sessions: list[str]) -> None:
        self.supervisor.run(bury(self._store, self._hints, list(sessions)))
        self.supervisor.loop.call_later(0.3, self.start)


async def bury(store: TableStore, hints: QueueHints, sessions: list[str]) -> None:
    """Declare the sessions of a process that is proven gone dead, and have their connections looked at."""
    for session in reversed(sessions):
        while True:
            try:
                result = await store.write(writes.declare_dead(session, DeadBy.EXIT, None, TTL))
                break
            except Unknown:
                await asyncio.sleep(0.2)
        if not isinstance(result, Written):
            continue
        try:
            start = None
            while True:
                page = await store.owned_by(session, start)
                await hints.send(page.items)
                start = page.next
                if start is None:
                    break
        except Unknown:
            pass


class Api:
    """The Lambda functions: what users ask for, and what ECS says of a task that stopped."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.process = Process(world.timetable, "api", LocalClock(world.timetable, 1.0, WALL), world.failed)
        self.store = TableStore(world.table, self.process, STORE_TIMEOUT)
        self.hints = QueueHints(world.queue)
        self.dying = 0.0
        """Share of calls that end behind their write, before anybody is told."""
        self.untold = False
        """Whether that has happened: only the slow audit heals it."""
        self._audits = False

    def start_audits(self) -> None:
        """Have the audit function run from now on: whatever the fleet heals by itself is to be healed without."""
        if not self._audits:
            self._audits = True
            self.process.call(lambda: self.process.run(self._audit()))

    async def _audit(self) -> None:
        """Once a minute, have rows looked at whose owner is not there."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            rows = self._world.table.rows
            orphans = []
            for key, row in rows.items():
                owner = row.get("owner")
                if key.pk.startswith("CONNECTION#") and is_session(owner):
                    session = rows.get(session_key(str(owner)))
                    if session is None or session["state"] == SessionState.DEAD:
                        orphans.append(connection_of(key.pk))
            try:
                await self.hints.send(orphans)
            except Unknown:
                continue

    def create(self, connection: str) -> None:
        """POST /connections."""
        self.process.call(lambda: self.process.run(self._create(connection)))

    def change(self, connection: str, desired: Desired) -> None:
        """PATCH or DELETE."""
        self.process.call(lambda: self.process.run(self._change(connection, desired)))

    def force_release(self, connection: str) -> None:
        """POST .../force-release."""
        self.process.call(lambda: self.process.run(self._force_release(connection)))

    def drain(self, session: str) -> None:
        """POST /workers/{id}/drain."""
        self.process.call(lambda: self.process.run(self._drain(session)))

    def task_stopped(self, sessions: list[str]) -> None:
        """ECS says STOPPED with an exit code."""
        self.process.call(lambda: self.process.run(bury(self.store, self.hints, sessions)))

    def _dies(self) -> bool:
        dies = bool(self.dying) and self._world.random() < self.dying
        self.untold |= dies
        return dies

    async def _create(self, connection: str) -> None:
        row = {
            "owner": free_owner(connection),
            "epoch": FIRST_EPOCH,
            "desired": Desired.RUNNING.value,
            "generation": 1,
            "status": {"state": "PENDING"},
        }
        key = connection_key(connection)
        try:
            await self.store.write(Write(name="create", key=key, condition=Absent("pk"), set=row))
            if not self._dies():
                await self.hints.send([connection])
        except Unknown:
            return

    async def _change(self, connection: str, desired: Desired) -> None:
        for _ in range(5):
            try:
                item = await self.store.get(connection_key(connection))
                if item is None:
                    return
                row = ConnectionRow.from_item(item)
                if row.desired is Desired.STOPPED:
                    return
                status = {"state": "PENDING" if desired is Desired.RUNNING else desired.value}
                result = await self.store.write(writes.change(row, desired, status, TTL))
                if isinstance(result, Written):
                    await self._tell(connection, result.image)
                    return
            except Unknown:
                # The caller is answered 5xx; the write may be applied all the same, with nobody told.
                self.untold = True
                await asyncio.sleep(0.3)

    async def _tell(self, connection: str, image: Item) -> None:
        if self._dies():
            return
        owner = image.get("owner")
        if is_free(owner):
            await self.hints.send([connection])
        elif is_session(owner):
            result = await self.store.write(writes.inbox_hint(str(owner), connection))
            alive = result.image is not None and result.image["state"] in ALIVE
            if not isinstance(result, Written) and alive:
                await self.store.write(writes.inbox_everything(str(owner)))

    async def _force_release(self, connection: str) -> None:
        try:
            item = await self.store.get(connection_key(connection))
            row = ConnectionRow.from_item(item) if item is not None else None
            if row is None or not is_session(row.owner):
                return
            session = await self.store.get(session_key(str(row.owner)))
            if session is None or session["state"] != SessionState.DEAD:
                return
            await self.store.write(writes.force_release(row))
        except Unknown:
            return

    async def _drain(self, session: str) -> None:
        try:
            await self.store.write(writes.drain_session(session))
        except Unknown:
            return


class World:
    """Everything of one seed. `problems` says what keeps the fleet from being as it is wanted to be."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"{seed} world").random
        self.timetable = Timetable()
        self.timings = Timings()
        self.capacity = 20
        self.drain_seconds = 30.0
        self.table = Table(self.timetable, self.rng("table"))
        self.queue = Queue(self.timetable, self.rng("queue"))
        self.monitor = Monitor(self.timetable, self.table, self.timings)
        self.stream = Stream(self.timetable, self.rng("stream"), self.timings.drain)
        self.stream.landing.append(self.monitor)
        self.table.witnesses.append(self.monitor)
        self.feeds: dict[str, Feed] = {}
        self.tasks: list[Task] = []
        self.rates: Callable[[], float] = lambda: 1.0
        self.api = Api(self)
        self._names = 0

    def rng(self, *names: str) -> Random:
        """A source of chance of its own for each part, so that one part's use does not change another's."""
        return Random(f"{self.seed} {' '.join(names)}")

    def clock(self, name: str) -> LocalClock:
        """The clocks of a new machine."""
        return LocalClock(self.timetable, self.rates(), WALL + 600 * (self.random() - 0.5))

    def failed(self, process: Process, what: str) -> None:
        """Code in a process raised what nobody caught."""
        self.monitor.violate("no error escapes", None, f"{process.name}: {what}")

    def feed(self, connection: str, temper: Temper) -> None:
        """There is an upstream for a connection."""
        self.feeds[connection] = Feed(self.timetable, connection, temper)

    def start_task(self, workers: int, revision: int = 1) -> Task:
        """ECS starts a task."""
        self._names += 1
        task = Task(self, f"t{self._names}", revision, workers)
        self.tasks.append(task)
        return task

    @property
    def workers(self) -> list[Worker]:
        """Every worker process that is there."""
        return [worker for task in self.tasks for worker in task.workers]

    def problems(self) -> list[str]:
        """Where rows, processes and upstreams differ from what is wanted."""
        found: list[str] = []
        running = [
            (worker, runner) for worker in self.workers for runner in worker.host.runners if worker.process.alive
        ]
        for connection, feed in self.feeds.items():
            row = self.table.rows.get(connection_key(connection))
            if row is not None:
                here = [(worker, runner) for worker, runner in running if runner.connection == connection]
                found.extend(f"{connection}: {what}" for what in self._problems_of(feed, row, here))
        alive = {session: worker for worker in self.workers for session in worker.sessions[-1:]}
        for key, row in self.table.rows.items():
            if key.pk.startswith("SESSIONS#") and row["state"] in ALIVE and key.sk not in alive:
                found.append(f"session {key.sk} is {row['state']}, though its process is gone")
        return found

    def _problems_of(self, feed: Feed, row: dict[str, Any], running: list[tuple[Worker, SimRunner]]) -> list[str]:
        owner, status = row.get("owner"), row.get("status") or {}
        failed = is_parked(owner) and status.get("state") == "FAILED"
        if row["desired"] != "RUNNING" or failed:
            return self._problems_unwanted(feed, row, running)
        if not is_session(owner):
            return [f"nobody owns it: {owner}"]
        here = [runner for worker, runner in running if owner in worker.sessions[-1:]]
        problems = [
            f"runs in {worker.process.name} as well" for worker, _ in running if owner not in worker.sessions[-1:]
        ]
        if len(here) != 1:
            return [*problems, f"{owner} owns it and has {len(here)} runners of it"]
        if feed.temper.hopeless or feed.temper.deadly:
            return [*problems, "cannot run, but is not parked"]
        return problems + self._problems_running(feed, row, here[0])

    def _problems_unwanted(self, feed: Feed, row: dict[str, Any], running: list[tuple[Worker, SimRunner]]) -> list[str]:
        owner, desired, shown = row.get("owner"), row["desired"], (row.get("status") or {}).get("state")
        problems = [f"is not wanted, but runs in {worker.process.name}" for worker, _ in running]
        if feed.sockets:
            problems.append("is not wanted, but has a socket")
        if is_session(owner) or is_free(owner):
            problems.append(f"is {desired}, but {owner} owns it")
        if shown not in (desired, "FAILED"):
            problems.append(f"is {desired}, but shown as {shown}")
        if shown == "FAILED" and not (feed.temper.hopeless or row.get("strikes", 0) >= STRIKES_LIMIT):
            problems.append("has failed without a reason")
        return problems

    def _problems_running(self, feed: Feed, row: dict[str, Any], runner: SimRunner) -> list[str]:
        problems = []
        epoch = runner.grant.epoch if runner.grant is not None else None
        if runner.grant is None or epoch != row["epoch"]:
            problems.append(f"{row['owner']} owns epoch {row['epoch']}, its runner has {epoch}")
        elif not runner.grant.may_emit() or runner.settled:
            problems.append("its runner may not emit")
        if len(feed.sockets) != 1 or runner.socket is None:
            problems.append(f"has {len(feed.sockets)} sockets")
        if runner.generation != row["generation"]:
            problems.append(f"generation {runner.generation} runs, {row['generation']} is wanted")
        # A status write that lands late overwrites a later one of the same epoch, until the next change of state.
        unordered = any(self.table.counts[name] for name in ("late", "repeated", "slow"))
        status = row.get("status") or {}
        if status not in (runner.reports if unordered else runner.reports[-1:]) or status["epoch"] != row["epoch"]:
            problems.append(f"is shown as {status}")
        return problems

    def bury(self) -> None:
        """Free everything. No code of the simulated processes counts any more."""
        self.timetable.halted = True
        for process in [self.api.process, *(process for task in self.tasks for process in task.machine.processes)]:
            process.bury()
