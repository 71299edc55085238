"""Taking a connection from an owner that is dead, or that a person wants to be declared dead.

Nobody ever takes it from a live one: a session ends by itself, or because it stood still for its whole takeover time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from connections import strict_json
from connections.spec import Model, validate
from lambdas.api.connections import Connections, View
from lambdas.api.http import ApiError, conflict, read
from lambdas.api.patience import changing
from leases.conditions import Refused
from leases.rows import ConnectionRow, DeadBy, Desired, SessionRow, is_session, session_key
from leases.writes import declare_dead, force_release

POLL = 0.5
"""Seconds between two looks at a heartbeat."""

LONGEST_WATCH = 10.0
LONGEST_CALL = 12.0
"""Seconds. A session with a longer takeover time is left to the judges, since the function must end after 15."""


class ReleaseRequest(Model):
    """The body of POST /connections/{id}/force-release; it may be left out."""

    kill_session: bool = False
    """Watch the owner's heartbeat, and declare its whole session dead if it stands still for its takeover time."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and waiting, for the watch."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Releases:
    """Force-releases. Methods raise `ApiError`, `Refusal`, `Unknown`."""

    connections: Connections
    clock: Clock

    def force(self, connection: str, body: bytes) -> View:
        """Free a connection whose owner is dead, with a new epoch that fences whatever that owner still sends."""
        request = validate(ReleaseRequest, strict_json.canonical(strict_json.parse(body) if body else {}))
        row = self.connections.row(connection)
        if not is_session(row.owner):
            return self.connections.told(View(row))
        item = self.connections.table.get(session_key(str(row.owner)))
        session = None if item is None else read(SessionRow.from_item, item)
        if session is not None and session.alive:
            if not request.kill_session:
                raise owner_alive()
            self._kill(session)
        elif session is None:
            # Somebody has deleted its row: it may live on for its takeover time, which nobody can know any more.
            self.clock.sleep(LONGEST_WATCH)
        return self._free(row)

    def _free(self, row: ConnectionRow) -> View:
        """What is not wanted any more has no use for a new owner: whoever sweeps the dead session finishes it."""
        if row.desired is Desired.RUNNING:
            with changing(row.connection):
                outcome = self.connections.table.write(force_release(row))
            if isinstance(outcome, Refused) and (outcome.image or {}).get("owner") == row.owner:
                raise conflict("conflict", "this connection is being changed; try again")
        return self.connections.told(View(self.connections.row(row.connection)))

    def _kill(self, session: SessionRow) -> None:
        takeover = session.takeover_ms / 1000
        if takeover > LONGEST_WATCH:
            raise conflict("takeover_too_long", "this session's takeover time is too long to watch it in one call")
        self._watch(session, takeover)
        died_at = int(self.connections.now())
        with changing():
            outcome = self.connections.table.write(declare_dead(session.session, DeadBy.JUDGE, session.seq, died_at))
        if isinstance(outcome, Refused) and outcome.image and SessionRow.from_item(outcome.image).alive:
            raise owner_alive()

    def _watch(self, session: SessionRow, takeover: float) -> None:
        """Return once `session.seq` has stood still for the takeover time, or the session is dead.

        The rules are a judge's: time counts from when a read returned, and only while reads follow each other closely.
        """
        started = began = last = self.clock.now()
        while last - began < takeover:
            self.clock.sleep(POLL)
            item = self.connections.table.get(session_key(session.session))
            seen = None if item is None else read(SessionRow.from_item, item)
            if seen is None or not seen.alive:
                return
            if seen.seq != session.seq:
                raise owner_alive()
            now = self.clock.now()
            if now - last > 2 * POLL:
                began = now
            if now - started > LONGEST_CALL:
                raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the watch was interrupted; try again")
            last = now


def owner_alive() -> ApiError:
    """The owner shows life: it keeps its connections."""
    return conflict("owner_alive", "the owner is alive; drain it, or pause the connection")
