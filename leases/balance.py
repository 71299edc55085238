"""Evening out the load after the fleet has grown: how many connections to hand over, and to whom.

Everybody computes the same plan from the same listing and carries out its own part, so that together they neither
overshoot nor move anything twice. Only a clear imbalance starts a move, and it then goes all the way to the mean, so
that small changes move nothing.
"""

from collections.abc import Collection
from fractions import Fraction
from math import ceil, floor

from leases.fleet import Fleet
from leases.rows import SessionRow

TOLERANCE = Fraction(1, 10)
"""A session is overloaded when it holds more than this share above the mean, plus one connection."""


def overloaded(held: int, mean: Fraction) -> bool:
    """Whether a session that holds so many, where the mean would give it `mean`, should hand some over."""
    return held > mean * (1 + TOLERANCE) + 1


def plan(fleet: Fleet, session: str, held: int, steady: Collection[str], most: int) -> list[str]:
    """The sessions to hand one connection over to, in order; at most `most` of them.

    `steady` names the sessions that have been there for a while: one that has just come may be gone at once, and gets
    nothing yet. `held` is what this session really holds.
    """
    rows = {row.session: row for row in fleet.takers if row.session == session or row.session in steady}
    own = rows.get(session)
    if own is None or len(rows) < 2:
        return []
    load = Fraction(
        sum(row.held for row in rows.values()) - own.held + held, sum(row.capacity for row in rows.values())
    )
    if not overloaded(held, load * own.capacity):
        return []

    def fair(row: SessionRow) -> Fraction:
        return load * row.capacity

    surplus = {name: row.held - ceil(fair(row)) for name, row in rows.items()} | {session: held - ceil(fair(own))}
    giving = sum(count for name, count in surplus.items() if count > 0)
    wants = {name: floor(fair(row)) - row.held for name, row in rows.items() if row.held < floor(fair(row))}
    part = Fraction(surplus[session], giving)
    due = {name: part * count for name, count in wants.items()}
    targets: list[str] = []
    for _ in range(min(surplus[session], most)):
        name = max(due, key=lambda candidate: (due[candidate], candidate), default=None)
        if name is None or due[name] <= 0:
            break
        targets.append(name)
        due[name] -= 1
    return targets
