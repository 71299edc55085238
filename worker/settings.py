"""What a worker is told by its environment, validated as a whole before anything starts."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from connections.url_policy import UrlPolicy
from leases.timings import IllegalTimings, Timings
from worker.admission import GROUP_ALLOWANCE, PROCESS_ALLOWANCE
from worker.clients import HEARTBEAT_PATIENCE

STOP_TIMEOUT_SECONDS = 120
"""From SIGTERM to SIGKILL: the stopTimeout of the container, and the longest that Fargate grants."""

RELEASE_SECONDS = 20
"""What a worker process may need after its drain deadline: release what is left, close its sockets, end."""

BURIAL_SECONDS = 8
"""What the supervisor keeps back for processes that have to be killed: declare their sessions dead, end."""

OWN_FILES = 256
"""File descriptors that a process needs beside its connections."""

CONNECTION_SHARE_BYTES = 16 * 1024
"""What the buffer keeps for every connection, whatever the others hold."""

TIMING_VARIABLES = {
    "heartbeat": "LEASE_HEARTBEAT_SECONDS",
    "self_fence": "LEASE_SELF_FENCE_SECONDS",
    "drain": "LEASE_DRAIN_SECONDS",
    "takeover": "LEASE_TAKEOVER_SECONDS",
    "judge_poll": "LEASE_JUDGE_POLL_SECONDS",
    "give_up": "LEASE_GIVE_UP_SECONDS",
    "rate_ratio": "LEASE_RATE_RATIO",
}

PREFIXES = ("LEASE_", "OUTPUT_", "WORKER_")
"""What the names of a worker's own variables begin with: one of them that it does not know is a misspelt one."""


class SettingsError(ValueError):
    """A variable is missing, unknown, malformed, or breaks a rule. The message names both."""


class SinkKind(StrEnum):
    """Where output records go."""

    KINESIS = "kinesis"
    SQS_FIFO = "sqs_fifo"
    JSON_LINES = "json_lines"
    NULL = "null"


SINK_TARGETS = {
    SinkKind.KINESIS: "STREAM_NAME",
    SinkKind.SQS_FIFO: "OUTPUT_QUEUE_URL",
    SinkKind.JSON_LINES: "OUTPUT_FILE",
}
"""The variable that says which stream, queue or file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a worker task. Times are seconds, sizes bytes."""

    table: str
    owner_index: str
    queue_url: str
    sink: SinkKind
    sink_target: str
    """A stream name, a queue URL or a path, as the kind of sink has it."""
    url_policy: UrlPolicy
    secret_prefix: str
    service: str
    capacity: int
    """Connections per worker process."""
    processes: int
    drain_seconds: float
    buffer_bytes: int
    """What all connections of a process may hold that the sink has not acknowledged."""
    connection_buffer_bytes: int
    connect_rate: float
    """Attempts per second of a process to open a WebSocket."""
    group_connect_rate: float
    """Of these, the attempts for the connections of one `group`."""
    timings: Timings
    metadata_uri: str | None
    """The task metadata endpoint of ECS, which says which task and which revision this is."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, cpus: int, files: int) -> Self:
        """Read and check the variables. `files` is how many a process may open. Raises `SettingsError`."""
        read = _Reader(environment)
        sink = read.choice("OUTPUT_SINK", SinkKind.KINESIS)
        settings = cls(
            table=read.text("TABLE_NAME"),
            owner_index=read.text("OWNER_INDEX"),
            queue_url=read.text("QUEUE_URL"),
            sink=sink,
            sink_target=read.text(SINK_TARGETS[sink]) if sink in SINK_TARGETS else "",
            url_policy=_url_policy(environment.get("ALLOWED_HOSTS", "")),
            secret_prefix=environment.get("SECRET_PREFIX", "websocket-fleet/"),
            service=environment.get("POWERTOOLS_SERVICE_NAME", "websocket-fleet"),
            capacity=read.whole("WORKER_CAPACITY", 1000),
            processes=read.whole("WORKER_PROCESSES", cpus),
            drain_seconds=read.number("WORKER_DRAIN_SECONDS", 90),
            buffer_bytes=read.whole("WORKER_BUFFER_BYTES", 704 * 1024 * 1024),
            connection_buffer_bytes=read.whole("WORKER_CONNECTION_BUFFER_BYTES", 24 * 1024 * 1024),
            connect_rate=read.number("WORKER_CONNECT_RATE", PROCESS_ALLOWANCE.rate),
            group_connect_rate=read.number("WORKER_GROUP_CONNECT_RATE", GROUP_ALLOWANCE.rate),
            timings=_timings(read),
            metadata_uri=environment.get("ECS_CONTAINER_METADATA_URI_V4"),
        )
        read.refuse_unknown()
        settings._check(files)
        return settings

    def _check(self, files: int) -> None:
        if self.capacity > files - OWN_FILES:
            raise SettingsError(
                f"WORKER_CAPACITY must be at most the limit of open files (nofile) - {OWN_FILES} = "
                f"{files - OWN_FILES}, but is {self.capacity}"
            )
        longest = STOP_TIMEOUT_SECONDS - BURIAL_SECONDS
        if self.drain_seconds >= longest:
            raise SettingsError(
                f"WORKER_DRAIN_SECONDS must be below {longest}: the task is killed {STOP_TIMEOUT_SECONDS} s after "
                f"SIGTERM, but is {self.drain_seconds:g}"
            )
        reserved = CONNECTION_SHARE_BYTES * self.capacity
        if self.buffer_bytes < 2 * reserved:
            raise SettingsError(
                f"WORKER_BUFFER_BYTES must be at least 2 * {CONNECTION_SHARE_BYTES} * WORKER_CAPACITY = "
                f"{2 * reserved}, but is {self.buffer_bytes}"
            )
        if self.connection_buffer_bytes < CONNECTION_SHARE_BYTES:
            raise SettingsError(
                f"WORKER_CONNECTION_BUFFER_BYTES must be at least {CONNECTION_SHARE_BYTES}, "
                f"but is {self.connection_buffer_bytes}"
            )
        if self.group_connect_rate > self.connect_rate:
            raise SettingsError(
                f"WORKER_GROUP_CONNECT_RATE must be at most WORKER_CONNECT_RATE = {self.connect_rate:g}, "
                f"but is {self.group_connect_rate:g}"
            )

    @property
    def kill_after(self) -> float:
        """Seconds after SIGTERM at which a worker process that still runs is killed."""
        return min(self.drain_seconds + RELEASE_SECONDS, STOP_TIMEOUT_SECONDS - BURIAL_SECONDS)


def load() -> Settings:
    """The settings of this process. Raises its limit of open files as far as it may. Raises `SettingsError`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return Settings.from_environment(os.environ, cpus=len(os.sched_getaffinity(0)), files=most)


