"""The first process of a task: starts the worker processes, reaps them, and makes their deaths known.

It is small, so that it survives what its children may not. It holds no connection and no lease. As PID 1 it also reaps
whatever is orphaned in its container.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from telemetry.logs import Field
from worker.child import LEFT_BEHIND, SESSION_ID, STOP_SIGNALS, SUPERVISION_PIPE, SUPERVISOR_PID, new_session_id
from worker.logs import logger

log = logger()

CHILD_PIPE = 3
"""The descriptor under which a child finds its pipe: the first behind the standard ones."""

STEADY_SECONDS = 60.0
"""A process that ran this long did not fail to start; the next one begins without delay."""

RESTART_FIRST = 1.0
RESTART_CAP = 30.0
"""Seconds: bounds of the back-off between processes that keep ending soon after they began."""

HUNG_SECONDS = 120.0
"""A process whose loop has not turned for this long is killed: whatever it held has long been taken from it."""

START_SECONDS = 120.0
"""A process that has not opened its first session for this long is killed too. It may wait for the table meanwhile, so
this is as long as an outage of the table that costs nothing else."""


@dataclass(slots=True)
class Child:
    """A worker process that runs."""

    pid: int
    pipe: int
    """The end from which its lines are read."""
    started_at: float
    sessions: list[str]
    """Every session that it may have opened."""
    ended: asyncio.Future[int]
    """Its exit code, once it has one."""
    alive_at: float | None = None
    """When it last showed that its loop turns; None before its first session is open."""
    unread: bytes = b""

    def read(self, now: float) -> bool:
        """Take in what it has told; False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.pipe, 4096)
            except BlockingIOError:
                return True
            *lines, self.unread = (self.unread + data).split(b"\n")
            for line in lines:
                word, _, session = line.decode().partition(" ")
                if word == "session":
                    self.sessions.append(session)
                else:
                    self.alive_at = now
            if not data:
                return False


@dataclass(slots=True)
class Slot:
    """One of the task's places for a worker process."""

    failures: int = 0
    """Processes in a row that ended soon after they began."""
    child: Child | None = None
    drained: bool = False
    """Its process has ended well, and is not to be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to run, and how patiently. Times in seconds."""

    command: Sequence[str]
    """Program and arguments of a worker process; the program is a path."""
    environment: Mapping[str, str]
    processes: int
    kill_after: float
    """From SIGTERM to SIGKILL for a process that still runs."""
    bury_within: float
    """When the task stops: from the last process's end to its own, for declaring sessions dead."""
    hung_after: float = HUNG_SECONDS
    start_within: float = START_SECONDS


