"""The supervisor with real children and real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from worker.health import check

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 30.0


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < give_up, f"waited for {what}"
        time.sleep(0.01)


class Task:
    """A supervisor process and what its children leave in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self, *, processes: int = 1, kill_after: float = 20, hung_after: float = 120, start_within: float = 120
    ) -> None:
        program = Path(__file__).with_name("supervisor_program.py")
        arguments = map(str, (program, self.directory, processes, kill_after, hung_after, start_within))
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children()]

    def tell(self, order: str) -> None:
        (self.directory / order).touch()

    def names(self, kind: str) -> set[str]:
        return {path.name.removeprefix(f"{kind}-") for path in self.directory.glob(f"{kind}-*")}

    def logged(self, text: str) -> int:
        """How many lines of the supervisor's log hold a text."""
        return sum(text in line for line in (self.directory / "log").read_text().splitlines())

    def replaced(self) -> list[float]:
        """When processes had to be replaced, in seconds."""
        file = self.directory / "replaced"
        return list(map(float, file.read_text().split())) if file.exists() else []

    def session(self, pid: int | str) -> str:
        return (self.directory / f"started-{pid}").read_text()

    def ready(self, processes: int) -> list[int]:
        until(lambda: len(self.names("ready")) >= processes, f"{processes} ready children")
        return [int(pid) for pid in self.names("ready")]

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    def end(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(DEADLINE)


def blocked(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    task = Task(tmp_path)
    yield task
    task.end()


def test_a_stop_is_passed_on_and_ends_with_zero(task: Task) -> None:
    task.start(processes=2)
    children = task.ready(2)
    assert task.stop() == 0
    assert task.names("stopped") == {str(pid) for pid in children}
    assert task.names("dead") == {task.session(pid) for pid in children}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_stop_while_the_supervisor_itself_starts_is_clean(task: Task) -> None:
    task.start()
    until(lambda: blocked(task.pid, signal.SIGTERM), "the first line of the program")
    assert task.stop() == 0


def test_a_stop_while_a_child_starts_reaches_it(task: Task) -> None:
    task.tell("slow")
    task.start()
    until(lambda: task.names("started"), "a child that is starting")
    assert task.stop() == 0
    assert task.names("stopped") == task.names("started")


def test_a_second_stop_changes_nothing(task: Task) -> None:
    task.tell("slow")
    task.start()
    until(lambda: task.names("started"), "a child that is starting")
    os.kill(task.pid, signal.SIGTERM)
    os.kill(task.pid, signal.SIGINT)
    assert task.stop() == 0


def test_a_stop_that_is_repeated_to_the_very_end_is_clean(task: Task) -> None:
    task.start()
    task.ready(1)
    assert task.process is not None
    until_over = time.monotonic() + 30
    while task.process.poll() is None and time.monotonic() < until_over:
        # Each of them is handled: more than a process can handle would keep it from anything else.
        with suppress(subprocess.TimeoutExpired):
            task.process.wait(0.001)
        with suppress(ProcessLookupError):
            task.process.send_signal(signal.SIGTERM)
    assert task.process.returncode == 0


def test_a_crash_is_declared_at_once_and_the_process_replaced(task: Task) -> None:
    task.start(processes=2)
    first, second = task.ready(2)
    os.kill(first, signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: task.names("dead"), "the dead session")
    assert time.monotonic() - killed_at < 0.3
    assert task.names("dead") == {task.session(first)}
    assert len(task.ready(3)) == 3
    assert psutil.pid_exists(second)
    assert task.stop() == 0


def test_a_session_announced_before_the_death_is_declared_too(task: Task) -> None:
    task.tell("reopen")
    task.start()
    until(lambda: task.names("dead"), "a dead session")
    (task.directory / "reopen").unlink()
    second = (task.directory / "session-2").read_text()
    until(lambda: second in task.names("dead"), "the second session of the dead process")
    task.ready(2)
    assert task.stop() == 0


def test_processes_that_keep_crashing_are_replaced_ever_more_slowly(task: Task) -> None:
    task.tell("crash")
    task.start()
    until(lambda: len(task.replaced()) >= 4, "crashes")
    times = task.replaced()
    assert times[2] - times[0] > 1.5  # 0.5 to 1 s, then 1 to 2 s
    assert not check(task.pid)
    assert task.stop() == 0


def test_a_death_is_declared_however_long_the_store_is_down(task: Task) -> None:
    task.tell("store-down")
    task.start()
    (first,) = task.ready(1)
    os.kill(first, signal.SIGKILL)
    task.ready(2)  # the replacement does not wait for the store
    assert not task.names("dead")
    (task.directory / "store-down").unlink()
    until(lambda: task.names("dead") == {task.session(first)}, "the declaration")
    assert task.stop() == 0


def test_what_does_not_stop_in_time_is_killed_and_declared(task: Task) -> None:
    task.tell("stubborn")
    task.start(kill_after=0.5)
    (child,) = task.ready(1)
    assert task.stop() == 1
    assert not psutil.pid_exists(child)
    assert task.names("dead") == {task.session(child)}


def test_a_stopped_process_is_killed_too(task: Task) -> None:
    task.start(kill_after=0.5)
    (child,) = task.ready(1)
    os.kill(child, signal.SIGSTOP)
    assert task.stop() == 1
    assert not psutil.pid_exists(child)


def test_a_process_that_hangs_is_killed_and_replaced(task: Task) -> None:
    task.tell("hang")
    task.start(hung_after=1.0)
    (child,) = task.ready(1)
    (task.directory / "hang").unlink()
    until(lambda: task.names("dead") == {task.session(child)}, "the declaration")
    task.ready(2)
    assert task.logged("has shown no life for 1 s; killing it") == 1


@pytest.mark.parametrize("order", ["hang-import", "hang-stopped", "hang-open"])
def test_a_process_that_hangs_before_its_first_session_is_killed_and_replaced(task: Task, order: str) -> None:
    task.tell(order)
    task.start(start_within=3.0)
    until(task.children, "a child")
    (child,) = task.children()
    until(task.replaced, "its end")
    (task.directory / order).unlink()
    assert not psutil.pid_exists(child)
    until(lambda: task.names("dead"), "the declaration")
    assert task.logged(f'"pid":{child}') == 3  # started, killed, ended
    assert task.logged("has not opened a session for 3 s; killing it") == 1
    task.ready(1)
    assert task.stop() == 0


def test_processes_that_keep_hanging_at_their_start_are_replaced_ever_more_slowly(task: Task) -> None:
    task.tell("hang-import")
    task.start(start_within=0.2)
    until(lambda: len(task.replaced()) >= 3, "ends")
    times = task.replaced()
    assert times[2] - times[0] > 0.4 + 1.5  # 0.5 to 1 s, then 1 to 2 s
    assert not check(task.pid)
    assert task.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_no_child_outlives_the_supervisor_not_even_a_frozen_one(task: Task) -> None:
    task.start(processes=2)
    children = task.ready(2)
    os.kill(children[0], signal.SIGSTOP)
    os.kill(task.pid, signal.SIGKILL)
    for child in children:
        until(lambda pid=child: not running(pid), "the end of the children")  # type: ignore[misc]


def running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_healthy_once_a_child_has_opened_a_session(task: Task) -> None:
    task.tell("slow")
    task.start()
    until(lambda: task.names("started"), "a child that is starting")
    assert not check(task.pid)
    task.ready(1)
    until(lambda: check(task.pid), "health")
    asked = [sys.executable, "-m", "worker.health"]
    assert subprocess.run([*asked, str(task.pid)], cwd=ROOT).returncode == 0
    assert task.stop() == 0
    assert subprocess.run([*asked, str(task.pid)], cwd=ROOT).returncode == 1
