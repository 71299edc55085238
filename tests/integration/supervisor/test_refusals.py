"""A worker task that is given what cannot work does not start: it says which rule is broken by what, and ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = {"TABLE_NAME": "t", "OWNER_INDEX": "by_owner", "QUEUE_URL": "http://queue", "STREAM_NAME": "s"}
PATIENCE_SECONDS = 60
NUMBER = "must be a number above 0, but is"


@pytest.mark.parametrize(
    ("takeover", "heartbeat", "said"),
    [
        ("5", "5", ("takeover >= rate_ratio * (self_fence + drain)", "5.0 < 1.1 * (5.0 + 1.0) = 6.600")),
        ("7", "5", ("heartbeat <= (self_fence - call_timeout) / 3", "5.0 > (5.0 - 1.2) / 3 = 1.267")),
        ("7", "10", ("heartbeat <= (self_fence - call_timeout) / 3", "10.0 > (5.0 - 1.2) / 3 = 1.267")),
        ("0", "1", ("LEASE_TAKEOVER_SECONDS", NUMBER, "'0'")),
        ("-1", "1", ("LEASE_TAKEOVER_SECONDS", NUMBER, "'-1'")),
        ("nan", "1", ("LEASE_TAKEOVER_SECONDS", NUMBER, "'nan'")),
        ("inf", "1", ("LEASE_TAKEOVER_SECONDS", NUMBER, "'inf'")),
        ("1e300", "1", ("LEASE_TAKEOVER_SECONDS", "must be from 0.01 to 3600 seconds, but is 1e+300")),
        ("7", "nan", ("LEASE_HEARTBEAT_SECONDS", NUMBER, "'nan'")),
    ],
)
def test_illegal_timings_end_a_task_at_once_with_one_line(takeover: str, heartbeat: str, said: tuple[str, ...]) -> None:
    timings = {"LEASE_TAKEOVER_SECONDS": takeover, "LEASE_HEARTBEAT_SECONDS": heartbeat}
    task = subprocess.run(
        [sys.executable, "-m", "worker"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **NEEDED, **timings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert task.returncode == 2
    (line,) = (task.stdout + task.stderr).splitlines()
    told = json.loads(line)
    assert told["level"] == "ERROR"
    assert all(part in told["message"] for part in said), told["message"]
