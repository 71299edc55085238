"""One typed settings object, read from the CDK context keys `fleet:*` and validated at synth.

Defaults are in `cdk.json`; `cdk deploy -c fleet:network=nat` overrides one. Values from the command line arrive as
strings and are parsed by the field's type. Every rule that spans two settings is checked here, because what it protects
(a lease, a drain) would otherwise fail only in an outage.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, get_type_hints

PREFIX = "fleet:"

STOP_TIMEOUT_SECONDS = 120
"""Seconds between SIGTERM and SIGKILL; the most that Fargate allows (ECS API reference, ContainerDefinition)."""

OPEN_FILES = 65_536
"""`nofile` of a worker container. The limit holds per process."""

FILES_BESIDE_CONNECTIONS = 256
"""Descriptors that a worker process needs for anything but its upstream sockets."""

DRAIN_MARGIN_SECONDS = 28
"""What a task needs after the drain deadline: release what is left, close its sockets, bury its processes, exit."""

CLOCK_RATE_RATIO = 1.10
"""Largest ratio between the rates of two machines' monotonic clocks that the lease protocol tolerates."""

HEARTBEAT_CALL_SECONDS = 1.2
"""A heartbeat that has had no answer for so long is sent again."""

ANSWER_SECONDS = 0.2
"""The longest that a good answer of the table is expected to take."""

UNANSWERED_SECONDS = HEARTBEAT_CALL_SECONDS + 0.2 + ANSWER_SECONDS
"""What a heartbeat call without an answer costs: itself, a pause, and the answer to a later one."""

HURRIED_SECONDS = 0.25
"""From a heartbeat that was answered late to the next one."""

LONGEST_SECONDS = 3600
"""A lease timing beyond this is a mistake of units."""

SUPERVISOR_MEMORY_MIB = 64
PROCESS_MEMORY_MIB = 128
CONNECTION_MEMORY_KIB = 64
"""Budget for one connection with TLS, without what is buffered of its messages."""

CONNECTION_BUFFER_KIB = 16
"""What each connection is sure to get of its process's buffer; at most half of the buffer is given away like that."""


class SettingsError(ValueError):
    """A setting is missing, unknown, malformed, or contradicts another one. The message names the context key."""


class Stage(StrEnum):
    """What becomes of the data when the stacks are deleted."""

    DEV = "dev"
    """Everything is deleted."""
    PROD = "prod"
    """Table, queues, stream and logs are retained; table and data stack are protected against deletion."""


class Architecture(StrEnum):
    """The one processor architecture of image, task and functions."""

    ARM64 = "arm64"
    X86_64 = "x86_64"


