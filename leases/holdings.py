"""All connections of one session: taking them, looking after them, letting them go.

Everything that is done to one connection is done under its lock, so that a row is acted upon once and in order.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random
from typing import Any
from weakref import WeakValueDictionary

from leases import events, writes
from leases.conditions import Refused, Unknown, Write, Written
from leases.decisions import Act, decide
from leases.holding import Holding, Phase
from leases.persist import Persistent
from leases.ports import Clock, Hints, Host, Parting, Remains, Store
from leases.rows import (
    EVERYTHING,
    STRIKES_LIMIT,
    ConnectionRow,
    DeadBy,
    Desired,
    Item,
    Offer,
    SessionRow,
    connection_key,
    connection_of,
    is_free,
    is_session,
    readable,
    session_key,
)
from leases.scribe import Scribe
from leases.session import Session
from leases.timings import Timings

CLAIM_ATTEMPTS = 3
AUDIT_ROUNDS = 10
"""Every so many self-audits, each row that runs has been read once, whatever the index says."""
STANDBY_SECONDS = 30.0
"""A standby that no offer has named for this long closes."""
READY_SECONDS = 30.0


class Considered(Enum):
    """What came of a hint."""

    DONE = auto()
    """Claimed, lost to another, or nothing to claim: whoever sent the hint need not repeat it."""
    LATER = auto()
    """No room, no answer, or not yet proven vacant: somebody should look again."""


@dataclass(frozen=True, slots=True)
class Vacancy:
    """Proof that a row's owner is gone, and how it went."""

    dead_by: DeadBy | None
    died_at: int | None = None


