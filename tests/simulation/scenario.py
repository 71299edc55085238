"""What happens in the world of one seed: a fleet, connections, users, faults that end; then calm, and convergence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leases.rows import Desired, session_key
from leases.timings import Timings
from tests.simulation.feeds import Temper
from tests.simulation.world import Task, Worker, World

WITHIN = 150.0
"""Seconds of calm within which everything is as wanted: a claim that landed late waits for the self-audit (60 s)."""
WITHIN_SLOWLY = 760.0
"""The same where a change was told to nobody (ten self-audits read every row once), or where the row of a session is
gone (an audit, then two looks of one worker)."""
CALMING_SECONDS = 1.0
SETTLED_FOR = 3
"""Looks, a second apart, that must find no problem."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    violations: list[str]
    virtual_seconds: float
    converged_after: float
    counts: dict[str, int]
    trace: list[tuple[Any, ...]]


class Scenario:
    """One seed."""

    def __init__(self, seed: int) -> None:
        world = self.world = World(seed)
        self.rng = rng = world.rng("scenario")
        self.until = rng.uniform(20.0, 50.0)
        """When the last fault ends."""
        self.silenced_until = float("-inf")
        self.slowly = False
        """Whether something has happened that only the slow audits heal."""
        world.timings = world.monitor.timings = _timings(rng.random())
        world.stream.drain = world.timings.drain
        world.drain_seconds = rng.choice((6.0, 30.0, 90.0))
        drift = rng.choice((0.0, 1.0, 1.0))
        ratio = world.timings.rate_ratio**0.5
        world.rates = lambda: rng.choice((1 / ratio, ratio, rng.uniform(1 / ratio, ratio))) ** drift
        world.monitor.excused = lambda process: world.timetable.now < self.silenced_until
        self._fleet()
        self._connections()
        self._climate()
        for _ in range(rng.choice((0, 1, 2, 3, 4, 6, 9, 12))):
            self._fault(rng.choice(FAULTS))

    # The setting

    def _fleet(self) -> None:
        rng, world = self.rng, self.world
        shape = rng.choice(
            ((1, 1), (1, 1, 1), (2, 2), (2, 1), (1, 1, 1, 1), (1, 2, 1), (1,), (1,) * rng.randint(7, 10))
        )
        self.shape = shape
        for number, workers in enumerate(shape):
            if number == 0 or rng.random() < 0.7:
                world.start_task(workers)
            else:
                world.timetable.at(rng.uniform(0, 3), world.start_task, workers)

    def _connections(self) -> None:
        rng, world = self.rng, self.world
        count = rng.randint(2, 9)
        world.capacity = rng.choice((count, count, 2 * count, -(-count // max(1, sum(self.shape) - 1))))
        odd = rng.choice(("none", "none", "none", "hopeless", "deadly"))
        for number in range(count):
            name = f"c{number}"
            temper = Temper(
                interval=rng.choice((0.3, 1.0, 1.0, 2.0)),
                phase=rng.random(),
                one_socket=rng.random() < 0.2,
                hopeless=odd == "hopeless" and number == 0,
                deadly=odd == "deadly" and number == 0,
            )
            world.feed(name, temper)
            at = rng.uniform(0, 2) if rng.random() < 0.7 else rng.uniform(0, self.until)
            world.timetable.at(at, world.api.create, name)
            self._wishes(name, at)

    def _wishes(self, name: str, since: float) -> None:
        rng, world = self.rng, self.world
        for _ in range(rng.choice((0, 0, 0, 1, 2, 4))):
            desired = rng.choice((Desired.RUNNING, Desired.RUNNING, Desired.PAUSED, Desired.PAUSED, Desired.STOPPED))
            at = rng.uniform(since, self.until)
            world.timetable.at(at, world.api.change, name, desired)
            if rng.random() < 0.3:
                again = rng.choice((Desired.RUNNING, Desired.PAUSED))
                world.timetable.at(min(self.until, at + rng.uniform(0.02, 1.2)), world.api.change, name, again)

    def _climate(self) -> None:
        """Weather that lasts until calm comes."""
        rng, world = self.rng, self.world
        chance = rng.random
        delay = rng.choice((0.001, 0.004))
        world.table.bad_weather(page=rng.choice((1, 2, 3, 1000)), delay=delay, spread=2 * delay)
        world.api.dying = 0.2 if chance() < 0.1 else 0.0
        undo: list[Callable[[], None]] = []
        if chance() < 0.5:
            undo.append(
                world.table.bad_weather(
                    stale_seconds=rng.choice((0.0, 2.0, 10.0)),
                    missing=rng.choice((0.0, 0.3)),
                    late=rng.choice((0.0, 0.1)),
                    repeated=rng.choice((0.0, 0.2)),
                    late_seconds=rng.choice((2.0, 20.0)),
                )
            )
            if world.table.weather.late:
                # Every tenth write comes late, and four attempts of one heartbeat may in a row.
                self.silenced_until = self.until + 10.0
        if chance() < 0.3:
            world.queue.lost, world.queue.repeated, world.queue.late_seconds = 0.3 * chance(), chance(), 10 * chance()
        if chance() < 0.3:
            world.stream.lost, world.stream.unacknowledged, world.stream.slow = 0.2 * chance(), 0.2 * chance(), chance()
        self._calm_down = undo
        world.timetable.at(self.until + CALMING_SECONDS / 2, self._calm)

    def _calm(self) -> None:
        world = self.world
        for undo in reversed(self._calm_down):
            undo()
        world.queue.lost = world.queue.repeated = world.queue.late_seconds = 0.0
        world.stream.lost = world.stream.unacknowledged = 0.0
        world.stream.slow = 0.05
        world.api.dying = 0.0
        there = sum(len(task.workers) for task in world.tasks if not task.stopping)
        if there * world.capacity < len(world.feeds):
            world.start_task(max(1, sum(self.shape) - there), self._revision())

    def _revision(self) -> int:
        return max(task.revision for task in self.world.tasks)

    # Faults

    def _fault(self, fault: Callable[["Scenario", float, float], bool]) -> None:
        start = self.rng.uniform(2.0, self.until)
        longest = self.until - start

        def happen() -> None:
            if fault(self, longest, self.rng.random()):
                name = fault.__name__.removeprefix("_")
                self.world.monitor.counts[f"fault {name}"] += 1
                self.world.monitor.note("FAULT", name)

        self.world.timetable.at(start, happen)

    def _worker(self) -> Worker | None:
        workers = self.world.workers
        return self.rng.choice(workers) if workers else None

    def _task(self) -> Task | None:
        tasks = [task for task in self.world.tasks if not task.lost]
        return self.rng.choice(tasks) if tasks else None

    def _length(self, longest: float) -> float:
        timings = self.world.timings
        typical = (0.3, timings.self_fence / 2, timings.self_fence, timings.takeover, 2 * timings.takeover, 20.0)
        return min(longest, self.rng.choice(typical) * self.rng.uniform(0.7, 1.3))

    def _crash(self, longest: float, chance: float) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        self._note(worker.process.name)
        worker.process.exit()
        return True

    def _crash_in_the_act(self, longest: float, chance: float) -> bool:
        """It crashes right behind an emission, which lands as late as one may."""
        worker = self._worker()
        if worker is None:
            return False
        self._note(worker.process.name)
        self.world.stream.last_words[worker.process.name] = worker.process.exit
        return True

    def _crash_unreaped(self, longest: float, chance: float) -> bool:
        """The supervisor stands still while its child dies: only judges can tell."""
        worker = self._worker()
        if worker is None:
            return False
        supervisor = worker.task.supervisor
        supervisor.stop()
        worker.process.exit()
        self.world.timetable.after(self._length(longest), supervisor.go_on)
        return True

    def _lose_task(self, longest: float, chance: float) -> bool:
        task = self._task()
        if task is None:
            return False
        self._note(task.machine.name)
        workers, sessions = len(task.workers), [name for worker in task.workers for name in worker.sessions]
        task.lose()
        self.world.timetable.after(min(longest, 8 * chance), self.world.start_task, max(1, workers), task.revision)
        if chance < 0.3:
            self.world.timetable.after(1 + chance, self.world.api.task_stopped, sessions)
        return True

    def _lose_all(self, longest: float, chance: float) -> bool:
        for task in list(self.world.tasks):
            if not task.lost:
                workers, revision = max(1, len(task.workers)), task.revision
                task.lose()
                self.world.timetable.after(
                    min(longest, 5 * self.rng.random()), self.world.start_task, workers, revision
                )
        return True

    def _lose_most(self, longest: float, chance: float) -> bool:
        """All hosts but one are gone at once, and with them most judges."""
        tasks = [task for task in self.world.tasks if not task.lost and not task.stopping]
        for task in tasks[1:]:
            task.lose()
        return len(tasks) > 1

    def _pause(self, longest: float, chance: float) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        length = self._length(longest)
        self._note(worker.process.name, length)
        if chance < 0.5:
            worker.process.pause_amid(self.rng.randint(0, 12), length)
        else:
            worker.process.stop()
            self.world.timetable.after(length, worker.process.go_on)
        return True

    def _stutter(self, longest: float, chance: float) -> bool:
        """Short stops, one after the other: a starved process."""
        worker = self._worker()
        if worker is None:
            return False
        at = 0.0
        while at < min(longest, 10.0):
            stop = self.rng.uniform(0.05, 2.5)
            self.world.timetable.after(at, worker.process.pause_amid, self.rng.randint(0, 5), stop)
            at += stop + self.rng.uniform(0.05, 1.5)
        return True

    def _suspend(self, longest: float, chance: float) -> bool:
        """The machine sleeps: its monotonic clock stops, its boot-time clock does not."""
        task = self._task()
        if task is None or task.machine.frozen:
            return False
        length = self._length(longest)
        task.machine.freeze()
        self.world.timetable.after(length, task.machine.thaw, length * task.machine.clock.rate)
        return True

    def _freeze(self, longest: float, chance: float) -> bool:
        """A hypervisor stops the machine with all its clocks; somebody sets its wall clock a while later."""
        task = self._task()
        length = self._length(longest)
        if task is None or task.machine.frozen or length < 1.5:
            return False
        self._note(task.machine.name, length)
        task.machine.freeze()
        task.unaware = True

        def thaw() -> None:
            task.machine.thaw(0.0)
            self.world.timetable.after(self.rng.choice((0.0, 0.05, 2.0)) * chance, noticed)

        def noticed() -> None:
            task.machine.clock.step_wall(length * task.machine.clock.rate)
            task.unaware = False

        self.world.timetable.after(length, thaw)
        return True

    def _set_wall(self, longest: float, chance: float) -> bool:
        task = self._task()
        if task is None:
            return False
        task.machine.clock.step_wall(600 * (chance - 0.5))
        return True

    def _drift(self, longest: float, chance: float) -> bool:
        task = self._task()
        if task is None:
            return False
        task.machine.drift(self.world.rates())
        return True

    def _cut(self, longest: float, chance: float) -> bool:
        """One process cannot reach the table, or does not hear its answers, or hears them late, or first late."""
        worker = self._worker()
        if worker is None:
            return False
        length = self._length(longest)
        way = "both" if chance < 0.4 else "answers" if chance < 0.7 else "late"
        self._note(worker.process.name, way, length)
        self._cut_off(worker, way, length)
        if chance > 0.55:
            gap = 0.0 if way == "late" else self.rng.uniform(0.1, 1.0)
            longest -= length + gap
            if longest > 0:
                self.world.timetable.after(length + gap, self._cut_off, worker, "both", min(longest, 10.0))
        return True

    def _last_answer(self, longest: float, chance: float) -> bool:
        """The answers to one process are lost; one gets through, about a write that landed long before; then none."""
        worker = self._worker()
        unheard = self.world.timings.self_fence * (0.5 + 0.8 * chance)
        cut = min(longest - unheard, 2 * self.world.timings.takeover)
        if worker is None or cut <= 0:
            return False
        self._note(worker.process.name, unheard)
        self._cut_off(worker, "answers", unheard)
        self.world.timetable.after(unheard, self._cut_off, worker, "last", cut)
        return True

    def _cut_off(self, worker: Worker, way: str, length: float) -> None:
        for store in worker.stores:
            store.cut = way
        worker.hints.cut = True
        worker.process.disturb()
        self.world.stream.laggards.add(worker.process.name)

        def mend() -> None:
            for store in worker.stores:
                store.cut = None
            worker.hints.cut = False
            worker.process.calm()
            self.world.stream.laggards.discard(worker.process.name)

        self.world.timetable.after(length, mend)

    def _outage(self, longest: float, chance: float) -> bool:
        """Nobody can reach the table."""
        monitor, timetable = self.world.monitor, self.world.timetable
        if monitor.outage_since is not None:
            return False
        length = min(longest, self.rng.choice((1.0, 4.0, 8.0, 30.0)) * self.rng.uniform(0.7, 1.3))
        self._note(length)
        how = "down" if chance < 0.6 else "unwritable"
        undo = self.world.table.bad_weather(**{how: True})
        monitor.outage_since = timetable.now

        def over() -> None:
            undo()
            monitor.outage_since = None

        timetable.after(length, over)
        return True

    def _storm(self, longest: float, chance: float) -> bool:
        """Calls are throttled, unanswered or slow, for everybody, each by chance."""
        length = min(longest, self.rng.uniform(3.0, 20.0))
        self.silenced_until = max(self.silenced_until, self.world.timetable.now + length + 10.0)
        name, share = self.rng.choice((("throttled", 0.5), ("unanswered", 0.6), ("slow", 0.5)))
        self.world.timetable.after(length, self.world.table.bad_weather(**{name: share * chance}))
        return True

    def _terminate(self, longest: float, chance: float) -> bool:
        """SIGTERM to a task; another takes its place."""
        task = self._task()
        if task is None or task.stopping:
            return False
        self._note(task.machine.name)
        workers = max(1, len(task.workers))
        if chance < 0.5:
            self.world.start_task(workers, task.revision)
        else:
            self.world.timetable.after(min(longest, 4 * chance), self.world.start_task, workers, task.revision)
        self._second_thoughts(longest)
        self.world.timetable.after(min(longest, 2.0) if chance < 0.5 else 0.0, task.stop)
        return True

    def _second_thoughts(self, longest: float) -> None:
        """Users change their requests while connections move."""
        if self.rng.random() < 0.5:
            for connection in self.world.feeds:
                at = min(longest, self.rng.uniform(1.5, 4.5))
                desired = Desired.PAUSED if self.rng.random() < 0.1 else Desired.RUNNING
                self.world.timetable.after(at, self.world.api.change, connection, desired)

    def _deploy(self, longest: float, chance: float) -> bool:
        """Every task is replaced by one of the next revision, new ones first."""
        revision = self._revision() + 1
        for number, task in enumerate([task for task in self.world.tasks if not task.lost and not task.stopping]):
            at = min(longest, number * 4.0 * chance)
            self.world.timetable.after(at, self.world.start_task, max(1, len(task.workers)), revision)
            self.world.timetable.after(min(longest, at + 2.0), task.stop)
        self._second_thoughts(longest)
        return True

    def _drain(self, longest: float, chance: float) -> bool:
        """An operator drains one worker through the API."""
        worker = self._worker()
        if worker is None or not worker.sessions:
            return False
        self.world.monitor.stopping.add(worker.process.name)
        self.world.api.drain(worker.sessions[-1])
        return True

    def _delete_session(self, longest: float, chance: float) -> bool:
        """Somebody deletes the row of a session by hand."""
        worker = self._worker()
        if worker is None or not worker.sessions:
            return False
        worker.process.disturb()
        self.world.table.delete(session_key(worker.sessions[-1]))
        self.world.api.start_audits()
        self.slowly = True
        worker.process.calm()
        for connection in self.world.feeds:
            self.world.queue.put(connection)
        return True

    def _upstream_closes(self, longest: float, chance: float) -> bool:
        for feed in self.world.feeds.values():
            if self.rng.random() < 0.6:
                feed.drop()
        return True

    def _upstream_refuses(self, longest: float, chance: float) -> bool:
        outsides = [worker.host.outside for worker in self.world.workers]
        for outside in outsides:
            outside.dialling_fails = chance

        def over() -> None:
            for outside in outsides:
                outside.dialling_fails = 0.0

        self.world.timetable.after(min(longest, 15.0), over)
        return True

    def _force_release(self, longest: float, chance: float) -> bool:
        for connection in self.world.feeds:
            self.world.api.force_release(connection)
        return True

    def _note(self, *what: Any) -> None:
        self.world.monitor.note("fault on", *what)

    # The run

    def run(self) -> Outcome:
        """Let it happen, then wait for convergence."""
        world, monitor = self.world, self.world.monitor
        timetable = world.timetable
        timetable.run(self.until + CALMING_SECONDS)
        calm_at, good = timetable.now, 0
        problems: list[str] = []
        while not timetable.halted and good < SETTLED_FOR:
            timetable.run(timetable.now + 1.0)
            problems = world.problems()
            good = 0 if problems else good + 1
            if timetable.now - calm_at > (WITHIN_SLOWLY if world.api.untold or self.slowly else WITHIN):
                monitor.violate("3", problems[0].split(":")[0] if problems else None, "; ".join(problems))
        seconds = timetable.now
        violations = list(map(str, monitor.violations))
        trace, counts = list(monitor.trace), dict(monitor.counts)
        counts |= {f"calls {name}": count for name, count in world.table.counts.items()}
        counts["calls"] = world.table.calls
        world.bury()
        return Outcome(world.seed, violations, seconds, seconds - calm_at, counts, trace)


def _timings(chance: float) -> Timings:
    if chance < 0.3:
        return Timings()
    if chance < 0.6:
        return Timings(takeover=6.6)
    if chance < 0.8:
        return Timings(takeover=6.6, give_up=15.0)
    return Timings(
        heartbeat=0.5, self_fence=3.1, drain=0.6, takeover=4.07, judge_poll=0.4, call_timeout=0.9, give_up=20.0
    )


FAULTS: list[Callable[[Scenario, float, float], bool]] = [
    Scenario._crash,
    Scenario._crash_in_the_act,
    Scenario._crash_in_the_act,
    Scenario._crash_in_the_act,
    Scenario._crash_unreaped,
    Scenario._lose_task,
    Scenario._lose_task,
    Scenario._lose_all,
    Scenario._lose_most,
    Scenario._lose_most,
    Scenario._pause,
    Scenario._pause,
    Scenario._pause,
    Scenario._stutter,
    Scenario._suspend,
    Scenario._freeze,
    Scenario._set_wall,
    Scenario._drift,
    Scenario._cut,
    Scenario._cut,
    Scenario._last_answer,
    Scenario._outage,
    Scenario._outage,
    Scenario._storm,
    Scenario._storm,
    Scenario._terminate,
    Scenario._terminate,
    Scenario._deploy,
    Scenario._drain,
    Scenario._delete_session,
    Scenario._upstream_closes,
    Scenario._upstream_refuses,
    Scenario._force_release,
]
