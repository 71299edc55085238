"""The judge at work: watches, keeps the listing of the fleet fresh, pronounces, and sees to the orphans."""

import asyncio

from leases import events, writes
from leases.clock import Continuity
from leases.conditions import Unknown, Written
from leases.fleet import FleetView
from leases.judge import Judge, Verdict
from leases.ports import Clock, Store
from leases.rows import DeadBy, SessionRow, readable, session_key
from leases.session import Session
from leases.sweeper import Sweeper
from leases.timings import Timings

LIST_SECONDS = 10.0
PATIENCE_OF_ALL = 3
"""Whoever sees a session stand still in the listing for this many takeover times acts, judge or not."""


class Judging:
    """Watches other sessions on behalf of one session."""

    def __init__(
        self,
        session: Session,
        *,
        store: Store,
        clock: Clock,
        timings: Timings,
        view: FleetView,
        sweeper: Sweeper,
        observer: events.Observer,
    ) -> None:
        self._session = session
        self._store = store
        self._clock = clock
        self._poll = timings.judge_poll
        self._view = view
        self._sweeper = sweeper
        self._observer = observer
        # Of 2 R, as seen by who looks every P.
        own_gap = 2 * timings.heartbeat + timings.judge_poll
        self._judge = Judge(gap=2 * timings.judge_poll, own_gap=own_gap)
        self._everybody = Judge(gap=2 * LIST_SECONDS, own_gap=own_gap)
        self._continuity = Continuity(clock)
        self._tasks: dict[str, str] = {}
        """Of every session alive, as it was when the duties were last worked out."""
        self._known_duties: tuple[frozenset[str], list[str]] = frozenset(), []

    async def run(self) -> None:
        """Judge, for ever."""
        self._know_own_heartbeat()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._list())
            tasks.create_task(self._watch())

    async def _list(self) -> None:
        while True:
            try:
                for key in await self._view.refresh(self._store):
                    self._observer.saw(events.UnreadableRow(key))
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("list", str(unknown)))
                await asyncio.sleep(self._poll)
                continue
            now = self._clock.now()
            for row in self._others():
                self._everybody.read(row, now)
            self._everybody.keep(frozenset(row.session for row in self._others()))
            for verdict in self._of_last_resort(now):
                await self._pronounce(verdict, self._everybody)
            await asyncio.sleep(LIST_SECONDS)

    async def _watch(self) -> None:
        while True:
            due = self._clock.now() + self._poll
            await asyncio.sleep(self._poll)
            if self._clock.now() > due + self._poll or self._continuity.broken():
                self._continuity.restart()
                self._judge.interrupted()
                self._everybody.interrupted()
            self._know_own_heartbeat()
            judged, watched = self._duties()
            self._judge.keep(frozenset(watched))
            if not watched:
                continue
            try:
                items = await self._store.get_many([session_key(session) for session in watched])
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("watch", str(unknown)))
                continue
            now = self._clock.now()
            for row in readable(SessionRow.from_item, items.values())[0]:
                self._judge.read(row, now)
                if not row.alive:
                    self._found_dead(row.session)
            self._know_own_heartbeat()
            for verdict in self._judge.verdicts(now):
                if verdict.session in judged:
                    await self._pronounce(verdict, self._judge)

    def _of_last_resort(self, now: float) -> list[Verdict]:
        """What the listing proves. When most of a fleet dies at once, all judges of a session may be among the dead: it
        is judged by those who would be its judges without all that stand still, and after a while by anybody."""
        verdicts = self._everybody.verdicts(now)
        still = {verdict.session for verdict in verdicts}
        judged = self._view.current.duties(self._session.id, still)[0] if still else ()
        return [
            verdict
            for verdict in verdicts
            if verdict.session in judged or verdict.silent >= PATIENCE_OF_ALL * verdict.takeover
        ]

    def _know_own_heartbeat(self) -> None:
        """Told every P, since each of the two watches for a gap in it."""
        self._judge.own_heartbeat(self._session.acknowledged_at)
        self._everybody.own_heartbeat(self._session.acknowledged_at)

    def _others(self) -> list[SessionRow]:
        return [row for row in self._view.current.alive if row.session != self._session.id]

    def _duties(self) -> tuple[frozenset[str], list[str]]:
        fleet = self._view.current
        if fleet.tasks != self._tasks:
            self._tasks, self._known_duties = fleet.tasks, fleet.duties(self._session.id)
        return self._known_duties

    async def _pronounce(self, verdict: Verdict, judge: Judge) -> None:
        """Sent once: if the answer is lost, the next reading tells what came of it."""
        judge.forget(verdict.session)
        died_at = int(self._clock.wall() - verdict.silent)
        write = writes.declare_dead(verdict.session, DeadBy.JUDGE, verdict.seq, died_at)
        try:
            result = await self._store.write(write)
        except Unknown as unknown:
            self._observer.saw(events.StoreFailed("declare_dead", str(unknown)))
            return
        if not isinstance(result, Written):
            self._observer.saw(events.VerdictRefused(verdict.session))
            return
        self._observer.saw(events.DeclaredDead(verdict.session, verdict.silent))
        self._view.bury(verdict.session)
        self._sweeper.sweep_now(verdict.session)

    def _found_dead(self, session: str) -> None:
        """Somebody else ended it. Whoever is first in line sweeps now, not only in the next round."""
        self._view.bury(session)
        if self._view.current.turn(self._session.id, session) == 0:
            self._sweeper.sweep_now(session)
