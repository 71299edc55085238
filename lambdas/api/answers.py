"""The bodies of the API's answers. Their types make the OpenAPI document."""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class Close(TypedDict):
    """How the last socket ended."""

    code: int
    reason: str
    at: str


class Observed(TypedDict, total=False):
    """What is observed of a connection. Times are UTC, by the clock of who observed it; what is unknown is left out."""

    state: str
    since: str
    attempts: int
    nextRetryAt: str
    lastMessageAt: str
    lastClose: Close
    reason: str


class Connection(TypedDict):
    """A connection: what is wanted of it (`desired`), what is observed (`status`), who owns it, in which epoch."""

    connectionId: str
    desired: str
    status: Observed
    owner: str | None
    ownerState: NotRequired[str]
    epoch: int
    generation: int
    request: NotRequired[dict[str, Any]]


class ConnectionPage(TypedDict):
    """A page of connections. It may be empty and still have a cursor; the last one has none."""

    connections: list[Connection]
    cursor: str | None


class Worker(TypedDict):
    """A worker process, as of its last heartbeat. `openedAt` is in unix seconds."""

    workerId: str
    state: str
    deadBy: str | None
    held: int
    capacity: int
    messagesPerSecond: int
    revision: int
    taskArn: str
    openedAt: int


class WorkerList(TypedDict):
    """The worker processes of the last day."""

    workers: list[Worker]


class Problem(TypedDict):
    """What is wrong, and with which field of the request; or which connection may have been made or changed."""

    code: str
    message: str
    field: NotRequired[str]
    connectionId: NotRequired[str]


class Error(TypedDict):
    """Every answer that is not a success."""

    error: Problem
