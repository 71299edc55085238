"""What the lease protocol tells, as logs and metrics: each fault once, with what happens next."""

from leases import events
from telemetry import metrics
from telemetry.logs import Event, Field
from worker.logs import logger
from worker.metering import Meter

log = logger()


class Watching:
    """`leases.events.Observer` of a worker process."""

    def __init__(self, meter: Meter, self_fence: float) -> None:
        self._meter = meter
        self._self_fence = self_fence
        self.session = ""
        """The present session, which signs every record and log line."""

    def saw(self, event: events.Event) -> None:  # noqa: C901 - one flat table of events
        """Log and count one event."""
        count = self._meter.count
        match event:
            case events.HeartbeatAcknowledged(age):
                self._meter.sample(metrics.HEARTBEAT_AGE, 100 * age / self._self_fence)
            case events.SessionOpened(session):
                self.session = session
                self._info("Session opened")
            case events.HeartbeatUnknown(reason):
                count(metrics.HEARTBEATS_UNKNOWN)
                self._warn("Heartbeat unanswered; repeating it", Event.LEASE_RENEW_ERROR, reason=reason)
            case events.HoldBegan(held):
                count(metrics.SELF_HOLDS)
                self._warn(f"Deadline passed; {held} connections stay open, nothing is emitted", Event.ON_HOLD)
            case events.HoldEnded(seconds):
                self._info(f"Heartbeat acknowledged after {seconds:.1f} s on hold; going on, nothing is lost")
            case events.SessionLost(_, held, reason):
                count(metrics.HEARTBEATS_LOST)
                count(metrics.DEAD_SESSIONS_RETURNED)
                self._warn(
                    f"Session lost; dropping {held} connections and opening a new one", Event.LEASE_LOST, reason=reason
                )
            case events.SessionGivenUp(_, held, reason):
                count(metrics.SESSIONS_DECLARED_DEAD, label=metrics.Cause.SELF)
                self._warn(
                    f"Session given up; dropping {held} connections and opening a new one", Event.ON_HOLD, reason=reason
                )
            case events.DeclaredDead(session, silent):
                count(metrics.SESSIONS_DECLARED_DEAD, label=metrics.Cause.JUDGE)
                self._warn(f"Declared {session} dead after {silent:.1f} s of silence; sweeping it", Event.DECLARED_DEAD)
            case events.VerdictRefused(session):
                self._info(f"{session} moved just in time; watching it anew")
            case events.Claimed(_, _, _, dead_by, outage):
                count(metrics.CLAIMS)
                if outage is not None:
                    cause = metrics.Cause.RELEASE if dead_by is None else metrics.Cause(dead_by.value)
                    self._meter.sample(metrics.OUTAGE, outage, cause)
            case events.UnreadableRow(key):
                self._warn(f"The row {key.pk} {key.sk} cannot be read; leaving it, and what it is about, as they are")
            case events.StruckOut(connection, strikes):
                count(metrics.STRUCK_OUT)
                self._warn(
                    f"Parked after {strikes} deaths of its workers; a change of it tries again", connection=connection
                )
            case events.ClaimConflict():
                count(metrics.CLAIM_CONFLICTS)
            case events.ClaimUnsettled(connection):
                self._warn("Claim unanswered; the self-audit will settle it", connection=connection)
            case events.Adopted(connection, epoch):
                self._info("Found to be the owner; running it", connection=connection, epoch=epoch)
            case events.LeaseLost(connection, epoch, reason):
                self._warn(
                    "Lease lost; dropping the connection", Event.LEASE_LOST,
                    connection=connection, epoch=epoch, reason=reason,
                )  # fmt: skip
            case events.Transferred():
                count(metrics.HAND_OVERS)
            case events.OfferEnded(connection, reason):
                count(metrics.HAND_OVERS_FAILED)
                self._info("Hand-over came to nothing; going on here", connection=connection, reason=reason)
            case events.Regranted(connection, epoch):
                count(metrics.HAND_OVERS_FAILED)
                self._info("Transfer refused; going on here", connection=connection, epoch=epoch)
            case events.StoreFailed(what, reason):
                self._warn(
                    f"The table did not answer a {what}; it will be repeated or found by an audit", reason=reason
                )
            case _:
                pass

    def _info(self, message: str, **fields: object) -> None:
        log.info(message, extra=self._fields(None, fields))

    def _warn(self, message: str, event: Event | None = None, **fields: object) -> None:
        log.warning(message, extra=self._fields(event, fields))

    def _fields(self, event: Event | None, fields: dict[str, object]) -> dict[str, object]:
        named = {"connection": Field.CONNECTION, "epoch": Field.EPOCH, "reason": Field.REASON}
        told: dict[str, object] = {str(named[name]): value for name, value in fields.items()}
        told[str(Field.SESSION)] = self.session
        if event is not None:
            told[str(Field.EVENT)] = event.value
        return told
