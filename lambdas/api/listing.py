"""Lists of connections, page by page."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence

from connections.identity import CONNECTION_ID
from connections.refusal import Refusal
from connections.rows import current_spec
from connections.status import State
from lambdas.api import answers
from lambdas.api.connections import View, observed
from lambdas.api.workers import SESSION_ID
from leases.conditions import Equals
from leases.dynamodb import Table
from leases.rows import ConnectionRow, Item, Key, connection_key, connection_of, is_session, readable

PAGE = 200
"""Rows that are looked at for one page, so that an answer comes soon. A page may be empty and still have a cursor."""

PARAMETERS = frozenset({"status", "owner", "label", "cursor"})
"""Of the query."""
SCAN_POSITION = re.compile(r"[!-~]{1,512} [!-~]{1,512}")
LABEL = re.compile(r"(?P<name>[A-Za-z0-9_./-]{1,63})=(?P<value>[^\x00-\x1f\x7f]{0,128})")


def page(table: Table, query: Mapping[str, str]) -> answers.ConnectionPage:
    """One page of connections by `status`, `owner` and `label=name=value`. Raises `Refusal` and `Unknown`.

    Rows that cannot be read are left out: whoever asks for one of them by its id is told.
    """
    status = _status(query.get("status"))
    label = _label(query.get("label"))
    owner = query.get("owner")
    start = _start(query.get("cursor"), SCAN_POSITION if owner is None else CONNECTION_ID)
    if owner is not None:
        rows, following = _by_owner(table, owner, label, start)
    elif label is not None:
        rows, following = _by_label(table, label, start)
    else:
        scanned = table.scan(Equals("sk", "LEASE"), start, PAGE)
        rows, following = readable(ConnectionRow.from_item, scanned.items)[0], scanned.next
    shown = [View(row).answer() for row in rows if status is None or observed(row).get("state") == status]
    return {"connections": shown, "cursor": None if following is None else _cursor(following)}


def _by_owner(
    table: Table, owner: str, label: tuple[str, str] | None, start: str | None
) -> tuple[Sequence[ConnectionRow], str | None]:
    if not (SESSION_ID.fullmatch(owner) and is_session(owner)):
        return [], None
    listed = table.owned_by(owner, start, PAGE)
    items = table.get_many(map(connection_key, listed.items))
    rows = [row for row in readable(ConnectionRow.from_item, items.values())[0] if row.owner == owner]
    if label is not None:
        specs = table.get_many(map(current_spec, rows))
        labelled = {key for key, spec in specs.items() if spec.get("labels", {}).get(label[0]) == label[1]}
        rows = [row for row in rows if current_spec(row) in labelled]
    return rows, listed.next


def _by_label(table: Table, label: tuple[str, str], start: str | None) -> tuple[Sequence[ConnectionRow], str | None]:
    """Labels are on spec rows; the lease row tells which generation counts."""
    name, value = label
    scanned = table.scan(Equals(f"labels.{name}", value), start, PAGE)
    rows = table.get_many(connection_key(connection_of(spec["pk"])) for spec in scanned.items)
    return _current(scanned.items, rows), scanned.next


def _current(specs: Iterable[Item], rows: Mapping[Key, Item]) -> list[ConnectionRow]:
    found = {Key(spec["pk"], spec["sk"]) for spec in specs}
    current = readable(ConnectionRow.from_item, rows.values())[0]
    return [row for row in current if current_spec(row) in found]


def _status(text: str | None) -> State | None:
    if text is not None and text not in set(State):
        raise Refusal("invalid_value", f"must be one of {', '.join(State)}", "status")
    return None if text is None else State(text)


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    label = LABEL.fullmatch(text)
    if label is None:
        raise Refusal("invalid_value", "must be name=value", "label")
    return label["name"], label["value"]


def _cursor(position: str) -> str:
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _start(cursor: str | None, valid: re.Pattern[str]) -> str | None:
    """Where a cursor points. One that was made up can only point elsewhere in the same list."""
    if cursor is None:
        return None
    try:
        position = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        position = ""
    if not valid.fullmatch(position):
        raise Refusal("invalid_value", "not a cursor of this API", "cursor")
    return position
