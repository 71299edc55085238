"""When a silent session may be called dead: only by who has watched it stand still, on his own clock, without a gap."""

from dataclasses import dataclass

from leases.rows import SessionRow


@dataclass(slots=True)
class _Observation:
    seq: int
    since: float
    """When an answer first showed `seq`, on the judge's clock: no earlier than the heartbeat was applied."""
    read_at: float
    takeover: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A session stood still at `seq` for `silent` seconds. Void unless the row still says `seq` when it is written."""

    session: str
    seq: int
    silent: float
    takeover: float
    """The W of that session."""


class Judge:
    """Watches sequence numbers. Times are seconds on the judge's own clock; no timestamp of another machine enters.

    A session is dead once its number stood still for its own takeover time W (the holder's value, from its row). An
    observation counts only while it is uninterrupted: `gap` is the longest time between two readings.
    """

    def __init__(self, *, gap: float, own_gap: float) -> None:
        self._gap = gap
        self._own_gap = own_gap
        self._seen: dict[str, _Observation] = {}
        self._own_acknowledged = float("-inf")
        self._own_sound_since = float("inf")

    def own_heartbeat(self, acknowledged_at: float) -> None:
        """The judge's own heartbeat was acknowledged: the table is in reach, so that a silence is the other's."""
        if acknowledged_at - self._own_acknowledged > self._own_gap:
            self._own_sound_since = acknowledged_at
            self._seen.clear()
        self._own_acknowledged = max(self._own_acknowledged, acknowledged_at)

    def read(self, row: SessionRow, received_at: float) -> None:
        """A reading of a session's row arrived. A lower number than seen before is a stale read: it proves nothing."""
        if not row.alive:
            self._seen.pop(row.session, None)
            return
        seen = self._seen.get(row.session)
        if seen is None or received_at - seen.read_at > self._gap or row.seq > seen.seq:
            self._seen[row.session] = _Observation(row.seq, received_at, received_at, row.takeover_ms / 1000)
        else:
            seen.read_at = received_at

    def keep(self, sessions: frozenset[str]) -> None:
        """Forget every session but these."""
        for session in self._seen.keys() - sessions:
            del self._seen[session]

    def forget(self, session: str) -> None:
        """A verdict was refused: the session moved, so its observation was worth nothing."""
        self._seen.pop(session, None)

    def interrupted(self) -> None:
        """The judge itself stood still, or its clock jumped: it starts all its observations anew."""
        self._seen.clear()

    def verdicts(self, now: float) -> list[Verdict]:
        """The sessions that have stood still for long enough. None while the judge's own heartbeats are in doubt."""
        if now - self._own_acknowledged > self._own_gap:
            self._seen.clear()
            return []
        return [
            Verdict(session, seen.seq, seen.read_at - seen.since, seen.takeover)
            for session, seen in self._seen.items()
            if now - seen.read_at <= self._gap
            and seen.read_at - seen.since >= seen.takeover
            and now - self._own_sound_since >= seen.takeover
        ]
