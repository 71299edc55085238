"""The fleet as one member sees it, and the division of its work by rendezvous hashing: nobody leads, all agree.

Disagreement while views differ costs double work and nothing else, since every act is a conditional write.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

from leases.ports import Store
from leases.rows import SESSION_SHARDS, Item, Key, SessionRow, SessionState, readable

JUDGES = 3
WARM_JUDGES = 2
"""Beside its judges, this many more watch a session, so that one who steps in need not begin to watch only then."""
SWEEPERS = 2
"""This many sweep the rows under an owner value, one after the other."""


def weights(key: str) -> Callable[[str], bytes]:
    """What a candidate's claim to `key` weighs (highest random weight; Thaler and Ravishankar 1996).

    One that goes or comes changes only the keys that it ranks first for.
    """
    begun = blake2b(f"{key}|".encode(), digest_size=8)

    def weight(candidate: str) -> bytes:
        hashed = begun.copy()
        hashed.update(candidate.encode())
        return hashed.digest()

    return weight


def rendezvous(key: str, candidates: Iterable[str]) -> list[str]:
    """The candidates in the order of their claim to `key`."""
    return sorted(candidates, key=weights(key), reverse=True)


@dataclass(frozen=True)
class Fleet:
    """One listing of all sessions."""

    sessions: Sequence[SessionRow] = ()

    @cached_property
    def by_id(self) -> dict[str, SessionRow]:
        """Every session row by its id."""
        return {row.session: row for row in self.sessions}

    @cached_property
    def alive(self) -> list[SessionRow]:
        """Sessions that nobody has declared dead."""
        return [row for row in self.sessions if row.alive]

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The task of each session that nobody has declared dead. Nothing else decides who judges and sweeps."""
        return {row.session: row.task_arn for row in self.alive}

    @cached_property
    def takers(self) -> list[SessionRow]:
        """Sessions that may be given work: live, of the newest revision with room (an older one moves it again)."""
        live = [row for row in self.sessions if row.state is SessionState.LIVE]
        roomy = [row for row in live if row.held < row.capacity]
        newest = max((row.revision for row in roomy), default=0)
        return [row for row in live if row.revision >= newest]

    @property
    def dead(self) -> list[str]:
        """Ids of sessions that were declared dead within the last day."""
        return [row.session for row in self.sessions if not row.alive]

    @cached_property
    def room(self) -> int:
        """Connections that the takers could still take."""
        return sum(max(0, row.capacity - row.held) for row in self.takers)

    @cached_property
    def mean(self) -> float:
        """Mean load (held / capacity) of the takers."""
        capacity = sum(row.capacity for row in self.takers)
        return sum(row.held for row in self.takers) / capacity if capacity else 0.0

    def duties(self, session: str, still: Collection[str] = ()) -> tuple[frozenset[str], list[str]]:
        """The sessions that `session` judges, and those that it watches. Those that stand `still` judge nobody.

        Costs about 5 n ln n short hashes for n sessions: whom `session` has no part in is found out early.
        """
        judged: set[str] = set()
        watched: list[str] = []
        able = {name: task for name, task in self.tasks.items() if name not in still}
        if session not in able:
            return frozenset(), []
        for subject in self.tasks:
            if subject == session or self._outranked(session, subject, able):
                continue
            judges, reserve = self._judges(subject, able)
            if session in judges:
                judged.add(subject)
            if session in judges or session in reserve:
                watched.append(subject)
        return frozenset(judged), watched

    def _outranked(self, session: str, subject: str, able: Mapping[str, str]) -> bool:
        """Whether enough tasks have a better claim to watch `subject` than `session` has: then it has no part in it."""
        weight = weights(subject)
        own = weight(session)
        better = {self.tasks[subject]}
        for other, task in able.items():
            if task not in better and weight(other) > own:
                better.add(task)
                if len(better) > JUDGES + WARM_JUDGES:
                    return True
        return False

    def judges(self, session: str) -> tuple[list[str], list[str]]:
        """Who judges a session, and who keeps watching it in reserve.

        Sessions of other tasks first, one per task while tasks suffice: what takes one down must not take all judges.
        """
        return self._judges(session, self.tasks)

    def _judges(self, session: str, able: Mapping[str, str]) -> tuple[list[str], list[str]]:
        ranked = rendezvous(session, able.keys() - {session})
        order = list(self._spread(ranked, self.tasks.get(session, "")))
        return order[:JUDGES], order[JUDGES : JUDGES + WARM_JUDGES]

    def _spread(self, ranked: Sequence[str], own_task: str) -> Iterator[str]:
        tasks: dict[str, list[str]] = {}
        for session in ranked:
            tasks.setdefault(self.tasks[session], []).append(session)
        same_task = tasks.pop(own_task, [])
        while tasks:
            for task in list(tasks):
                yield tasks[task].pop(0)
                if not tasks[task]:
                    del tasks[task]
        yield from same_task

    def turn(self, session: str, key: str) -> int | None:
        """How many sweep the rows under an owner value before `session` does; None if that is not up to it at all."""
        if session not in self.tasks:
            return None
        weight = weights(key)
        own = weight(session)
        before = 0
        for other in self.tasks:
            if weight(other) > own:
                before += 1
                if before == SWEEPERS:
                    return None
        return before


class FleetView:
    """The latest listing, for everybody in this process."""

    def __init__(self) -> None:
        self.current = Fleet()

    async def refresh(self, store: Store) -> list[Key]:
        """List all sessions; returns the keys of unreadable rows. Raises `Unknown`; the old listing then stays."""
        items: list[Item] = []
        for shard in range(SESSION_SHARDS):
            page = await store.sessions(shard, None)
            items.extend(page.items)
            while page.next is not None:
                page = await store.sessions(shard, page.next)
                items.extend(page.items)
        rows, unreadable = readable(SessionRow.from_item, items)
        self.current = Fleet(rows)
        return unreadable

    def bury(self, session: str) -> None:
        """A session is known to be dead before the next listing shows it."""
        self.current = Fleet(
            [replace(row, state=SessionState.DEAD) if row.session == session else row for row in self.current.sessions]
        )
