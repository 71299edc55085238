"""Who is given a connection: the least loaded session that takes work, counting what was promised to it already.

Sessions of other tasks come first.
"""

from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from math import ceil

from leases.fleet import Fleet
from leases.rows import SessionRow


def share(fleet: Fleet, session: str, held: int, orphans: int) -> int:
    """How many of `orphans` a session claims itself, so that it ends at the mean of those that take work."""
    takers = {row.session: row for row in fleet.takers}
    own = takers.get(session)
    if own is None:
        return 0
    wanted = sum(row.held for row in takers.values()) - own.held + held + orphans
    fair = ceil(Fraction(wanted * own.capacity, sum(row.capacity for row in takers.values())))
    return max(0, min(fair, own.capacity) - held)


def outdated(fleet: Fleet, revision: int) -> bool:
    """Whether a newer revision has room: then this one takes no new work, which it would soon have to hand over."""
    return any(row.revision > revision and row.held < row.capacity for row in fleet.takers)


class Targets:
    """Hand-over targets of one session. Its promises are counted until a fresh listing shows them as held."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._fleet = Fleet()
        self._promised: Counter[str] = Counter()

    def choose(self, fleet: Fleet, declined: Collection[str] = ()) -> str | None:
        """The target for one more connection, which is promised to it; None where nobody has room."""
        if fleet is not self._fleet:
            self._fleet = fleet
            self._promised.clear()
        roomy = [
            row
            for row in fleet.takers
            if row.session != self._session
            and row.session not in declined
            and row.held + self._promised[row.session] < row.capacity
        ]
        if not roomy:
            return None
        own = fleet.by_id.get(self._session)

        def preference(row: SessionRow) -> tuple[bool, Fraction, str]:
            # What stops this process usually stops its whole task, whose others may not yet say so.
            beside = own is not None and row.task_arn == own.task_arn
            return beside, Fraction(row.held + self._promised[row.session], row.capacity), row.session

        target = min(roomy, key=preference)
        self._promised[target.session] += 1
        return target.session
