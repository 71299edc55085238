"""Keys and values of the structured log that saved queries look for. Every part logs JSON with these."""

from enum import StrEnum


class Field(StrEnum):
    """Keys of a log line."""

    EVENT = "event"
    CONNECTION = "connectionId"
    SESSION = "sessionId"
    EPOCH = "epoch"
    REASON = "reason"
    OCCURRENCES = "occurrences"
    """How many like events a line stands for."""
    STACK = "stack"
    """Where an error was raised, innermost last, without its text, which may quote a secret."""


class Event(StrEnum):
    """Values of `event` that an operator asks for."""

    LEASE_RENEW_ERROR = "lease_renew_error"
    """A heartbeat was not answered: nothing is known, and nothing is lost yet."""
    LEASE_LOST = "lease_lost"
    """The store proved that another session owns what this one thought its own."""
    ON_HOLD = "on_hold"
    """A session passed its deadline and emits nothing until a heartbeat succeeds."""
    DECLARED_DEAD = "declared_dead"
    """This part wrote DEAD on a session."""
    CONNECT_FAILED = "connect_failed"
    """An attempt to open a WebSocket failed."""
    CONNECTION_CLOSED = "connection_closed"
    """An open WebSocket ended."""