class Supervisor:
    """Keeps worker processes running until it is told to stop. Lives on one event loop, in the main thread."""

    def __init__(
        self,
        plan: Plan,
        *,
        declare: Callable[[str], Awaitable[object]],
        replaced: Callable[[], None],
        now: Callable[[], float],
        rng: Random,
    ) -> None:
        """`declare` makes the death of a session known; `replaced` is told of each process that ended unasked."""
        self._plan = plan
        self._declare = declare
        self._replaced = replaced
        self._now = now
        self._rng = rng
        self._slots = [Slot() for _ in range(plan.processes)]
        self._stopping = asyncio.Event()
        self._burials: set[asyncio.Future[object]] = set()
        self._clean = True

    @property
    def healthy(self) -> bool:
        """Whether a worker process runs that has once opened a session."""
        return any(child.alive_at is not None for child in self._children())

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, and until all has ended; returns the exit code.

        0: every process has handed over or released all that it held. 1: one had to be killed, crashed while it
        stopped, or could not let go of everything, so that messages may be missing.

        STOP_SIGNALS may be blocked when this is called, so that none is lost before: it lets them through.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            async with asyncio.TaskGroup() as tasks:
                for slot in self._slots:
                    tasks.create_task(self._keep(slot))
                tasks.create_task(self._end())
            await self._bury_the_last()
        finally:
            # A stop that is repeated at the very end must not turn a clean end into a violent one.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            for number in (signal.SIGCHLD, *STOP_SIGNALS):
                loop.remove_signal_handler(number)
        return 0 if self._clean else 1

    def _children(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.child is not None]

    # Processes

    async def _keep(self, slot: Slot) -> None:
        """Run one process after the other in a slot, until the task stops.

        One that ends by itself without being told to by this process has been drained by an operator: it is not
        replaced.
        When all have, the task ends, and the service replaces it.
        """
        while True:
            await self._back_off(slot.failures)
            if self._stopping.is_set():
                return
            child = self._spawn(slot)
            if child is None:
                slot.failures += 1
                continue
            await self._watch(child)
            if child.ended.result() in (0, LEFT_BEHIND) and not self._stopping.is_set():
                slot.drained = True
                if all(other.drained for other in self._slots):
                    self._stopping.set()
                return
            if child.alive_at is not None and self._now() - child.started_at >= STEADY_SECONDS:
                slot.failures = 0
            else:
                slot.failures += 1
            if not self._stopping.is_set():
                self._replaced()

    async def _back_off(self, failures: int) -> None:
        if failures == 0:
            return
        longest = min(RESTART_CAP, RESTART_FIRST * 2.0 ** min(failures - 1, 16))
        try:
            async with asyncio.timeout(longest * self._rng.uniform(0.5, 1)):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _spawn(self, slot: Slot) -> Child | None:
        read, write = os.pipe()
        session = new_session_id()
        variables = {SESSION_ID: session, SUPERVISION_PIPE: str(CHILD_PIPE), SUPERVISOR_PID: str(os.getpid())}
        try:
            pid = os.posix_spawn(
                self._plan.command[0],
                list(self._plan.command),
                {**self._plan.environment, **variables},
                file_actions=[(os.POSIX_SPAWN_DUP2, write, CHILD_PIPE)],
                # Blocked until the child is ready for them, so that a stop during its start is not lost.
                setsigmask=STOP_SIGNALS,
                setsigdef=[signal.SIGCHLD, signal.SIGPIPE, *STOP_SIGNALS],
            )
        except OSError as error:
            os.close(read)
            log.warning("No worker process could be started; trying again.", extra={Field.REASON: error.strerror})
            return None
        finally:
            os.close(write)
        os.set_blocking(read, False)
        loop = asyncio.get_running_loop()
        child = Child(pid=pid, pipe=read, started_at=self._now(), sessions=[session], ended=loop.create_future())
        slot.child = child
        loop.add_reader(read, self._told, child)
        log.info("A worker process started.", extra={"pid": pid, Field.SESSION: session})
        return child

    def _told(self, child: Child) -> None:
        if not child.read(self._now()):
            asyncio.get_running_loop().remove_reader(child.pipe)

    async def _watch(self, child: Child) -> None:
        """Wait for the end of a process, and bring it about if it hangs, be it stopped or before its first session."""
        while not child.ended.done():
            if child.alive_at is None:
                since, patience, what = child.started_at, self._plan.start_within, "has not opened a session"
            else:
                since, patience, what = child.alive_at, self._plan.hung_after, "has shown no life"
            left = since + patience - self._now()
            if left > 0:
                await asyncio.wait([child.ended], timeout=min(left, self._plan.hung_after))
                continue
            log.error("A worker process %s for %g s; killing it.", what, patience, extra={"pid": child.pid})
            os.kill(child.pid, signal.SIGKILL)
            await child.ended

    def _reap(self) -> None:
        """Take the status of every process that has ended: children, and orphans that PID 1 inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for slot in self._slots:
                if slot.child is not None and slot.child.pid == pid:
                    self._ended(slot, slot.child, os.waitstatus_to_exitcode(status))

    def _ended(self, slot: Slot, child: Child, code: int) -> None:
        asyncio.get_running_loop().remove_reader(child.pipe)
        child.read(self._now())
        os.close(child.pipe)
        slot.child = None
        for session in child.sessions:
            burial = asyncio.ensure_future(self._declare(session))
            self._burials.add(burial)
            burial.add_done_callback(self._burials.discard)
        if code == LEFT_BEHIND or (code != 0 and self._stopping.is_set()):
            self._clean = False
        tell = log.info if code == 0 else log.error
        tell("A worker process ended.", extra={"pid": child.pid, "exitCode": code, "sessionIds": child.sessions})
        child.ended.set_result(code)

    # Stopping

    def _stop(self) -> None:
        self._stopping.set()

    async def _end(self) -> None:
        """Pass the stop on, and kill what has not ended in time."""
        await self._stopping.wait()
        log.info("Stopping: worker processes hand over.", extra={"killAfterSeconds": self._plan.kill_after})
        for child in self._children():
            os.kill(child.pid, signal.SIGTERM)
        ends = [child.ended for child in self._children()]
        if ends:
            await asyncio.wait(ends, timeout=self._plan.kill_after)
        for child in self._children():
            log.error("A worker process did not stop in time; killing it.", extra={"pid": child.pid})
            os.kill(child.pid, signal.SIGKILL)

    async def _bury_the_last(self) -> None:
        if not self._burials:
            return
        _, left = await asyncio.wait(self._burials, timeout=self._plan.bury_within)
        for burial in left:
            burial.cancel()
        if left:
            log.error("Sessions could not be declared dead in time; judges will.", extra={"sessions": len(left)})
