"""What to do after a WebSocket ended or could not be opened: pure decisions, no clock, no I/O.

The delay before an attempt is drawn with full jitter (a uniform share of a window that doubles), from the first retry
on and also at the cap: a herd that was dropped together must not come back together, and must not stay together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

from telemetry.metrics import Reason

FIRST_WINDOW = 3.0
"""Seconds in which the first retry starts."""

PROVEN_SECONDS = 30.0
"""A WebSocket that stayed open this long has proven that the connection works: the back-off starts anew."""

SHORT_SESSIONS = 8
"""So many sessions below PROVEN_SECONDS in a row, and a message alone no longer counts as proof: a server that greets
and hangs up would otherwise be called every other second for ever."""

FLAPS_BEFORE_FLOOR = 5
"""So many sessions in a row that opened and proved nothing, and the cap becomes a floor as well."""

UNREACHABLE_CAP = 60.0
"""The longest window in seconds while nothing answers at all: asking costs a dead server nothing, and the sooner it is
noticed that it is back, the better."""

STRIKES = 3
"""So many times 1008, a message above the limit or a wrong subprotocol, and the connection has FAILED."""

FAULTS = 8
"""So many times our own code broke on one connection, and that has FAILED: trying again does not get past it."""

STRIKES_FORGOTTEN_SECONDS = 600.0
"""A session of this length forgives the strikes."""

RETRY_AFTER_CAP = 900.0
"""The longest wait in seconds that a Retry-After header is granted."""

_UNIX_TIMESTAMP = 1e9
"""A Retry-After above this is meant as a point in time: as a delay it would be 31 years."""

_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503
_UNAUTHORISED = frozenset({401, 403})
_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013
_SLOW_START = 3
"""After 1013 (try again later) the window is at least FIRST_WINDOW times 2 to this power."""


class Kind(StrEnum):
    """How an attempt failed, or an open WebSocket ended."""

    # An attempt failed.
    BLOCKED = "blocked"
    DNS = "dns"
    TCP = "tcp"
    TLS = "tls"
    CERTIFICATE = "certificate"
    TIMEOUT = "timeout"
    HTTP = "http"
    HANDSHAKE = "handshake"
    SUBPROTOCOL = "subprotocol"
    SECRET = "secret"  # noqa: S105 - the name of a reason
    ADAPTER = "adapter"
    WAIT_FOR = "wait_for"
    """An onOpen frame waited for an answer that did not come."""

    # An open WebSocket ended.
    CLOSED = "closed"
    """The peer sent a close frame."""
    LOST = "lost"
    """The stream ended without a close frame."""
    PROTOCOL_ERROR = "protocol_error"
    INVALID_DATA = "invalid_data"
    MESSAGE_TOO_BIG = "message_too_big"
    PING_TIMEOUT = "ping_timeout"
    STALE = "stale"
    NOT_READING = "not_reading"
    """The peer takes nothing from its socket, so that our answers pile up."""
    SINK_STALLED = "sink_stalled"
    LOCAL = "local"
    """We closed it, on purpose."""

    FAULT = "internal_error"
    """Our own code broke, in an attempt or beside an open WebSocket."""


_METRIC = {
    Kind.BLOCKED: Reason.BLOCKED,
    Kind.DNS: Reason.DNS,
    Kind.TCP: Reason.TCP,
    Kind.TLS: Reason.TLS,
    Kind.CERTIFICATE: Reason.TLS,
    Kind.TIMEOUT: Reason.TIMEOUT,
    Kind.SECRET: Reason.SECRET,
    Kind.HTTP: Reason.HTTP,
    Kind.FAULT: Reason.INTERNAL,
}


_STRIKES = {Kind.MESSAGE_TOO_BIG: STRIKES, Kind.SUBPROTOCOL: STRIKES, Kind.FAULT: FAULTS}

_UNREACHABLE = frozenset({Kind.DNS, Kind.TCP, Kind.TLS, Kind.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt or one ended WebSocket, fit for a log and for the API: no part of it holds a secret."""

    kind: Kind
    detail: str = ""
    status: int | None = None
    """The HTTP status, if the handshake was answered with one other than 101."""
    retry_after: str | None = None
    """The Retry-After header as it came."""
    code: int | None = None
    """The close code: the peer's, or the one that we sent because of what the peer did. 1006 if there was none."""

    @property
    def reason(self) -> str:
        """One word for it, with the number that matters."""
        if self.kind is Kind.HTTP:
            return f"http_{self.status}"
        if self.kind is Kind.CLOSED:
            return f"closed_{self.code}"
        return self.kind.value

    @property
    def metric(self) -> Reason:
        """The dimension value under which a failed attempt is counted."""
        if self.status in (_TOO_MANY_REQUESTS, _UNAVAILABLE):
            return Reason.RATE_LIMITED
        return _METRIC.get(self.kind, Reason.PROTOCOL)


