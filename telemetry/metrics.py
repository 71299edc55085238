"""Every CloudWatch metric of the fleet: name, unit, meaning, emitters.

The worker and the Lambda functions emit these, the dashboards and alarms plot these, and nobody else may spell a
metric's name. All are written in the embedded metric format with the one dimension `service`; a few carry one more,
whose values are listed here. No dimension may ever hold an id, a host, a URL or a task: each combination of values is
billed as a metric of its own, so their number must not grow with connections or workers. Ids belong in log fields.

A *gauge* is a state of one worker process, emitted once per flush: read it as Average, Minimum or Maximum over the
fleet, never as Sum. The audit function emits the fleet's totals, once a minute, so that their Sum, Average and Maximum
over one minute are the same.
"""

from dataclasses import dataclass
from enum import StrEnum

NAMESPACE = "WebSocketFleet"
SERVICE_DIMENSION = "service"


class Unit(StrEnum):
    """The CloudWatch units in use, by their names in PutMetricData and in the embedded metric format."""

    BYTES = "Bytes"
    COUNT = "Count"
    MILLISECONDS = "Milliseconds"
    PERCENT = "Percent"
    SECONDS = "Seconds"


class Emitter(StrEnum):
    """The part of the system that emits a metric."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    API = "api"
    TASK_STOPPED = "task_stopped"
    AUDIT = "audit"


class Cause(StrEnum):
    """Why a connection changed its owner, or a session was declared dead."""

    EXIT = "exit"
    """The supervisor reaped the process."""
    STOPPED = "stopped"
    """ECS reported the task STOPPED with a container exit code."""
    JUDGE = "judge"
    """Judges saw the heartbeat stand still for the takeover time."""
    SELF = "self"
    """The session gave itself up after two minutes on hold."""
    RELEASE = "release"
    """The owner released the connection, for want of a ready successor, or since it allows no second socket."""


class Reason(StrEnum):
    """Why an attempt to open a WebSocket failed. Fine detail belongs in the connection's row and the log."""

    BLOCKED = "blocked"
    """The URL policy refused the address that the name resolved to."""
    DNS = "dns"
    TCP = "tcp"
    TLS = "tls"
    TIMEOUT = "timeout"
    HTTP = "http"
    """The server answered the handshake with a status other than 101."""
    RATE_LIMITED = "rate_limited"
    """429 or 503: the whole group backs off."""
    PROTOCOL = "protocol"
    """The 101 answer or the opening messages broke the protocol or the request."""
    SECRET = "secret"  # noqa: S105 - the name of a reason
    """A secret that the request refers to could not be read."""
    INTERNAL = "internal"
    """The worker's own code broke; its log says where."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension beside `service`, with all the values that it may take."""

    name: str
    values: tuple[str, ...]


