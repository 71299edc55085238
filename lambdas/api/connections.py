"""What the API does with connections. The row comes first; whoever must act on it is told after."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from connections import identity, rows, strict_json
from connections.refusal import Refusal
from connections.spec import MAX_STORED_BYTES, ConnectionChange, ConnectionRequest, ConnectionSpec, spec_of, validate
from connections.url_policy import UrlPolicy, check_url
from lambdas.api import answers
from lambdas.api.http import Json, conflict, not_found, read
from lambdas.api.notify import Notifier
from lambdas.api.patience import changing
from lambdas.sessions import sessions
from leases.conditions import Unknown, Write
from leases.dynamodb import Table
from leases.fleet import Fleet
from leases.rows import (
    ConnectionRow,
    Desired,
    Item,
    connection_key,
    is_free,
    is_parked,
    is_session,
    session_key,
)

CHANGE_ATTEMPTS = 5
"""A change that other changes overtake this often is left to its sender."""

NO_CAPACITY = "no_capacity"
"""The reason of a connection that waits while no live worker has room."""

DIGEST_BYTES = 16
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


def connection_id(caller: str, key: str | None, fresh: str) -> str:
    """The id that a request's connection has or gets: `fresh` without an Idempotency-Key. Raises `Refusal`."""
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise Refusal("invalid_value", "must be 1 to 255 printable ASCII characters", "Idempotency-Key")
    return fresh if key is None else identity.derived_id(caller, key)


@dataclass(frozen=True, slots=True)
class View:
    """A connection as its rows show it."""

    row: ConnectionRow
    spec: ConnectionSpec | None = None
    session: Item | None = None
    """The row of the owner's session."""
    reason: str | None = None
    """Why it waits, where that is known."""

    def answer(self) -> answers.Connection:
        """The connection as the API shows it."""
        document: answers.Connection = {
            "connectionId": self.row.connection,
            "desired": self.row.desired.value,
            "status": observed(self.row) if self.reason is None else {**observed(self.row), "reason": self.reason},
            "owner": self.row.owner if is_session(self.row.owner) else None,
            "epoch": self.row.epoch,
            "generation": self.row.generation,
        }
        if self.session is not None:
            document["ownerState"] = str(self.session.get("state"))
        if self.spec is not None:
            document["request"] = outline(self.spec)
        return document


def observed(row: ConnectionRow) -> answers.Observed:
    """The observed state. What the last owner reported no longer holds while the row waits for another."""
    status = cast("answers.Observed", row.status if isinstance(row.status, Mapping) else {})
    return {**status, "state": "PENDING"} if is_free(row.owner) else status