class AttemptFailed(Exception):
    """An attempt to open a WebSocket failed; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.reason}: {failure.detail}")
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the request says about retrying."""

    cap_seconds: float = 120.0
    max_attempts: int | None = None
    fatal_close_codes: frozenset[int] = frozenset()
    fatal_http_statuses: frozenset[int] = frozenset({401, 403, 404, 410})
    """Without 401 and 403, these are tried for ever, with fresh secrets each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again after `floor` plus a random share of `window`, both in seconds."""

    window: float
    floor: float = 0.0
    rate_limited: bool = False
    """The whole group has to wait; for how long says Retry-After, or the group's own back-off."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Trying again would be wrong or useless; the reason is what the API shows."""

    reason: str


@dataclass(slots=True)
class History:
    """What a connection went through since it last proved that it works."""

    failures: int = 0
    """Failures in a row since the last proof of life."""
    flaps: int = 0
    short_sessions: int = 0
    refreshed: bool = False
    strikes: Counter[Kind] = field(default_factory=Counter)

    def session_ended(self, *, lasted: float, messages: int) -> None:
        """Take note of a WebSocket that was open for `lasted` seconds and brought `messages` messages."""
        self.short_sessions = 0 if lasted >= PROVEN_SECONDS else self.short_sessions + 1
        if lasted >= PROVEN_SECONDS or (messages and self.short_sessions <= SHORT_SESSIONS):
            self.failures = self.flaps = 0
            self.refreshed = False
        else:
            self.flaps += 1
        if lasted >= STRIKES_FORGOTTEN_SECONDS:
            self.strikes.clear()

    def decide(self, failure: Failure, policy: Policy) -> Retry | GiveUp:
        """Say what follows a failure, and count it."""
        self.failures += 1
        fatal = self._fatal(failure, policy)
        if fatal is not None:
            return GiveUp(fatal)
        # Secrets are read anew at every attempt, so the next one has fresh ones.
        self.refreshed = self.refreshed or failure.status in _UNAUTHORISED
        if policy.max_attempts is not None and self.failures >= policy.max_attempts:
            return GiveUp(f"max_attempts: {failure.reason}")
        cap = policy.cap_seconds
        if failure.kind in _UNREACHABLE:
            cap = min(cap, UNREACHABLE_CAP)
        doublings = self.failures - 1
        if failure.code == _TRY_AGAIN_LATER:
            doublings = max(doublings, _SLOW_START)
        return Retry(
            window=min(cap, FIRST_WINDOW * 2.0 ** min(doublings, 32)),
            floor=cap if self.flaps >= FLAPS_BEFORE_FLOOR else 0.0,
            rate_limited=failure.status == _TOO_MANY_REQUESTS
            or (failure.status == _UNAVAILABLE and failure.retry_after is not None),
        )

    def _fatal(self, failure: Failure, policy: Policy) -> str | None:
        if failure.kind in (Kind.BLOCKED, Kind.CERTIFICATE):
            return failure.reason
        if failure.kind is Kind.HTTP:
            fatal = failure.status in policy.fatal_http_statuses
            if failure.status in _UNAUTHORISED:
                # Once it may be that a secret was changed between our reading it and the attempt.
                return "auth" if fatal and self.refreshed else None
            return failure.reason if fatal else None
        if failure.kind is Kind.CLOSED and failure.code in policy.fatal_close_codes:
            return failure.reason
        strikes = _STRIKES.get(failure.kind, STRIKES if failure.code == _POLICY_VIOLATION else None)
        if strikes is not None:
            self.strikes[failure.kind] += 1
            if self.strikes[failure.kind] >= strikes:
                return failure.reason
        return None


def retry_after_seconds(value: str | None, wall: float) -> float | None:
    """Read a Retry-After header (RFC 9110 section 10.2.3) in every form that servers send it.

    Seconds, an HTTP date, or a Unix timestamp in seconds or milliseconds; `wall` is the Unix time at which it came.
    The answer is above 0 and at most RETRY_AFTER_CAP; None if the header says nothing of use (absent, not readable,
    zero, negative, in the past).
    """
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - wall
    else:
        seconds = number
        if number > _UNIX_TIMESTAMP:
            seconds = (number if number < _UNIX_TIMESTAMP * 1000 else number / 1000) - wall
    if not seconds > 0:
        return None
    return min(seconds, RETRY_AFTER_CAP)
