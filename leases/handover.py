"""Moving a connection to another session without losing or doubling a message.

1. The owner offers the connection: one conditional write, `next`, and a hint in the target's inbox.
2. The target connects, subscribes, buffers, and writes `next.ready`. It is a standby now: two sockets, one emitter.
3. The owner reads that the target is live, stops reading, flushes, and writes `transfer`: one write makes the target
   the owner, in a new epoch, and leaves the digests of the last messages. Until its outcome is known, nobody emits.
4. The target reads that it is the owner, drops from its buffer what those digests name, and emits the rest.

From step 2 on, both read the row twice a second, so that neither needs to be told.

There is no state in between that could wedge: before the transfer the owner owns, after it the target does, and either
one's death is settled like any other. A refused transfer ends in `regrant`: the owner goes on, in a new epoch.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from leases import events, writes
from leases.conditions import Refused, Unknown, Written
from leases.holding import Holding, Phase
from leases.holdings import Holdings
from leases.inboxes import Inboxes, Told
from leases.ports import Clock, Parting
from leases.rows import ConnectionRow, Offer, SessionRow, SessionState, session_key

OFFER_SECONDS = 15.0
"""How long an owner waits for a standby to become ready before it takes its offer back."""
SLOW_CALLS = 5
"""A standby needs so many calls one after the other, which may each take as long as the offer did: it has that time
beside OFFER_SECONDS, as much again at most."""
TELL_AGAIN_SECONDS = 5.0
"""A target that has not answered is told again after this long: the hint may be lost."""
CROWDED_SECONDS = 0.5
"""The same, where its inbox was full."""
GATHER_SECONDS = 0.02
"""Looks at one session that are asked for within this time are one."""
SETTLING_ATTEMPTS = 5
READ_AGAIN_SECONDS = 0.2


class Given(Enum):
    """What came of an attempt to hand a connection over."""

    OVER = auto()
    """This session need not think of it any more."""
    DECLINED = auto()
    """It is still held here: ask somebody else."""
    UNKNOWN = auto()
    """It is still held here, since the table does not answer: that says nothing against the target."""


class HandOver:
    """Gives connections of one session to others."""

    def __init__(
        self,
        holdings: Holdings,
        inboxes: Inboxes,
        clock: Clock,
        observer: events.Observer,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._holdings = holdings
        self._inboxes = inboxes
        self._clock = clock
        self._observer = observer
        self._spawn = spawn
        self._looks: dict[str, asyncio.Future[bool]] = {}
        """Looks at sessions that are about to begin."""

    async def give(self, connection: str, target: str) -> Given:
        """Hand a connection over to a session."""
        async with self._holdings.lock(connection):
            holding = self._owned(connection)
            if holding is None:
                return Given.OVER
            asked_at = self._clock.now()
            try:
                offer = await self._offer(holding, target)
            except Unknown:
                return Given.UNKNOWN
            if offer is None:
                return self._kept(connection)
            answer = holding.answer = asyncio.get_running_loop().create_future()
        slow = SLOW_CALLS * (self._clock.now() - asked_at)
        ready = await self._answer(answer, connection, target, OFFER_SECONDS + min(slow, OFFER_SECONDS))
        async with self._holdings.lock(connection):
            if holding.answer is answer:
                holding.answer = None
            if self._owned(connection) is not holding or holding.offer is not offer:
                return self._kept(connection)
            if not ready:
                await self._take_back(holding, offer, "the standby declined, or was not ready in time")
                return Given.DECLINED
            return await self._transfer(holding, offer)

    async def _answer(self, answer: asyncio.Future[bool], connection: str, target: str, seconds: float) -> bool:
        """Tell the target of its offer, and wait for what it answers. False: it will not, or not in time."""
        until = self._clock.now() + seconds
        while not answer.done() and (left := until - self._clock.now()) > 0:
            told = await self._inboxes.tell(target, connection)
            if told is Told.GONE:
                break
            pause = TELL_AGAIN_SECONDS if told is Told.YES else CROWDED_SECONDS
            await asyncio.wait((answer,), timeout=min(left, pause))
        return answer.done() and answer.result()

    def _owned(self, connection: str) -> Holding | None:
        holding = self._holdings.get(connection)
        return holding if holding is not None and holding.phase is Phase.HELD else None

    def _kept(self, connection: str) -> Given:
        return Given.OVER if self._owned(connection) is None else Given.DECLINED

    async def _offer(self, holding: Holding, target: str) -> Offer | None:
        """Raises `Unknown`."""
        nonce = self._holdings.new_id()
        holding.invite()
        result = await self._holdings.insist.write(writes.offer(holding.row, target, nonce), attempts=SETTLING_ATTEMPTS)
        row = None if result.image is None else ConnectionRow.from_item(result.image)
        if row is None or row.offer is None or row.offer.nonce != nonce:
            self._holdings.look_later(holding.connection)
            if row is not None and (row.owner, row.epoch) == (holding.row.owner, holding.epoch):
                holding.row = replace(holding.row, offer=row.offer)
            return None
        holding.row = replace(holding.row, offer=row.offer)
        holding.offer = row.offer
        self._observer.saw(events.Offered(holding.connection, target))
        return row.offer

    async def _take_back(self, holding: Holding, offer: Offer, reason: str) -> None:
        holding.offer = None
        self._observer.saw(events.OfferEnded(holding.connection, reason))
        try:
            result = await self._holdings.insist.write(writes.withdraw(holding.row, offer), attempts=SETTLING_ATTEMPTS)
        except Unknown:
            return
        if isinstance(result, Written):
            holding.row = replace(holding.row, offer=None)
        else:
            self._holdings.look_later(holding.connection)

    async def _transfer(self, holding: Holding, offer: Offer) -> Given:
        if not await self._live(offer.session):
            await self._take_back(holding, offer, "the target is not live")
            return Given.DECLINED
        stopped_at = self._clock.now()
        remains = await holding.settle(Parting.HANDED_OVER)
        if remains is None:
            return Given.OVER
        write = writes.transfer(holding.connection, str(holding.row.owner), offer, remains.cursor, remains.handoff)
        result = await self._holdings.insist.write(write)
        row = None if result.image is None else ConnectionRow.from_item(result.image)
        if row is not None and (row.owner, row.epoch) == (holding.row.owner, holding.epoch):
            return await self._regrant(holding)
        self._holdings.forget(holding)
        self._holdings.close_later(holding)
        silent = self._clock.now() - stopped_at
        self._observer.saw(events.Transferred(holding.connection, offer.for_epoch + 1, offer.session, silent))
        return Given.OVER

    async def _live(self, session: str) -> bool:
        """Whether a session is known to be live, by a look that begins after this call, and that others may share."""
        look = self._looks.get(session)
        if look is None:
            look = self._looks[session] = asyncio.get_running_loop().create_future()
            self._spawn(self._look(session, look))
        return await asyncio.shield(look)

    async def _look(self, session: str, look: asyncio.Future[bool]) -> None:
        """That a session cannot be read is no reason to give up its standbys at once."""
        await asyncio.sleep(GATHER_SECONDS)
        del self._looks[session]
        live = False
        for _ in range(SETTLING_ATTEMPTS):
            try:
                item = await self._holdings.store.get(session_key(session))
            except Unknown as unknown:
                self._observer.saw(events.StoreFailed("read of the target's session", str(unknown)))
                await asyncio.sleep(READ_AGAIN_SECONDS)
                continue
            live = item is not None and SessionRow.from_item(item).state is SessionState.LIVE
            break
        look.set_result(live)

    async def _regrant(self, holding: Holding) -> Given:
        """The transfer was refused: go on here, in a new epoch, which fences a transfer that is still on its way."""
        result = await self._holdings.regrant(holding.connection, holding.epoch)
        if isinstance(result, Refused):
            self._holdings.abort(holding, "regrant refused")
            return Given.OVER
        row = ConnectionRow.from_item(result.image)
        self._observer.saw(events.Regranted(holding.connection, row.epoch))
        holding.begin(row, self._clock.now())
        self._holdings.look_later(holding.connection)
        return Given.DECLINED
