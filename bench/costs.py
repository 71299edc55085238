"""What a deployment costs a month: `python -m bench.costs [connections ...] [-c fleet:key=value ...]`.

Everything that the code decides (periods, judges, shards, units of a write, series of a metric, sizes of a task) is
taken from the code and from `cdk.json`; prices and assumptions are the constants below. `docs/costs.md` explains them.
A month has 730 hours. Nothing is subtracted for a free tier.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from infrastructure.settings import Architecture, NetworkMode, Settings, load
from leases import fleet, holdings, judging, member, session, sweeper, writes
from leases.conditions import Write
from leases.rows import OWNER_SHARDS, SESSION_SHARDS, ConnectionRow, Desired, Handoff, Load, Offer
from telemetry.metrics import METRICS
from worker.assignments import WAIT_SECONDS
from worker.clients import ASSIGNMENTS
from worker.runner import REPORT_SECONDS
from worker.vitals import FLUSH_SECONDS

ROOT = Path(__file__).resolve().parent.parent
HOURS = 730
SECONDS = HOURS * 3600
GB = 1e9

# List prices of us-east-1 in USD. They were noted in November 2026 and not read from a price list again.
VCPU_HOUR = {Architecture.ARM64: 0.03238, Architecture.X86_64: 0.04048}
MEMORY_GB_HOUR = {Architecture.ARM64: 0.00356, Architecture.X86_64: 0.004445}
IPV4_HOUR = 0.005
NAT_HOUR = 0.045
WRITE_UNIT = 0.625e-6
READ_UNIT = 0.125e-6
METRIC, ALARM, DASHBOARD = 0.30, 0.10, 3.00
LOG_GB = 0.50
LAMBDA_CALL, LAMBDA_GB_SECOND = 0.20e-6, 0.0000133
QUEUE_CALL = 0.40e-6
STREAM_HOUR, STREAM_GB_IN = 0.04, 0.08

# Assumptions.
SESSION_BYTES, INDEX_BYTES = 300, 83
"""A session row; an entry of the index (owner, pk, sk)."""
METRIC_BYTES = 7_200
"""The metrics of one process in one flush, as a log line, with as many samples as it takes."""
LINE_BYTES = 500
RECONNECTS_A_DAY = 1
"""Of one connection. Each writes two lines and changes the observed state three times."""
DEPLOYMENTS = 4
"""A month; each moves every connection once."""
INSIGHTS_METRICS = 38
"""Of Container Insights (standard) for one cluster, service and task family. An estimate."""
INSIGHTS_BYTES = 2_400
"""Of performance events for one task in a minute. An estimate."""
AUDIT_GB = 0.5

SERIES = sum(len(metric.dimension.values) if metric.dimension else 1 for metric in METRICS)
ALARMS = len(re.findall(r"^## ", ROOT.joinpath("docs/runbooks.md").read_text(), flags=re.MULTILINE))
"""A test holds each alarm to a runbook of its own."""
DASHBOARDS = 2


def units(write: Write, *, new: bool = False) -> int:
    """Write units of a row of at most 1 KB: one, and for another owner one entry of the index taken out, one put in."""
    put, gone = "owner" in write.set, "owner" in write.set or "owner" in write.remove
    return 1 + put + (gone and not new)


def query(size: float) -> float:
    """Read units of an eventually consistent query that reads so many bytes."""
    return max(1, ceil(size / 4096)) / 2


_ROW = ConnectionRow(connection="c", owner="a", epoch=1, desired=Desired.RUNNING, generation=1)
_OFFER = Offer(session="b", nonce="n", for_epoch=1, generation=1)

HEARTBEAT = units(writes.heartbeat("a", 1, Load(), frozenset()))
STATUS = units(writes.report("c", "a", 1, {}))
CLAIM = units(writes.claim(_ROW, "b", "n", strike=False))
HAND_OVER = (
    units(writes.offer(_ROW, "b", "n"))
    + units(writes.ready(_ROW, _OFFER))
    + units(writes.transfer("c", "a", _OFFER, None, Handoff(digests=b"", last_seq=0)))
    + units(writes.inbox_hint("b", "c"))
    + STATUS
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many connections on a deployment with these settings."""

    settings: Settings
    connections: int

    @property
    def tasks(self) -> int:
        """Tasks that the scaling policy arrives at."""
        each = self.settings.worker_processes * self.settings.worker_capacity * self.settings.target_load_percent / 100
        return max(self.settings.minimum_tasks, ceil(self.connections / each))

    @property
    def processes(self) -> int:
        """Worker processes, and so sessions."""
        return self.tasks * self.settings.worker_processes

    @property
    def watchers(self) -> int:
        """Sessions that read one session's heartbeat."""
        return min(fleet.JUDGES + fleet.WARM_JUDGES, self.processes - 1)

    # DynamoDB: write units a second

    def heartbeats(self) -> float:
        return HEARTBEAT * self.processes / (self.settings.lease_heartbeat_seconds * (1 - session.JITTER / 2))

    def states(self) -> float:
        return STATUS * self.connections * (1 / REPORT_SECONDS + 3 * RECONNECTS_A_DAY / 86_400)

    def moves(self) -> float:
        return HAND_OVER * self.connections * DEPLOYMENTS / SECONDS

    # DynamoDB: read units a second

    def judging(self) -> float:
        return self.processes * self.watchers / self.settings.lease_judge_poll_seconds

    def listing(self) -> float:
        # Beside the live sessions there are as many that ended within the day.
        shard = query(2 * self.processes * SESSION_BYTES / SESSION_SHARDS)
        return self.processes * SESSION_SHARDS * shard / judging.LIST_SECONDS

    def sweeping(self) -> float:
        fresh = OWNER_SHARDS * (1 + 1 / sweeper.RESERVE_ROUNDS) / sweeper.SWEEP_SECONDS
        stale = self.processes * 2 / (sweeper.STALE_ROUNDS * sweeper.SWEEP_SECONDS)
        return query(0) * (fresh + stale)

    def self_audit(self) -> float:
        own = self.connections / self.processes
        each = query(own * INDEX_BYTES) + own / holdings.AUDIT_ROUNDS
        return self.processes * each / (0.95 * member.AUDIT_SECONDS)

    def audit_function(self) -> float:
        return (query(self.connections * INDEX_BYTES) + SESSION_SHARDS * query(0)) / 60

    def session_key(self) -> float:
        """Read units a second on one of the keys that hold the sessions; a key serves 3,000."""
        return (self.judging() + self.listing()) / SESSION_SHARDS

    # USD a month

    def fargate(self) -> float:
        s = self.settings
        cpu = VCPU_HOUR[s.architecture] * s.task_cpu / 1024
        return self.tasks * HOURS * (cpu + MEMORY_GB_HOUR[s.architecture] * s.task_memory / 1024)

    def network(self) -> float:
        nat = self.settings.network is NetworkMode.NAT
        return HOURS * (2 * NAT_HOUR + 2 * IPV4_HOUR if nat else self.tasks * IPV4_HOUR)

    def dynamodb(self) -> float:
        written = self.heartbeats() + self.states() + self.moves()
        read = self.judging() + self.listing() + self.sweeping() + self.self_audit() + self.audit_function()
        return SECONDS * (WRITE_UNIT * written + READ_UNIT * read)

    def cloudwatch(self) -> float:
        return METRIC * (SERIES + INSIGHTS_METRICS) + ALARM * ALARMS + DASHBOARD * DASHBOARDS

    def logs(self) -> float:
        metered = self.processes * METRIC_BYTES * SECONDS / FLUSH_SECONDS
        lines = self.connections * 2 * LINE_BYTES * RECONNECTS_A_DAY * SECONDS / 86_400
        insights = self.tasks * INSIGHTS_BYTES * SECONDS / 60
        return LOG_GB * (metered + lines + insights) / GB

    def calls(self) -> float:
        polls = self.processes * ASSIGNMENTS.threads * SECONDS / WAIT_SECONDS
        audit_seconds = 1 + self.connections / 10_000
        return QUEUE_CALL * polls + SECONDS / 60 * (LAMBDA_CALL + LAMBDA_GB_SECOND * AUDIT_GB * audit_seconds)

    def stream(self) -> float:
        return STREAM_HOUR * HOURS

    def total(self) -> float:
        items = (self.fargate, self.network, self.dynamodb, self.cloudwatch, self.logs, self.calls, self.stream)
        return sum(item() for item in items)