class Holdings:
    """The connections that one session holds or stands by for."""

    def __init__(
        self,
        session: Session,
        *,
        store: Store,
        hints: Hints,
        clock: Clock,
        timings: Timings,
        rng: Random,
        host: Host,
        observer: events.Observer,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        new_id: Callable[[], str],
    ) -> None:
        self.session = session
        self.store = store
        self.insist = Persistent(store, rng, observer)
        self.scribe = Scribe(store, session.id, rng, observer, self.abort)
        self.new_id = new_id
        self._hints = hints
        self._clock = clock
        self._timings = timings
        self._host = host
        self._observer = observer
        self._spawn = spawn
        self._all: dict[str, Holding] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._claiming = 0
        self._unsettled: set[str] = set()
        """Connections with a claim of ours whose outcome is unknown."""
        self._absent: dict[str, float] = {}
        """Sessions that own a row but have none of their own, and since when they were seen so."""
        self._buried: dict[str, Vacancy] = {}
        """Sessions known to be DEAD, which is final."""
        self._unreadable: set[str] = set()
        """Connections among those last read whose row nobody understands: what is run of them goes on."""
        self._audits = 0
        self._closing: set[asyncio.Task[None]] = set()

    # What there is

    def __len__(self) -> int:
        return len(self._all) + self._claiming

    @property
    def room(self) -> int:
        """Connections that may still be taken: none on hold, none while draining."""
        if self.session.draining.is_set() or not self.session.may_emit():
            return 0
        return max(0, self.session.row.capacity - len(self))

    @property
    def held(self) -> list[Holding]:
        """The connections that this session owns."""
        return [holding for holding in self._all.values() if holding.phase is not Phase.STANDBY]

    @property
    def standbys(self) -> list[Holding]:
        """The connections that this session stands by for."""
        return [holding for holding in self._all.values() if holding.phase is Phase.STANDBY]

    def get(self, connection: str) -> Holding | None:
        """The holding of a connection, if there is one."""
        return self._all.get(connection)

    def lock(self, connection: str) -> AbstractAsyncContextManager[Any]:
        """One act at a time for each connection."""
        return self._locks.setdefault(connection, asyncio.Lock())

    # Taking

    async def consider(self, row: ConnectionRow) -> Considered:
        """Claim a connection if its owner is gone and there is room, or end it if it is not wanted."""
        async with self.lock(row.connection):
            holding = self.get(row.connection)
            if row.owner == self.session.id or (holding and holding.phase is not Phase.STANDBY):
                await self._act(row.connection, row)
                return Considered.DONE
            if not is_free(row.owner) and not is_session(row.owner):
                return Considered.DONE
            try:
                vacancy = await self._vacancy(row)
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("read of the owner's session", str(unknown)))
                return Considered.LATER
            if vacancy is None:
                return Considered.LATER if row.owner in self._absent else Considered.DONE
            if row.desired is not Desired.RUNNING:
                await self._finalize(row, None)
                return Considered.DONE
            if not self.room and holding is None:
                return Considered.LATER
            return await self._claim(row, vacancy)

    async def _vacancy(self, row: ConnectionRow) -> Vacancy | None:
        if is_free(row.owner):
            return Vacancy(None, row.freed_at)
        owner = str(row.owner)
        if owner not in self._buried:
            item = await self.store.get(session_key(owner))
            if item is None:
                absent_since = self._absent.setdefault(owner, self._clock.now())
                if self._clock.now() - absent_since < self._timings.takeover:
                    return None
                self._buried[owner] = Vacancy(None)
            else:
                self._absent.pop(owner, None)
                sessions, _ = readable(SessionRow.from_item, (item,))
                if not sessions or sessions[0].alive:
                    return None
                self._buried[owner] = Vacancy(sessions[0].dead_by, sessions[0].died_at)
        return self._buried[owner]

    async def _claim(self, row: ConnectionRow, vacancy: Vacancy) -> Considered:
        nonce = self.new_id()
        write = writes.claim(row, self.session.id, nonce, strike=vacancy.dead_by is DeadBy.EXIT)
        self._claiming += 1
        try:
            result = await self.insist.write(write, attempts=CLAIM_ATTEMPTS)
        except Unknown:
            self._unsettled.add(row.connection)
            self._observer.saw(events.ClaimUnsettled(row.connection))
            return Considered.LATER
        finally:
            self._claiming -= 1
        now_says = _row(result.image)
        if now_says is None or (now_says.owner, now_says.epoch, now_says.grant) != (
            self.session.id,
            row.epoch + 1,
            nonce,
        ):
            self._observer.saw(events.ClaimConflict(row.connection))
            return Considered.DONE
        outage = None if vacancy.died_at is None else max(0.0, self._clock.wall() - vacancy.died_at)
        self._observer.saw(events.Claimed(row.connection, now_says.epoch, str(row.owner), vacancy.dead_by, outage))
        await self._start(now_says)
        return Considered.DONE

    async def _start(self, row: ConnectionRow) -> None:
        """Run a connection that was just claimed or adopted. It connects and buffers before it may emit."""
        holding = self.get(row.connection)
        if row.strikes >= STRIKES_LIMIT:
            if holding is not None:
                self._dismiss(holding, "it kills workers")
            self._observer.saw(events.StruckOut(row.connection, row.strikes))
            await self._write_last(writes.fail(row, self._host.parked(row), None), row)
            return
        if holding is None:
            # Nothing is buffered that could be what the last owner has emitted.
            row = replace(row, handoff=None)
            holding = self._hold(row)
        holding.begin(row, self._after_a_claim())

    def _after_a_claim(self) -> float:
        """When a connection that was claimed just now may emit: after `ρ D`.

        A process that was reaped may have sent a record just before, and by whichever way the connection came here
        since, nobody may have waited for that to land.
        """
        return self._clock.now() + self._timings.rate_ratio * self._timings.drain

    def _hold(self, row: ConnectionRow) -> Holding:
        runner = self._host.runner(row)
        holding = Holding(row, runner, gate=self.session, desk=self, clock=self._clock)
        self._all[row.connection] = holding
        return holding

    # Looking after

    async def look(self, connections: Collection[str]) -> None:
        """Read rows and act on what they say. Raises `Unknown`."""
        wanted = set(connections)
        if EVERYTHING in wanted:
            wanted = {*self._all, *await self.listed(self.session.id)}
        rows = await self.rows(wanted)
        for connection in wanted - self._unreadable:
            self._spawn(self.act(connection, rows.get(connection)))

    def look_later(self, connection: str) -> None:
        """Have a row read and acted upon."""
        self._spawn(self._look_once(connection))

    async def _look_once(self, connection: str) -> None:
        try:
            await self.look((connection,))
        except Unknown as unknown:
            self._unsettled.add(connection)
            self._observer.saw(events.StoreFailed("read of a connection", str(unknown)))

    async def audit(self) -> None:
        """Compare what this session runs with what the rows say that it owns. Raises `Unknown`.

        The index tells which rows to read; over AUDIT_ROUNDS audits every row that runs is read, whatever it tells.
        """
        running = {holding.connection for holding in self.held}
        turn = {
            name for number, name in enumerate(sorted(running)) if number % AUDIT_ROUNDS == self._audits % AUDIT_ROUNDS
        }
        unsettled, self._unsettled = self._unsettled, set()
        try:
            await self.look((running ^ set(await self.listed(self.session.id))) | turn | unsettled)
        except Unknown:
            self._unsettled |= unsettled
            raise
        self._audits += 1

    async def watch_offers(self) -> None:
        """Read the rows of standbys and of outstanding offers, and act on them. Raises `Unknown`."""
        now = self._clock.now()
        watched = [
            holding for holding in self._all.values() if holding.phase is Phase.STANDBY or holding.answer is not None
        ]
        rows = await self.rows([holding.connection for holding in watched])
        for holding in watched:
            if holding.connection in self._unreadable:
                continue
            self._spawn(self.act(holding.connection, rows.get(holding.connection)))
            if holding.phase is Phase.STANDBY and now - holding.named_at > STANDBY_SECONDS:
                self._dismiss(holding, "no offer names it any more")

    async def listed(self, owner: str) -> list[str]:
        """Every connection that the index lists under an owner. Raises `Unknown`."""
        found: list[str] = []
        page = await self.store.owned_by(owner, None)
        found.extend(page.items)
        while page.next is not None:
            page = await self.store.owned_by(owner, page.next)
            found.extend(page.items)
        return found

    async def rows(self, connections: Iterable[str]) -> Mapping[str, ConnectionRow]:
        """The rows of connections, consistently; absent and unreadable ones are left out. Raises `Unknown`."""
        items = await self.store.get_many([connection_key(connection) for connection in connections])
        rows, unreadable = readable(ConnectionRow.from_item, items.values())
        for key in unreadable:
            self._observer.saw(events.UnreadableRow(key))
        self._unreadable = {connection_of(key.pk) for key in unreadable}
        return {row.connection: row for row in rows}

    async def act(self, connection: str, row: ConnectionRow | None) -> None:
        """Do what a row asks."""
        async with self.lock(connection):
            await self._act(connection, row)

    async def _act(self, connection: str, row: ConnectionRow | None) -> None:
        holding = self.get(connection)
        act = decide(row, self.session.id, holding.knows if holding else None)
        match act, holding, row:
            case Act.ABORT, Holding(), _:
                self.abort(holding, f"owned by {row.owner} in epoch {row.epoch}" if row else "its row is gone")
            case Act.DISMISS, Holding(), _:
                self._dismiss(holding, "not needed any more")
            case Act.ADOPT, _, ConnectionRow():
                await self._adopt(row, holding)
            case Act.BEGIN, Holding(), ConnectionRow():
                transferred = holding.offer is not None and row.grant == holding.offer.nonce
                holding.begin(row, self._clock.now() if transferred else self._after_a_claim())
            case Act.CLAIM, Holding(), ConnectionRow():
                if self.session.may_emit():
                    await self._claim(row, Vacancy(None, row.freed_at))
            case Act.FINALIZE, _, ConnectionRow():
                await self._end(row, holding)
            case Act.STAND_BY, _, ConnectionRow(offer=Offer() as offer):
                await self._stand_by(row, offer, holding)
            case Act.REVISE, Holding(), ConnectionRow():
                holding.heard(row)
                holding.row = row
                holding.runner.revise(row)
            case Act.NOTHING, Holding(), ConnectionRow():
                self._still(holding, row)

    def _still(self, holding: Holding, row: ConnectionRow) -> None:
        """The row asks for nothing: an owner sees whether it is answered, a standby whether it is named."""
        if holding.phase is not Phase.STANDBY:
            holding.heard(row)
        elif row.offer is not None and holding.offer is not None and row.offer.nonce == holding.offer.nonce:
            holding.named_at = self._clock.now()
        elif self.session.draining.is_set():
            self._dismiss(holding, "its offer is gone")

    async def _adopt(self, row: ConnectionRow, holding: Holding | None) -> None:
        """Run what the row says is this session's: in a new epoch, since it may have been ended here in this one, and
        since the row may be older than that."""
        if holding is not None:
            self.abort(holding, f"owned in epoch {row.epoch}")
        result = await self.regrant(row.connection, row.epoch)
        now_says = _row(result.image)
        if now_says is None or isinstance(result, Refused) or now_says.desired is not Desired.RUNNING:
            await self._act(row.connection, now_says)
            return
        self._observer.saw(events.Adopted(row.connection, now_says.epoch))
        await self._start(now_says)

    async def regrant(self, connection: str, epoch: int) -> Written | Refused:
        """Go on as the owner in a new epoch, which fences whatever is still on its way in the old one."""
        nonce = self.new_id()
        result = await self.insist.write(writes.regrant(connection, self.session.id, epoch, nonce))
        image = result.image
        if image is not None and (image.get("owner"), image["epoch"], image.get("grant")) == (
            self.session.id,
            epoch + 1,
            nonce,
        ):
            return Written(image)
        return result

    def note(self, holding: Holding) -> None:
        """See `leases.holding.Desk`."""
        self.scribe.note(holding)

    def failed(self, holding: Holding, status: Item) -> None:
        """See `leases.holding.Desk`."""
        self._spawn(self._park_failed(holding, status))

    async def _park_failed(self, holding: Holding, status: Item) -> None:
        async with self.lock(holding.connection):
            if holding.phase is not Phase.HELD or self.get(holding.connection) is not holding:
                return
            remains = await self._close(holding, Parting.FAILED)
            if remains is not None:
                await self._write_last(writes.fail(holding.row, status, remains.cursor), holding.row)

    # Letting go

    async def release(self, connection: str) -> bool:
        """Give a connection back, after what was accepted is flushed. True: anyone may claim it now."""
        async with self.lock(connection):
            holding = self.get(connection)
            if holding is None:
                return False
            if holding.phase is Phase.STANDBY:
                self._dismiss(holding, "this worker stops")
                return False
            remains = await holding.settle(Parting.RELEASED)
            if remains is None:
                return False
            if holding.runner.exclusive:
                await holding.runner.close()
            handoff = remains.handoff if holding.invited else None
            now = int(self._clock.wall())
            write = writes.release(connection, self.session.id, holding.epoch, remains.cursor, handoff, now)
            result = await self.insist.write(write)
            if isinstance(result, Refused):
                await holding.runner.close()
                self.forget(holding)
                await self._act(connection, _row(result.image))
                return False
            self.forget(holding)
            self.close_later(holding)
            self._observer.saw(events.Released(connection, holding.epoch))
            return True

    async def _end(self, row: ConnectionRow, holding: Holding | None) -> None:
        cursor = None
        if holding is not None and holding.phase is Phase.STANDBY:
            self._dismiss(holding, "not wanted")
        elif holding is not None:
            paused = row.desired is Desired.PAUSED
            remains = await self._close(holding, Parting.PAUSED if paused else Parting.STOPPED)
            if remains is None:
                return
            cursor = remains.cursor
        await self._finalize(row, cursor)

    async def _close(self, holding: Holding, parting: Parting) -> Remains | None:
        """Flush, then close the socket: the observed state may say closed only once it is. None: the lease was lost."""
        remains = await holding.settle(parting)
        if remains is not None:
            await holding.runner.close()
            self.forget(holding)
        return remains

    async def _finalize(self, row: ConnectionRow, cursor: str | None) -> None:
        ttl = int(self._clock.wall()) + writes.DEAD_ROW_SECONDS
        await self._write_last(writes.finalize(row, self._host.parked(row), cursor, ttl), row)

    async def _write_last(self, write: Write, row: ConnectionRow) -> None:
        """Write what ends an ownership; if the row has changed meanwhile, act on what it says now."""
        result = await self.insist.write(write)
        if isinstance(result, Refused):
            await self._act(row.connection, _row(result.image))
        else:
            self._observer.saw(events.Finalized(row.connection, write.name))

    def forget(self, holding: Holding) -> None:
        """The holding is over: its last write is known to be applied, or about to be made without a runner."""
        holding.left()
        if self._all.get(holding.connection) is holding:
            del self._all[holding.connection]

    def abort(self, holding: Holding, reason: str) -> None:
        """The lease is lost: emit nothing more, from now."""
        holding.abort()
        if self._all.get(holding.connection) is holding:
            del self._all[holding.connection]
        self._observer.saw(events.LeaseLost(holding.connection, holding.epoch, reason))

    def abort_all(self) -> None:
        """The session is lost, and with it every lease."""
        for holding in list(self._all.values()):
            holding.abort()
        self._all.clear()

    def close_later(self, holding: Holding) -> None:
        """Close the socket of a connection that another has by now, without waiting for it."""
        task = asyncio.create_task(holding.runner.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        """Wait until every socket that was to be closed is closed; the runner bounds the time."""
        while self._closing:
            await asyncio.wait(self._closing)

    async def hint(self, connections: Sequence[str]) -> None:
        """Ask whoever has room to look. A hint that cannot be sent is not repeated: the sweep finds the row."""
        try:
            await self._hints.send(connections)
        except Unknown as unknown:
            self._observer.saw(events.StoreFailed("hint", str(unknown)))

    # Standing by

    async def _stand_by(self, row: ConnectionRow, offer: Offer, holding: Holding | None) -> None:
        full = len(self) >= self.session.row.capacity
        if self.session.draining.is_set() or (holding is None and full):
            if holding is not None:
                self._dismiss(holding, "this worker stops")
            await self.insist.write(writes.decline(row, offer))
            return
        holding = holding or self._hold(row)
        holding.offer = offer
        holding.named_at = self._clock.now()
        self._spawn(self._become_ready(holding, row, offer))

    async def _become_ready(self, holding: Holding, row: ConnectionRow, offer: Offer) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await holding.runner.ready.wait()
        except TimeoutError:
            async with self.lock(holding.connection):
                if holding.offer is offer:
                    self._dismiss(holding, "not ready in time")
            return
        if holding.phase is not Phase.STANDBY or holding.offer is not offer:
            return
        holding.answered = True
        result = await self.insist.write(writes.ready(row, offer))
        if isinstance(result, Refused):
            await self.act(holding.connection, _row(result.image))

    def _dismiss(self, holding: Holding, reason: str) -> None:
        if holding.phase is Phase.STANDBY and self._all.get(holding.connection) is holding:
            del self._all[holding.connection]
            holding.abort()
            self._observer.saw(events.StandbyEnded(holding.connection, reason))


def _row(image: Item | None) -> ConnectionRow | None:
    return None if image is None else ConnectionRow.from_item(image)
