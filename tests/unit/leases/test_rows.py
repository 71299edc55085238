"""Rows as they are read: those that nobody understands are set aside, not raised."""

import pytest

from leases.rows import ConnectionRow, Desired, Item, Key, SessionRow, readable
from leases.writes import change

SESSION = {
    "pk": "SESSIONS#1", "sk": "s", "state": "LIVE", "seq": 3, "takeover_ms": 7000, "capacity": 10, "held": 1, "rate": 0,
    "revision": 1, "task_arn": "t", "opened_at": 0,
}  # fmt: skip
CONNECTION = {"pk": "CONNECTION#c", "sk": "LEASE", "owner": "s", "epoch": 7, "desired": "RUNNING", "generation": 1}


@pytest.mark.parametrize(
    "spoilt",
    [
        {name: value for name, value in SESSION.items() if name != "seq"},
        SESSION | {"state": "RESTING"},
        SESSION | {"dead_by": "lightning"},
    ],
)
def test_a_session_row_that_nobody_understands_is_set_aside(spoilt: Item) -> None:
    rows, unreadable = readable(SessionRow.from_item, (spoilt, SESSION))
    assert [row.session for row in rows] == ["s"]
    assert unreadable == [Key("SESSIONS#1", "s")]


@pytest.mark.parametrize(
    "spoilt",
    [
        {name: value for name, value in CONNECTION.items() if name != "epoch"},
        CONNECTION | {"desired": "SLEEPING"},
        CONNECTION | {"next": "somebody"},
        CONNECTION | {"handoff": {}},
    ],
)
def test_a_connection_row_that_nobody_understands_is_set_aside(spoilt: Item) -> None:
    rows, unreadable = readable(ConnectionRow.from_item, (CONNECTION, spoilt))
    assert [row.connection for row in rows] == ["c"]
    assert unreadable == [Key("CONNECTION#c", "LEASE")]


def test_a_change_forgives_strikes() -> None:
    row = ConnectionRow.from_item(CONNECTION | {"owner": "PARKED#3", "strikes": 5})
    assert "strikes" in change(row, Desired.RUNNING, None, 0).remove