def outline(spec: ConnectionSpec) -> Json:
    """The request without what may hold a secret: query, header values, subprotocols (some carry tokens), frames."""
    secret = {"headers", "subprotocols", "on_open", "app_ping"}
    shown: Json = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=secret)
    return shown | {"url": spec.url.partition("?")[0], "headers": sorted(spec.headers)}


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of the fleet. Methods raise `ApiError` or `Refusal` for what cannot be, else `Unknown`.

    Each may be repeated after `Unknown`: what the attempt before has written is found and not done again.
    """

    table: Table
    notifier: Notifier
    policy: UrlPolicy
    secret_prefix: str
    now: Callable[[], float]

    def create(self, body: bytes, connection: str) -> View:
        """Accept a request under an id that follows from caller and Idempotency-Key, or that nobody else has.

        The same id and request give the same connection, however often they come.
        """
        request = validate(ConnectionRequest, strict_json.canonical(strict_json.parse(body)))
        self._check(request)
        digest = hashlib.blake2b(request.to_json().encode(), digest_size=DIGEST_BYTES).digest()
        spec = spec_of(request)
        writes = rows.create(connection, spec, Desired(request.desired), digest, self.now())
        with changing(connection):
            found = self._insert(writes)
        if found is None:
            # From here on the connection exists: nothing that fails may make it look otherwise.
            return self.told(View(rows.created(writes[0]), spec))
        if found.get("digest") != digest:
            raise conflict("idempotency_conflict", "this Idempotency-Key was used for another request")
        return self.told(self.get(connection))

    def _insert(self, writes: Sequence[Write]) -> Item | None:
        """Write a connection's first rows; returns the row that has its id already, if there is one."""
        try:
            refused = self.table.transact(writes)
        except Unknown:
            # It may be written all the same, and then the row says so.
            found = self.table.get(writes[0].key)
            if found is None:
                raise
            return found
        return refused[0].image if refused else None

    def get(self, connection: str) -> View:
        """One connection, with the state of its owner."""
        row = self.row(connection)
        keys = [rows.current_spec(row), *([session_key(str(row.owner))] if is_session(row.owner) else ())]
        found = self.table.get_many(keys)
        return View(row, _readable(found.get(keys[0])), found.get(keys[-1]) if is_session(row.owner) else None)

    def look(self, connection: str) -> View:
        """One connection, with the reason why it has no owner, if that is want of room: no row says so."""
        view = self.get(connection)
        if not is_free(view.row.owner) or Fleet(list(sessions(self.table))).room:
            return view
        return replace(view, reason=NO_CAPACITY)

    def change(self, connection: str, body: bytes) -> View:
        """Replace fields of the request, pause or resume. A connection that is FAILED is tried again."""
        given = strict_json.parse(body)
        if not isinstance(given, dict):
            raise Refusal("invalid_type", "the body must be an object")

        def merge(view: View) -> Sequence[Write]:
            if view.row.desired is Desired.STOPPED:
                raise conflict("stopped", "a stopped connection stays stopped")
            if view.spec is None:
                raise conflict("unreadable", "this version cannot read the request; delete the connection")
            old = strict_json.parse(view.spec.to_json().encode())
            change = validate(ConnectionChange, strict_json.canonical(old | given))
            self._check(change)
            spec = spec_of(change)
            desired = view.row.desired if change.desired is None else Desired(change.desired)
            tried_again = desired is Desired.RUNNING and is_parked(view.row.owner)
            unchanged = spec == view.spec and desired is view.row.desired
            return () if unchanged and not tried_again else rows.revise(view.row, spec, desired, self.now())

        return self._change(connection, merge)

    def stop(self, connection: str) -> View:
        """Stop for good. Doing it again changes nothing."""

        def stopped(view: View) -> Sequence[Write]:
            return () if view.row.desired is Desired.STOPPED else rows.stop(view.row, self.now())

        return self._change(connection, stopped)

    def _change(self, connection: str, decide: Callable[[View], Sequence[Write]]) -> View:
        """Write what `decide` makes of the rows as they are, and decide anew where others were quicker."""
        for _ in range(CHANGE_ATTEMPTS):
            view = self.get(connection)
            writes = decide(view)
            if not writes:
                return self.told(view)
            with changing(connection):
                refused = self.table.transact(writes)
            if not refused:
                return self.told(self.get(connection))
        raise conflict("conflict", "others keep changing this connection; try again")

    def told(self, view: View) -> View:
        """Tell whoever must act on a row as it is now."""
        self.notifier.changed(view.row)
        return view

    def row(self, connection: str) -> ConnectionRow:
        """The row of a connection, read consistently."""
        item = self.table.get(connection_key(connection)) if identity.is_connection_id(connection) else None
        if item is None:
            raise not_found("connection")
        return read(ConnectionRow.from_item, item)

    def _check(self, spec: ConnectionSpec) -> None:
        """What a model cannot know: the URL policy, the secrets that may be referred to, the size as stored."""
        check_url(spec.url, self.policy)
        for name, secret in spec.secret_refs.items():
            if not secret.startswith(self.secret_prefix):
                raise Refusal("secret_not_allowed", "no secret with this name may be used", f"secretRefs.{name}")
        if len(spec.to_json().encode()) > MAX_STORED_BYTES:
            raise Refusal("too_large", f"the request is larger than {MAX_STORED_BYTES} bytes")


def _readable(item: Item | None) -> ConnectionSpec | None:
    """The request, unless it is gone, or somebody or another version has stored what this one refuses."""
    try:
        return None if item is None else rows.read_spec(item)
    except (Refusal, KeyError, TypeError):
        return None
