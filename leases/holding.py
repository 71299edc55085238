"""One connection in this process: its row as last seen, its runner, and the permission to emit."""

import asyncio
from enum import Enum, auto
from typing import Protocol

from leases.decisions import Held, StandingBy
from leases.ports import Clock, Parting, Remains, Runner
from leases.rows import ConnectionRow, Item, Offer


class Gate(Protocol):
    """What a holding asks of its session."""

    def may_emit(self) -> bool:
        """Whether a side effect may start now."""
        ...

    async def until_emit(self) -> None:
        """Wait until it is worth asking again."""
        ...


class Desk(Protocol):
    """Who carries out what a runner asks for through its grant."""

    def note(self, holding: "Holding") -> None:
        """Something of the holding waits to be stored."""
        ...

    def failed(self, holding: "Holding", status: Item) -> None:
        """The runner cannot run the connection."""
        ...


class Phase(Enum):
    """How far a holding may act."""

    STANDBY = auto()
    HELD = auto()
    SETTLED = auto()
    """Flushed, and the write that ends the epoch is on its way: nothing more is emitted until its outcome is known."""
    GONE = auto()


class Holding:
    """A connection that this member holds or stands by for. It is the runner's `Grant`."""

    def __init__(self, row: ConnectionRow, runner: Runner, *, gate: Gate, desk: Desk, clock: Clock) -> None:
        self.row = row
        self.runner = runner
        self.phase = Phase.STANDBY
        self.offer: Offer | None = row.offer
        """As a standby: the offer that it answers. As an owner: the offer that it made."""
        self.answer: asyncio.Future[bool] | None = None
        """As an owner with an offer outstanding: resolves to whether the standby is ready."""
        self.answered = False
        """As a standby: whether it has written, or begun to write, that it is ready."""
        self._leaving = False
        """Whether it is being let go, or was."""
        self.invited = False
        """As an owner: whether another session may be standing by."""
        self.named_at = clock.now()
        """As a standby: when the row last named it."""
        self.cursor: str | None = None
        self.status: Item | None = None
        self.strikes: int | None = None
        self.begun_at = clock.now()
        """When it became, or began to stand by for becoming, the owner."""
        self._not_before = float("-inf")
        self._held = asyncio.Event()
        self._gate = gate
        self._desk = desk
        self._clock = clock

    @property
    def connection(self) -> str:
        """The connection's id."""
        return self.row.connection

    @property
    def epoch(self) -> int:
        """The fencing token of everything that is emitted under this grant."""
        return self.row.epoch

    @property
    def knows(self) -> Held | StandingBy:
        """What this member believes, for a decision about a row."""
        if self.phase is Phase.STANDBY:
            offer = self.offer
            return StandingBy(offer.for_epoch, offer.nonce) if offer else StandingBy(self.row.epoch, "")
        return Held(self.row.epoch, self.row.generation)

    def begin(self, row: ConnectionRow, not_before: float) -> None:
        """Become, or stay, the owner as `row` says; emit no earlier than `not_before` on this machine's clock."""
        handoff = row.handoff if self.phase is Phase.STANDBY else None
        newer = row.generation > self.row.generation
        self.row = row
        self.phase = Phase.HELD
        self.offer = None
        self._leaving = False
        self._not_before = not_before
        self._held.set()
        self.runner.begin(self, handoff)
        if newer:
            self.runner.revise(row)

    async def settle(self, parting: Parting) -> Remains | None:
        """Flush what was accepted, then emit nothing more in this epoch. None: the lease was lost meanwhile.

        Not before this holding might have emitted itself: a standby that it is transferred to emits at once.
        """
        self._leaving = True
        remains = await self.runner.settle(parting)
        await asyncio.sleep(max(0.0, self._not_before - self._clock.now()))
        if self.phase is not Phase.HELD:
            return None
        self.phase = Phase.SETTLED
        self._held.clear()
        return remains

    def invite(self) -> None:
        """Another session is about to be asked to stand by."""
        self.invited = True
        self.runner.invite()

    def resume(self) -> None:
        """The session is not on hold any more. What is being let go opens no socket for that."""
        if not self._leaving:
            self.runner.resume()

    def abort(self) -> None:
        """Emit nothing more, from now."""
        self.left()
        self.runner.abort()

    def left(self) -> None:
        """Another has it, or nobody: the write that let it go is known to be applied."""
        self.phase = Phase.GONE
        self._held.clear()
        self._answered(False)

    def heard(self, row: ConnectionRow) -> None:
        """A row was read; see whether it answers the outstanding offer."""
        if self.offer is None or row.epoch != self.offer.for_epoch:
            return
        if row.offer is None or row.offer.nonce != self.offer.nonce:
            self._answered(False)
        elif row.offer.ready:
            self._answered(True)

    def _answered(self, ready: bool) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(ready)

    def may_emit(self) -> bool:
        """See `leases.ports.Grant`."""
        return self.phase is Phase.HELD and self._clock.now() >= self._not_before and self._gate.may_emit()

    async def until_emit(self) -> None:
        """See `leases.ports.Grant`."""
        await self._held.wait()
        await self._gate.until_emit()
        early = self._not_before - self._clock.now()
        if early > 0:
            await asyncio.sleep(early)

    def checkpoint(self, cursor: str) -> None:
        """See `leases.ports.Grant`."""
        self.cursor = cursor
        self._desk.note(self)

    def report(self, status: Item) -> None:
        """See `leases.ports.Grant`."""
        self.status = status
        self._desk.note(self)

    def proven(self) -> None:
        """See `leases.ports.Grant`."""
        if self.row.strikes:
            self.strikes = 0
            self._desk.note(self)

    def fail(self, status: Item) -> None:
        """See `leases.ports.Grant`."""
        self._desk.failed(self, status)