CAUSE = Dimension("cause", tuple(Cause))
REASON = Dimension("reason", tuple(Reason))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: how it is written, what it says, and who may emit it."""

    name: str
    unit: Unit
    doc: str
    emitters: tuple[Emitter, ...] = (Emitter.WORKER,)
    dimension: Dimension | None = None


# The fleet as a whole

CONNECTIONS_WANTED = Metric("ConnectionsWanted", Unit.COUNT, "Connections that should be running.", (Emitter.AUDIT,))
CONNECTIONS_HELD = Metric("ConnectionsHeld", Unit.COUNT, "Connections owned by a live session.", (Emitter.AUDIT,))
CONNECTIONS_PENDING = Metric(
    "ConnectionsPending", Unit.COUNT, "Free connections that wait for an owner.", (Emitter.AUDIT,)
)
CONNECTIONS_UNOWNED = Metric(
    "ConnectionsUnowned", Unit.COUNT, "Connections whose owner is a dead or unknown session.", (Emitter.AUDIT,)
)
CONNECTIONS_PARKED = Metric("ConnectionsParked", Unit.COUNT, "Connections paused or failed.", (Emitter.AUDIT,))
OLDEST_UNOWNED_AGE = Metric(
    "OldestUnownedAge",
    Unit.SECONDS,
    "How long the connection that waits longest, pending or unowned, has been seen without a live owner.",
    (Emitter.AUDIT,),
)
ROWS_REPAIRED = Metric(
    "RowsRepaired", Unit.COUNT, "Rows that every worker missed and the audit put right.", (Emitter.AUDIT,)
)
SESSIONS_LIVE = Metric("SessionsLive", Unit.COUNT, "Sessions in state LIVE.", (Emitter.AUDIT,))
SESSIONS_DRAINING = Metric("SessionsDraining", Unit.COUNT, "Sessions in state DRAINING.", (Emitter.AUDIT,))
FLEET_CAPACITY = Metric(
    "FleetCapacity", Unit.COUNT, "Connections that all live sessions together have room for.", (Emitter.AUDIT,)
)
LOAD = Metric(
    "Load",
    Unit.PERCENT,
    "Gauge: held connections as a share of the process's capacity. The fleet scales on its average.",
)

# Leases

HEARTBEAT_AGE = Metric(
    "HeartbeatAge",
    Unit.PERCENT,
    "Largest age that the last acknowledged heartbeat reached since the last flush, as a share of the self-fence time.",
)
HEARTBEATS_UNKNOWN = Metric(
    "HeartbeatsUnknown", Unit.COUNT, "Heartbeats without an answer: timeout, throttle, server error."
)
HEARTBEATS_LOST = Metric(
    "HeartbeatsLost", Unit.COUNT, "Heartbeats whose answer proved that the session had been declared dead."
)
SELF_HOLDS = Metric("SelfHolds", Unit.COUNT, "Times that a session passed its deadline and stopped emitting.")
SESSIONS_DECLARED_DEAD = Metric(
    "SessionsDeclaredDead",
    Unit.COUNT,
    "Sessions declared dead, by the kind of evidence.",
    (Emitter.WORKER, Emitter.SUPERVISOR, Emitter.TASK_STOPPED),
    CAUSE,
)
DEAD_SESSIONS_RETURNED = Metric(
    "DeadSessionsReturned",
    Unit.COUNT,
    "Sessions that came back to find themselves declared dead: a freeze, or a wrong judgement.",
)
CLAIMS = Metric("Claims", Unit.COUNT, "Connections claimed.")
CLAIM_CONFLICTS = Metric("ClaimConflicts", Unit.COUNT, "Claims that somebody else won.")
OUTAGE = Metric(
    "Outage",
    Unit.SECONDS,
    "Time from the old owner's end, in whole seconds of its clock, to the claim by the new one. "
    "Its sample count is the number of failovers.",
    dimension=CAUSE,
)
HAND_OVERS = Metric("HandOvers", Unit.COUNT, "Planned moves completed by a transfer.")
HAND_OVERS_FAILED = Metric(
    "HandOversFailed", Unit.COUNT, "Offers that ended in a decline, a regrant or a plain release."
)
STRUCK_OUT = Metric("StruckOut", Unit.COUNT, "Connections parked because their owners kept dying.")

# Connections

CONNECTS = Metric("Connects", Unit.COUNT, "WebSockets opened.")
CONNECT_FAILURES = Metric("ConnectFailures", Unit.COUNT, "Attempts to open a WebSocket that failed.", dimension=REASON)
RECONNECTS = Metric("Reconnects", Unit.COUNT, "Open WebSockets that ended without our wish.")
CONNECTIONS_FAILED = Metric("ConnectionsFailed", Unit.COUNT, "Connections given up as FAILED.")
MESSAGES_IN = Metric("MessagesIn", Unit.COUNT, "Messages received.")
BYTES_IN = Metric("BytesIn", Unit.BYTES, "Payload received.")

# Output

RECORDS_OUT = Metric("RecordsOut", Unit.COUNT, "Output records acknowledged by the stream.")
BYTES_OUT = Metric("BytesOut", Unit.BYTES, "Output acknowledged by the stream.")
SINK_LAG = Metric("SinkLag", Unit.MILLISECONDS, "Time from receiving a message to the acknowledgement of its record.")
SINK_RETRIES = Metric("SinkRetries", Unit.COUNT, "Stream entries that were refused or unanswered and sent again.")
SINK_STALLS = Metric(
    "SinkStalls", Unit.COUNT, "Connections closed because the stream took nothing and their buffer was full."
)
MESSAGES_DISCARDED = Metric("MessagesDiscarded", Unit.COUNT, "Received messages that were never emitted.")
BUFFERED_BYTES = Metric("BufferedBytes", Unit.BYTES, "Gauge: received and not yet acknowledged by the stream.")

# The worker process

LOOP_LAG = Metric("LoopLag", Unit.MILLISECONDS, "How late the event loop ran a timer.")
RESIDENT_MEMORY = Metric("ResidentMemory", Unit.BYTES, "Gauge: resident memory of the process.")
OPEN_FILES = Metric("OpenFiles", Unit.COUNT, "Gauge: open file descriptors of the process.")
PROCESS_EXITS = Metric(
    "ProcessExits",
    Unit.COUNT,
    "Worker processes that ended without being asked to, and were replaced.",
    (Emitter.SUPERVISOR,),
)

# The API

CONNECTIONS_REQUESTED = Metric("ConnectionsRequested", Unit.COUNT, "Connection requests accepted.", (Emitter.API,))
REQUESTS_REFUSED = Metric("RequestsRefused", Unit.COUNT, "Requests answered with 4XX.", (Emitter.API,))
ENQUEUE_FAILURES = Metric(
    "EnqueueFailures",
    Unit.COUNT,
    "Rows written whose assignment could not be queued; a sweep finds them.",
    (Emitter.API,),
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