def per_connection(connections: int, period: float, *, indexed: bool) -> float:
    """USD a month where each connection renews a lease of its own, with the expiry as an index key or not."""
    return SECONDS * WRITE_UNIT * connections / period * (3 if indexed else 1)


def traffic(messages: float, size: int) -> float:
    """USD a month to put so many messages a second into the stream, each an entry of its own (whole KiB are billed)."""
    return SECONDS * messages * ceil(size / 1024) * 1024 / GB * STREAM_GB_IN


def table(fleets: list[Fleet]) -> str:
    """The figures of `docs/costs.md`, in its order."""
    write, read = SECONDS * WRITE_UNIT, SECONDS * READ_UNIT
    rows: list[tuple[str, Callable[[Fleet], float], str]] = [
        ("tasks", lambda one: one.tasks, "{:,.0f}"),
        ("reads/s of a session key", Fleet.session_key, "{:,.0f}"),
        ("Fargate", Fleet.fargate, "{:,.0f}"),
        ("public IPv4, or NAT", Fleet.network, "{:,.0f}"),
        ("DynamoDB", Fleet.dynamodb, "{:,.0f}"),
        ("  heartbeats", lambda one: write * one.heartbeats(), "{:,.2f}"),
        ("  observed states", lambda one: write * one.states(), "{:,.2f}"),
        ("  moves by deployments", lambda one: write * one.moves(), "{:,.2f}"),
        ("  judges", lambda one: read * one.judging(), "{:,.2f}"),
        ("  listings", lambda one: read * one.listing(), "{:,.2f}"),
        ("  sweeps", lambda one: read * one.sweeping(), "{:,.2f}"),
        ("  self-audits", lambda one: read * one.self_audit(), "{:,.2f}"),
        ("  audit function", lambda one: read * one.audit_function(), "{:,.2f}"),
        ("CloudWatch", Fleet.cloudwatch, "{:,.0f}"),
        ("logs", Fleet.logs, "{:,.0f}"),
        ("SQS, audit function", Fleet.calls, "{:,.0f}"),
        ("stream, without traffic", Fleet.stream, "{:,.0f}"),
        ("total, without traffic", Fleet.total, "{:,.0f}"),
        ("renewal per connection, 5 s", lambda one: per_connection(one.connections, 5, indexed=False), "{:,.0f}"),
        ("  with the expiry indexed", lambda one: per_connection(one.connections, 5, indexed=True), "{:,.0f}"),
        ("1 message/s of 700 bytes each", lambda one: traffic(one.connections, 700), "{:,.0f}"),
    ]
    lines = [f"{'USD a month':32}" + "".join(f"{one.connections:>12,}" for one in fleets)]
    lines += [f"{name:32}" + "".join(f"{form.format(value(one)):>12}" for one in fleets) for name, value, form in rows]
    lines.append(
        f"write units: heartbeat {HEARTBEAT}, status {STATUS}, claim {CLAIM}, hand-over {HAND_OVER}; "
        f"{SERIES} series, {ALARMS} alarms"
    )
    return "\n".join(lines)


def settings(overrides: Mapping[str, str]) -> Settings:
    """The settings of `cdk.json`, with some in place of its own."""
    context: dict[str, Any] = json.loads(ROOT.joinpath("cdk.json").read_text())["context"]
    return load({**context, **overrides})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What a deployment costs a month.")
    parser.add_argument("connections", type=int, nargs="*", default=[0, 1_000, 10_000])
    parser.add_argument("-c", action="append", default=[], dest="context", metavar="fleet:KEY=VALUE")
    given = parser.parse_args()
    chosen = settings(dict(pair.split("=", 1) for pair in given.context))
    print(table([Fleet(chosen, connections) for connections in given.connections]))


if __name__ == "__main__":
    main()