class NetworkMode(StrEnum):
    """How worker tasks reach the internet."""

    PUBLIC = "public"
    """Public subnets: an address per task (about 3.60 USD a month each), nothing may connect to it."""
    NAT = "nat"
    """Private subnets behind one NAT gateway in each of two zones: about 66 USD a month and 0.045 USD/GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a deployment may choose. Times are in seconds, memory in MiB, CPU in units of 1/1024 vCPU."""

    name: str
    stage: Stage
    architecture: Architecture
    network: NetworkMode

    task_cpu: int
    task_memory: int
    worker_processes: int
    worker_capacity: int
    worker_buffer: int
    minimum_tasks: int
    maximum_tasks: int
    target_load_percent: int

    lease_heartbeat_seconds: float
    lease_self_fence_seconds: float
    lease_drain_seconds: float
    lease_takeover_seconds: float
    lease_judge_poll_seconds: float
    worker_drain_seconds: int
    worker_connect_rate: float
    worker_group_connect_rate: float

    allowed_hosts: tuple[str, ...]
    secret_prefix: str

    api_rate_limit: int
    api_burst_limit: int
    api_gateway_account_role: bool

    log_level: str
    log_retention_days: int
    alarm_email: str
    runbook_url: str

    def __post_init__(self) -> None:
        """Check every rule; raises SettingsError with all that are broken."""
        broken = [message for holds, message in self._rules() if not holds]
        if broken:
            raise SettingsError("; ".join(broken))

    @property
    def retained(self) -> bool:
        """Whether data outlives its stack."""
        return self.stage is Stage.PROD

    def _rules(self) -> list[tuple[bool, str]]:
        takeover_floor = round(CLOCK_RATE_RATIO * (self.lease_self_fence_seconds + self.lease_drain_seconds), 6)
        heartbeat_ceiling = (self.lease_self_fence_seconds - HEARTBEAT_CALL_SECONDS) / 3
        self_fence_floor = round(max(self.lease_heartbeat_seconds, HURRIED_SECONDS) + 2 * UNANSWERED_SECONDS, 6)
        blindness = 3 * self.lease_heartbeat_seconds + self.lease_judge_poll_seconds
        capacity_ceiling = OPEN_FILES - FILES_BESIDE_CONNECTIONS
        buffer_floor = 2 * self.worker_capacity * CONNECTION_BUFFER_KIB / 1024
        process = PROCESS_MEMORY_MIB + self.worker_capacity * CONNECTION_MEMORY_KIB / 1024 + self.worker_buffer
        memory = SUPERVISOR_MEMORY_MIB + self.worker_processes * process
        drain_ceiling = STOP_TIMEOUT_SECONDS - DRAIN_MARGIN_SECONDS
        return [
            (
                re.fullmatch(r"[a-z][a-z0-9-]{1,30}[a-z0-9]", self.name) is not None,
                "fleet:name must be 3 to 32 characters of a-z, 0-9 and '-', beginning with a letter",
            ),
            (self.worker_processes >= 1, "fleet:workerProcesses must be at least 1"),
            (self.worker_capacity >= 1, "fleet:workerCapacity must be at least 1"),
            (
                self.worker_capacity <= capacity_ceiling,
                (
                    f"fleet:workerCapacity must be at most {capacity_ceiling}: a process may open "
                    f"{OPEN_FILES} files and needs {FILES_BESIDE_CONNECTIONS} beside its connections"
                ),
            ),
            (
                memory <= self.task_memory,
                (
                    f"fleet:taskMemory of {self.task_memory} MiB is too little: {self.worker_processes} processes with "
                    f"{self.worker_capacity} connections and {self.worker_buffer} MiB of buffer need {memory:.0f} MiB"
                ),
            ),
            (
                self.worker_buffer >= buffer_floor,
                f"fleet:workerBuffer must be at least {buffer_floor:g} MiB for {self.worker_capacity} connections",
            ),
            (self.minimum_tasks >= 2, "fleet:minimumTasks must be at least 2: one task has nobody to judge it"),
            (self.minimum_tasks <= self.maximum_tasks, "fleet:minimumTasks must not exceed fleet:maximumTasks"),
            (20 <= self.target_load_percent <= 90, "fleet:targetLoadPercent must be between 20 and 90"),
            (self.lease_drain_seconds > 0, "fleet:leaseDrainSeconds must be positive"),
            (
                self.lease_takeover_seconds >= takeover_floor,
                (
                    f"fleet:leaseTakeoverSeconds must be at least {takeover_floor:g} = {CLOCK_RATE_RATIO} "
                    "(fleet:leaseSelfFenceSeconds + fleet:leaseDrainSeconds): less takes a session over while it emits"
                ),
            ),
            (
                0 < self.lease_heartbeat_seconds <= heartbeat_ceiling,
                (
                    f"fleet:leaseHeartbeatSeconds must be positive and at most {heartbeat_ceiling:g} = "
                    f"(fleet:leaseSelfFenceSeconds - {HEARTBEAT_CALL_SECONDS} s of one call) / 3: "
                    "more lets two lost heartbeats put a healthy session on hold"
                ),
            ),
            (
                self.lease_self_fence_seconds >= self_fence_floor,
                (
                    f"fleet:leaseSelfFenceSeconds must be at least {self_fence_floor:g} = "
                    f"max(fleet:leaseHeartbeatSeconds, {HURRIED_SECONDS}) + 2 * {UNANSWERED_SECONDS:g} s of a call "
                    "without an answer: less lets two of them in a row put a healthy session on hold"
                ),
            ),
            (
                max(self.lease_self_fence_seconds, self.lease_takeover_seconds) <= LONGEST_SECONDS,
                f"fleet:leaseSelfFenceSeconds and fleet:leaseTakeoverSeconds must be at most {LONGEST_SECONDS}",
            ),
            (
                ANSWER_SECONDS <= self.lease_judge_poll_seconds <= self.lease_heartbeat_seconds,
                f"fleet:leaseJudgePollSeconds must be at least {ANSWER_SECONDS} and at most leaseHeartbeatSeconds",
            ),
            (
                self.lease_takeover_seconds >= blindness,
                (
                    f"fleet:leaseTakeoverSeconds must be at least {blindness:g} = 3 fleet:leaseHeartbeatSeconds + "
                    "fleet:leaseJudgePollSeconds: less lets a judge take its own blindness for another's death"
                ),
            ),
            (
                0 < self.worker_drain_seconds <= drain_ceiling,
                (
                    f"fleet:workerDrainSeconds must be positive and at most {drain_ceiling}: "
                    f"the container is killed {STOP_TIMEOUT_SECONDS} s after SIGTERM"
                ),
            ),
            (
                0 < self.worker_group_connect_rate <= self.worker_connect_rate,
                "fleet:workerGroupConnectRate must be positive and at most fleet:workerConnectRate",
            ),
            (
                all(_is_host(host) for host in self.allowed_hosts),
                "fleet:allowedHosts must be a comma-separated list of host names, IP addresses and networks",
            ),
            (
                re.fullmatch(r"[A-Za-z0-9/_+=.@-]{1,200}", self.secret_prefix) is not None,
                "fleet:secretPrefix must be a non-empty beginning of a Secrets Manager name",
            ),
            (
                1 <= self.api_rate_limit <= self.api_burst_limit,
                "fleet:apiRateLimit must be positive and at most fleet:apiBurstLimit",
            ),
            (
                self.log_level in {"DEBUG", "INFO", "WARNING", "ERROR"},
                "fleet:logLevel must be DEBUG, INFO, WARNING or ERROR",
            ),
            (
                self.log_retention_days in {1, 7, 14, 30, 90, 365},
                "fleet:logRetentionDays must be 1, 7, 14, 30, 90 or 365",
            ),
            (
                re.fullmatch(r"([^@\s]+@[^@\s]+)?", self.alarm_email) is not None,
                "fleet:alarmEmail must be empty or an e-mail address",
            ),
            (bool(self.runbook_url), "fleet:runbookUrl must say where the runbooks are"),
        ]


