"""Nothing that was started outlives the one that started it, however that one ends."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.processes import ROOT, Processes, python_environment

PATIENCE_SECONDS = 30.0

PARENT = """
import json, sys, time
from local.processes import Processes, python_environment
CHILD = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(grandchild.pid, flush=True)
time.sleep(600)
'''
with Processes("test") as processes:
    child = processes.spawn("stubborn", [sys.executable, "-c", CHILD], env=python_environment(), piped=True)
    grandchild = int(child.output.readline())
    print(json.dumps({"pids": [child.pid, grandchild], "scratch": str(processes.scratch)}), flush=True)
    time.sleep(600)
"""


def wait_for_the_end(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while alive := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"{alive} still run"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(*argv: str) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    """Start a program; returns it and the JSON of its first line."""
    process = subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, env=python_environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    assert line, f"it ended with {process.wait(PATIENCE_SECONDS)}"
    return process, json.loads(line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_descendants_and_scratch_go_with_their_starter(number: signal.Signals) -> None:
    process, said = start("-c", PARENT)
    assert all(runs(pid) for pid in said["pids"])

    process.send_signal(number)
    process.wait(PATIENCE_SECONDS)

    wait_for_the_end(said["pids"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while Path(said["scratch"]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stop_is_a_kill_after_the_grace(processes: Processes) -> None:
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print(1, flush=True); time.sleep(600)"
    stubborn, obedient = program.format("signal.SIG_IGN"), program.format("lambda *_: sys.exit(7)")
    codes = []
    for name, code, grace in (("stubborn", stubborn, 0.2), ("obedient", obedient, PATIENCE_SECONDS)):
        child = processes.spawn(name, [sys.executable, "-c", code], env=python_environment(), piped=True)
        child.output.readline()
        codes.append(child.stop(grace))
        processes.forget(child)

    assert codes == [-signal.SIGKILL, 7]
