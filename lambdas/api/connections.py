"""What the API does with connections. The row comes first; whoever must act on it is told after."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from connections import identity, rows, strict_json
from connections.refusal import Refusal
from connections.spec import MAX_STORED_BYTES, ConnectionChange, ConnectionRequest, ConnectionSpec, spec_of, validate
from connections.url_policy import UrlPolicy, check_url
from lambdas.api.http import Json, conflict, not_found
from lambdas.api.notify import Notifier
from leases.dynamodb import Table
from leases.rows import (
    ConnectionRow,
    Desired,
    Item,
    connection_key,
    is_free,
    is_parked,
    is_session,
    session_key,
    spec_key,
)

CHANGE_ATTEMPTS = 5
"""A change that other changes overtake this often is left to its sender."""

DIGEST_BYTES = 16
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class View:
    """A connection as its rows show it."""

    row: ConnectionRow
    spec: ConnectionSpec | None = None
    session: Item | None = None
    """The row of the owner's session."""

    def to_json(self) -> Json:
        """The answer of the API."""
        document: Json = {
            "connectionId": self.row.connection,
            "desired": self.row.desired.value,
            "status": observed(self.row),
            "owner": self.row.owner if is_session(self.row.owner) else None,
            "epoch": self.row.epoch,
            "generation": self.row.generation,
        }
        if self.session is not None:
            document["ownerState"] = self.session["state"]
        if self.spec is not None:
            document["request"] = outline(self.spec)
        return document


def observed(row: ConnectionRow) -> Json:
    """The observed state. What the last owner reported no longer holds while the row waits for another."""
    return {**(row.status or {}), **({"state": "PENDING"} if is_free(row.owner) else {})}


def outline(spec: ConnectionSpec) -> Json:
    """The request without what may hold a secret: query, header values, subprotocols (some carry tokens), frames."""
    secret = {"headers", "subprotocols", "on_open", "app_ping"}
    shown: Json = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=secret)
    return shown | {"url": spec.url.partition("?")[0], "headers": sorted(spec.headers)}


Decision = tuple[ConnectionSpec, Desired]


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of the fleet. Methods raise `ApiError` or `Refusal` for what cannot be, else `Unknown`."""

    table: Table
    notifier: Notifier
    policy: UrlPolicy
    secret_prefix: str
    now: Callable[[], float]

    def create(self, body: bytes, caller: str, key: str | None) -> View:
        """Accept a request. The same caller, key and request give the same connection, however often they come."""
        if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
            raise Refusal("invalid_value", "must be 1 to 255 printable ASCII characters", "Idempotency-Key")
        request = validate(ConnectionRequest, strict_json.canonical(strict_json.parse(body)))
        self._check(request)
        connection = identity.random_id() if key is None else identity.derived_id(caller, key)
        digest = hashlib.blake2b(request.to_json().encode(), digest_size=DIGEST_BYTES).digest()
        spec = spec_of(request)
        writes = rows.create(connection, spec, Desired(request.desired), digest, self.now())
        refused = self.table.transact(writes)
        if not refused:
            return self.told(View(self.row(connection), spec))
        taken = refused[0].image or {}
        if key is None or taken.get("digest") != digest:
            raise conflict("idempotency_conflict", "this Idempotency-Key was used for another request")
        return self.told(self.get(connection))

    def get(self, connection: str) -> View:
        """One connection, with the state of its owner."""
        row = self.row(connection)
        keys = [spec_key(connection, row.generation)]
        owner = session_key(str(row.owner)) if is_session(row.owner) else None
        found = self.table.get_many([*keys, owner] if owner else keys)
        spec = found.get(keys[0])
        return View(row, rows.read_spec(spec) if spec else None, found.get(owner) if owner else None)

    def change(self, connection: str, body: bytes) -> View:
        """Replace fields of the request, pause or resume. A connection that is FAILED is tried again."""
        given = strict_json.parse(body)
        if not isinstance(given, dict):
            raise Refusal("invalid_type", "the body must be an object")

        def merge(view: View) -> Decision | None:
            if view.row.desired is Desired.STOPPED:
                raise conflict("stopped", "a stopped connection stays stopped")
            old = strict_json.parse(_spec(view).to_json().encode())
            change = validate(ConnectionChange, strict_json.canonical(old | given))
            self._check(change)
            spec = spec_of(change)
            desired = view.row.desired if change.desired is None else Desired(change.desired)
            tried_again = desired is Desired.RUNNING and is_parked(view.row.owner)
            unchanged = spec == view.spec and desired is view.row.desired
            return None if unchanged and not tried_again else (spec, desired)

        return self._change(connection, merge)

    def stop(self, connection: str) -> View:
        """Stop for good. Doing it again changes nothing."""

        def stopped(view: View) -> Decision | None:
            return None if view.row.desired is Desired.STOPPED else (_spec(view), Desired.STOPPED)

        return self._change(connection, stopped)

    def _change(self, connection: str, decide: Callable[[View], Decision | None]) -> View:
        for _ in range(CHANGE_ATTEMPTS):
            view = self.get(connection)
            decision = decide(view)
            if decision is None:
                return self.told(view)
            spec, desired = decision
            if not self.table.transact(rows.revise(view.row, spec, desired, self.now())):
                return self.told(View(self.row(connection), spec))
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
        return ConnectionRow.from_item(item)

    def _check(self, spec: ConnectionSpec) -> None:
        """What a model cannot know: the URL policy, the secrets that may be referred to, the size as stored."""
        check_url(spec.url, self.policy)
        for name, secret in spec.secret_refs.items():
            if not secret.startswith(self.secret_prefix):
                raise Refusal("secret_not_allowed", "no secret with this name may be used", f"secretRefs.{name}")
        if len(spec.to_json().encode()) > MAX_STORED_BYTES:
            raise Refusal("too_large", f"the request is larger than {MAX_STORED_BYTES} bytes")


def _spec(view: View) -> ConnectionSpec:
    if view.spec is None:
        raise conflict("conflict", "this connection is being changed; try again")
    return view.spec