class _Reader:
    """Typed access to the variables; an empty one counts as absent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._known = set(SINK_TARGETS.values())

    def _value(self, name: str) -> str:
        self._known.add(name)
        return self._environment.get(name, "")

    def refuse_unknown(self) -> None:
        """Call this when everything has been read."""
        own = {name for name in self._environment if name.startswith(PREFIXES)}
        if unknown := own - self._known:
            raise SettingsError(f"{', '.join(sorted(unknown))}: there is no such setting")

    def text(self, name: str) -> str:
        value = self._value(name)
        if not value:
            raise SettingsError(f"{name} must be set")
        return value

    def whole(self, name: str, default: int) -> int:
        value = self._value(name) or str(default)
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise SettingsError(f"{name} must be a whole number above 0, but is {value!r}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        value = self._value(name) or str(default)
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not 0 < number < float("inf"):
            raise SettingsError(f"{name} must be a number above 0, but is {value!r}")
        return number

    def choice(self, name: str, default: SinkKind) -> SinkKind:
        value = self._value(name) or default.value
        try:
            return SinkKind(value)
        except ValueError:
            raise SettingsError(f"{name} must be one of {', '.join(SinkKind)}, but is {value!r}") from None


def _timings(read: _Reader) -> Timings:
    defaults = Timings()
    values = {name: read.number(variable, getattr(defaults, name)) for name, variable in TIMING_VARIABLES.items()}
    try:
        return Timings(**values, call_timeout=HEARTBEAT_PATIENCE)
    except IllegalTimings as error:
        named = ", ".join(f"{name} is {variable}" for name, variable in TIMING_VARIABLES.items() if name in str(error))
        raise SettingsError(f"{error} ({named})") from error


def _url_policy(setting: str) -> UrlPolicy:
    try:
        return UrlPolicy.parse(setting)
    except ValueError as error:
        raise SettingsError(
            f"ALLOWED_HOSTS must be host names, IP addresses or networks, separated by commas: {error}"
        ) from error