def load(context: Mapping[str, Any]) -> Settings:
    """Build the settings from a CDK context.

    Raises SettingsError when a `fleet:` key is missing, unknown or malformed, or when a rule is broken.
    """
    types = get_type_hints(Settings)
    keys = {_key(field.name): field.name for field in fields(Settings)}
    given = {key: value for key, value in context.items() if key.startswith(PREFIX)}
    unknown, missing = given.keys() - keys.keys(), keys.keys() - given.keys()
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(sorted(unknown))}")
    if missing:
        raise SettingsError(f"missing setting {', '.join(sorted(missing))}")
    return Settings(**{name: _parse(key, given[key], types[name]) for key, name in keys.items()})


def _key(name: str) -> str:
    head, *tail = name.split("_")
    return PREFIX + head + "".join(part.capitalize() for part in tail)


def _parse(key: str, value: Any, wanted: Any) -> Any:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if wanted == tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return wanted(text)
    except (KeyError, ValueError):
        if isinstance(wanted, type) and issubclass(wanted, StrEnum):
            raise SettingsError(f"{key} must be one of {', '.join(wanted)}, not {text!r}") from None
        raise SettingsError(f"{key} must be {_TYPE_NAMES[wanted]}, not {text!r}") from None


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number"}


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return re.fullmatch(r"(?!.*\.\.)[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", text) is not None
    return True
