"""What one sweep takes itself, and what it leaves to others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from leases.fleet import Fleet, FleetView
from leases.rows import ConnectionRow, Desired, SessionRow, SessionState
from leases.sweeper import SWEEP_SECONDS, Sweeper


class Row(ConnectionRow):
    """Comparing rows with each other would make a sweep quadratic: at thousands of rows the loop stands still."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a row is compared with another")

    __hash__ = None  # type: ignore[assignment]


class Orphans:
    """Holdings without any, that claim nothing but note what they are to claim."""

    def __init__(self, count: int, room: int) -> None:
        self.session = SimpleNamespace(id="me")
        self.room = room
        self.orphans = {
            f"c{number}": Row(connection=f"c{number}", owner="dead", epoch=3, desired=Desired.RUNNING, generation=1)
            for number in range(count)
        }
        self.considered: list[str] = []
        self.hinted: list[str] = []

    def __len__(self) -> int:
        return 0

    async def listed(self, owner: str) -> Sequence[str]:
        return list(self.orphans)

    async def rows(self, connections: Sequence[str]) -> Mapping[str, ConnectionRow]:
        return self.orphans

    async def consider(self, row: ConnectionRow) -> None:
        self.considered.append(row.connection)

    async def hint(self, connections: Sequence[str]) -> None:
        self.hinted += connections


def sweeper(holdings: Orphans, now: list[float]) -> Sweeper:
    one = SessionRow(
        session="me",
        state=SessionState.LIVE,
        seq=1,
        takeover_ms=7000,
        capacity=5000,
        held=0,
        rate=0,
        revision=1,
        task_arn="a",
        inbox=frozenset(),
        opened_at=0,
    )
    view = FleetView()
    view.current = Fleet([one, replace(one, session="other", task_arn="b")])
    clock: Any = SimpleNamespace(now=lambda: now[0])
    observer: Any = SimpleNamespace(saw=lambda _: None)
    return Sweeper(holdings, clock, observer, view, lambda _: None)  # type: ignore[arg-type]


async def test_a_share_is_claimed_the_rest_is_offered_and_taken_when_nobody_came() -> None:
    holdings, now = Orphans(3000, room=5000), [100.0]
    one = sweeper(holdings, now)
    await one._sweep_listed("dead")
    assert len(holdings.considered) == len(holdings.hinted) == 1500
    assert {*holdings.considered, *holdings.hinted} == set(holdings.orphans)
    for taken in holdings.considered:
        del holdings.orphans[taken]
    holdings.considered.clear()
    now[0] += SWEEP_SECONDS
    await one._sweep_listed("dead")
    assert set(holdings.considered) == set(holdings.orphans)


async def test_no_more_is_claimed_than_there_is_room_for() -> None:
    holdings = Orphans(100, room=7)
    await sweeper(holdings, [100.0])._sweep_listed("dead")
    assert len(holdings.considered) == 7
    assert len(holdings.hinted) == 93
