"""One connection in this process: opens its WebSocket, keeps it, replaces it, and hands what comes to the outbox.

The life of a connection is one task that is thrown away and started anew whenever its circumstances change (a hold, a
newer request, a hand-over that failed); everything that must survive that is in the runner.

    load the request ─▶ wait (back-off, group, rate) ─▶ attempt ─▶ serve ─▶ ended: decide ─┐
                          ▲                                │ replace: attempt beside it    │
                          └────────────────────────────────┴───────────────────────────────┘
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from connections.refusal import Refusal
from connections.rows import read_spec
from connections.spec import ConnectionSpec
from connections.status import Close, State, Status, timestamp
from leases.conditions import Unknown
from leases.ports import Grant, Parting, Remains
from leases.rows import ConnectionRow, Handoff, spec_key
from telemetry.logs import Event, Field
from telemetry.metrics import CONNECT_FAILURES, CONNECTIONS_FAILED, CONNECTS, RECONNECTS
from worker.adapters import Adapter
from worker.admission import Group
from worker.attempt import Attempt, group_name, render
from worker.logs import Recurring, fault, logger
from worker.outbox import Discarded, Overflow
from worker.pointer import cursor_of
from worker.records import Control
from worker.retry import AttemptFailed, Failure, GiveUp, History, Kind, Policy, Retry, retry_after_seconds
from worker.rotation import PENDING_BYTES, Echo, Overlap
from worker.secrets import SecretUnavailable
from worker.session import ABNORMAL, GOING_AWAY, Session

if TYPE_CHECKING:
    from worker.engine import Engine

PROVEN_SECONDS = 60.0
"""Open for this long, a connection is not what kills workers."""

REPORT_SECONDS = 900.0
"""`lastMessageAt` is stored this often, if nothing else changes."""

LIFETIME_SPREAD = 0.25
"""WebSockets that were opened together are replaced over this share of their life, at its end."""

CURSOR_MESSAGES = 16
"""In so many of the last messages a cursor is looked for when a WebSocket is reopened."""

QUIET_SECONDS = 300.0
"""Attempts that go on failing for the same reason are logged this often; all of them are counted."""

_SAID = {Event.CONNECT_FAILED: "No WebSocket opened", Event.CONNECTION_CLOSED: "WebSocket ended"}

log = logger()


class GivenUp(Exception):
    """The connection cannot run; the message is the reason that the API shows."""


class Runner:
    """See `leases.ports.Runner`."""

    __slots__ = (
        "_cursor",
        "_echo",
        "_engine",
        "_failed",
        "_failed_at",
        "_failures",
        "_gap",
        "_generation",
        "_grant",
        "_group",
        "_history",
        "_leaving",
        "_outbox",
        "_overlap",
        "_policy",
        "_proven",
        "_recent",
        "_reported_at",
        "_retry",
        "_rotate_at",
        "_row",
        "_session",
        "_spec",
        "_status",
        "_stopped",
        "_task",
        "_told",
        "_wall",
        "connection",
        "exclusive",
        "ready",
    )

    def __init__(self, row: ConnectionRow, engine: "Engine") -> None:
        self.ready = asyncio.Event()
        self.exclusive = False
        self.connection = row.connection
        self._engine = engine
        self._row = row
        self._outbox = engine.output.outbox(row.connection)
        self._wall = engine.clock.wall
        self._grant: Grant | None = None
        self._spec: ConnectionSpec | None = None
        self._generation = 0
        self._policy = Policy()
        self._group: Group | None = None
        self._history = History()
        self._retry: Retry | None = None
        self._failed_at = 0.0
        self._failures: Recurring | None = None
        """The attempts that failed since a WebSocket was last open."""
        self._session: Session | None = None
        self._leaving: Session | None = None
        """The session that was closed last: its socket may still be open."""
        self._overlap: Overlap | None = None
        self._echo: Echo | None = None
        self._told: Session | None = None
        """The session whose `opened` was the last to be recorded, and whose `closed` is yet to come."""
        self._gap: tuple[str | None, str] | None = None
        """Since when nothing was received, and why."""
        self._cursor = row.cursor
        self._recent: deque[str | bytes] | None = None
        self._rotate_at = float("inf")
        known = Status.from_item(row.status) if row.status else None
        self._status = Status(
            state=State.CONNECTING,
            since=timestamp(self._wall()),
            last_message_at=known.last_message_at if known else None,
            last_close=known.last_close if known else None,
        )
        self._reported_at = 0.0
        self._proven = False
        self._failed = False
        self._task: asyncio.Task[None] | None = None
        self._stopped: asyncio.Task[None] | None = None
        """The task before: it may still be putting its things away."""
        self._start()

    # What the member asks for

    def begin(self, grant: Grant, handoff: Handoff | None) -> None:
        """See `leases.ports.Runner`."""
        first = self._grant is None
        self._grant = grant
        if first and handoff is None and self._told is None:
            self._gap = self._gap_since_last_owner()
        self._outbox.begin(grant, handoff)
        self._proven = False
        self._report()
        if self._failed:
            grant.fail(self._status.to_item())
            return
        if self._session is not None:
            self._session.resume()
        self._start()

    def revise(self, row: ConnectionRow) -> None:
        """See `leases.ports.Runner`."""
        self._row = row
        self._failed = False
        self._start()

    def hold(self) -> None:
        """See `leases.ports.Runner`."""
        if self.exclusive:
            self._stop()
            self._drop(Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail="on hold"))

    def resume(self) -> None:
        """See `leases.ports.Runner`."""
        if self._task is None:
            self._start()

    def invite(self) -> None:
        """See `leases.ports.Runner`."""
        self._outbox.invite()

    async def settle(self, parting: Parting) -> Remains:
        """See `leases.ports.Runner`."""
        self._stop()
        if self._session is not None:
            await self._session.pause()
        if parting is not Parting.HANDED_OVER:
            # Before the flush, which takes as long as the sink likes: nobody reads this socket any more.
            parted = Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail=parting.value)
            self._drop(parted)
            if self._stopped is not None:
                # An attempt may succeed until it learns that it is not wanted any more.
                await asyncio.wait((self._stopped,))
                self._drop(parted)
        try:
            return await self._outbox.flush()
        except Discarded:
            return Remains(cursor=None, handoff=Handoff(digests=b"", last_seq=0))

    async def close(self) -> None:
        """See `leases.ports.Runner`."""
        self._stop()
        self._drop(Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail="going away"))
        if self._leaving is not None:
            await asyncio.wait((self._leaving.over,))
        if self._stopped is not None:
            await asyncio.wait((self._stopped,))
        self._outbox.discard()

    def abort(self) -> None:
        """See `leases.ports.Runner`."""
        self._stop()
        self._outbox.discard()
        self._drop(Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail="the lease is lost"))
        if self._leaving is not None:
            self._leaving.abort(Failure(kind=Kind.LOCAL, code=ABNORMAL, detail="the lease is lost"))

    # What a session tells

    def accept(self, session: Session, messages: Sequence[str | bytes]) -> None:
        """See `Owner`."""
        received_at = self._wall()
        if self._overlap is not None:
            if session is not self._session:
                self._overlap.pending(messages, received_at)
                return
            self._overlap.delivered(messages)
        elif self._echo is not None:
            messages = self._echo.without(messages, asyncio.get_running_loop().time())
            if messages:
                self._echo = None
        self._deliver(session, messages, received_at)

    def may_acknowledge(self) -> bool:
        """See `Owner`."""
        return self._grant is not None and self._grant.may_emit()

    def opened(self, session: Session) -> None:
        """See `Owner`."""
        self._engine.meter.count(CONNECTS)
        self._engine.collector.opened()
        # Beside another one it says nothing until it takes over.
        if self._overlap is None:
            self._tell_opened(session)

    def ended(self, session: Session, failure: Failure) -> None:
        """See `Owner`."""
        if session is self._leaving:
            self._leaving = None
        if self._overlap is not None and session is not self._session:
            self._overlap.forget_pending()
        self._tell_closed(session, failure)

    def visited(self, session: Session, now: float) -> None:
        """See `Owner`."""
        if session is not self._session or self._grant is None:
            return
        if not self._proven and session.opened_at is not None and now - session.opened_at >= PROVEN_SECONDS:
            self._proven = True
            self._grant.proven()
        last = self._outbox.last_message_at
        if last is None or now - self._reported_at < REPORT_SECONDS:
            return
        if timestamp(last) != self._status.last_message_at:
            self._report()

    def _deliver(self, session: Session, messages: Sequence[str | bytes], received_at: float) -> None:
        try:
            if not self._outbox.accept(messages, received_at):
                session.ease(self._outbox)
        except Overflow as overflow:
            session.close(Failure(kind=Kind.SINK_STALLED, code=GOING_AWAY, detail=str(overflow)))
            messages = messages[: overflow.accepted]
        if self._recent is not None:
            self._recent.extend(messages)

    # The life of the connection

    def _start(self) -> None:
        self._stop()
        if not self._failed:
            self._task = asyncio.get_running_loop().create_task(self._run(self._stopped))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._stopped, self._task = self._task, None

    def _drop(self, failure: Failure) -> None:
        # Without one in use, there may be one that was opened just now.
        dropped, self._session = self._session or self._told, None
        if dropped is not None:
            self._leaving = dropped
            dropped.close(failure)
            self._tell_closed(dropped, failure)

    async def _run(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        try:
            while True:
                try:
                    await self._live()
                except GivenUp:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever broke: the next attempt may not get there
                    await self._mend(error)
        except GivenUp as reason:
            self._fail(str(reason))

    async def _live(self) -> None:
        """Open WebSockets and keep them, one after the other. Raises `GivenUp`."""
        spec = await self._load()
        while True:
            session = self._session
            if session is None:
                if self._leaving is not None and self.exclusive:
                    await asyncio.wait((self._leaving.over,))
                self._take(await self._open(spec), spec)
            elif session.over.done():
                await self._recover(session)
            else:
                await self._serve(session, spec)

    async def _mend(self, error: Exception) -> None:
        """Our own code broke: wait, to go on as if an attempt had failed. An open WebSocket stays. Raises `GivenUp`."""
        log.error("A connection broke; trying again", extra={Field.CONNECTION: self.connection, **fault(error)})
        loop = asyncio.get_running_loop()
        failure = Failure(kind=Kind.FAULT, detail=type(error).__name__)
        self._engine.meter.count(CONNECT_FAILURES, label=failure.metric)
        wait = random.random() * self._decide(failure, loop.time()).window
        if self._session is None:
            self._show(State.BACKING_OFF, next_retry_at=timestamp(self._wall() + wait))
        await asyncio.sleep(wait)
        self._retry = None

    async def _load(self) -> ConnectionSpec:
        """Read the request as the row says, unless that was done already."""
        if self._spec is not None and self._generation == self._row.generation:
            return self._spec
        generation = self._row.generation
        while True:
            try:
                item = await self._engine.store.get(spec_key(self.connection, generation))
                break
            except Unknown:
                await asyncio.sleep(random.uniform(0.5, 2))
        if item is None:
            raise GivenUp("no_request")
        try:
            spec = read_spec(item)
        except Refusal as refusal:
            raise GivenUp(f"request_refused: {refusal.field or refusal.code}") from None
        self._spec, self._generation = spec, generation
        self.exclusive = spec.handover == "break_before_make"
        self._history, self._retry = History(), None
        self._policy = Policy(
            cap_seconds=spec.retry.cap_seconds,
            max_attempts=spec.retry.max_attempts,
            fatal_close_codes=frozenset(spec.retry.fatal_close_codes),
            fatal_http_statuses=frozenset(spec.retry.fatal_http_statuses),
        )
        self._group = None
        self._recent = deque(maxlen=CURSOR_MESSAGES) if spec.resume is not None else None
        self._outbox.cursor_of = cursor_of(spec.resume.pointer) if spec.resume is not None else None
        return spec

    async def _serve(self, session: Session, spec: ConnectionSpec) -> None:
        """Keep a WebSocket until it ends or its successor has taken over."""
        outdated = session.generation != self._generation
        until = 0.0 if outdated else self._rotate_at - asyncio.get_running_loop().time()
        await asyncio.wait((session.over,), timeout=until if until != float("inf") else None)
        if not session.over.done():
            await self._replace(session, spec)

    async def _recover(self, session: Session) -> None:
        """A WebSocket has ended: decide what follows."""
        self._session = None
        self.ready.clear()
        self._engine.meter.count(RECONNECTS)
        self._judge(session)
        if self._outbox.full or (session.ended_with is not None and session.ended_with.kind is Kind.SINK_STALLED):
            await self._outbox.until_half_empty()

    def _judge(self, session: Session) -> None:
        """Learn from the end of a WebSocket that was in use. Raises `GivenUp`."""
        failure, opened_at, ended_at = session.ended_with, session.opened_at, session.ended_at
        if failure is None or opened_at is None or ended_at is None:
            return
        self._history.session_ended(lasted=ended_at - opened_at, messages=session.messages)
        self._decide(failure, ended_at)

    async def _open(self, spec: ConnectionSpec) -> Session:
        """Try until a WebSocket is open and subscribed. Raises `GivenUp`."""
        while True:
            share = random.random()
            await self._back_off(share)
            try:
                return await self._attempt(spec, share)
            except AttemptFailed as failed:
                failure = failed.failure
                self._engine.meter.count(CONNECT_FAILURES, label=failure.metric)
                now = asyncio.get_running_loop().time()
                self._failures = self._failures or Recurring(QUIET_SECONDS)
                if occurrences := self._failures.due(failure.reason, now):
                    self._log(Event.CONNECT_FAILED, failure, occurrences)
                self._decide(failure, now)

    async def _back_off(self, share: float) -> None:
        """Wait until the next attempt is due. A herd that grows meanwhile makes it later."""
        loop = asyncio.get_running_loop()
        while self._retry is not None and self._group is not None:
            now = loop.time()
            window = max(self._retry.window, self._group.window(now))
            due = max(self._failed_at + self._retry.floor + share * window, self._group.open_at(share, now))
            if due <= now:
                return
            self._show(State.BACKING_OFF, next_retry_at=timestamp(self._wall() + due - now))
            await asyncio.sleep(due - now)

    async def _attempt(self, spec: ConnectionSpec, share: float) -> Session:
        """Open one WebSocket and subscribe. Raises `AttemptFailed`."""
        engine = self._engine
        group = self._group = self._group or engine.admission.group(group_name(spec, engine.policy))
        adapter = self._adapter(spec)
        session: Session | None = None
        try:
            async with engine.admission.attempt(group, share), asyncio.timeout(engine.dialer.attempt_seconds):
                attempt = await self._prepare(spec, adapter)
                session = Session(self, spec, self._generation, attempt, adapter)
                await session.open(engine.dialer, engine.intake)
            group.let_in()
            await session.subscribe(engine.sweeper)
        except BaseException as error:
            if session is not None:
                session.abort(Failure(kind=Kind.LOCAL, code=ABNORMAL, detail="given up"))
            if isinstance(error, TimeoutError):
                raise AttemptFailed(Failure(kind=Kind.TIMEOUT, detail="no answer to the handshake in time")) from None
            raise
        return session

    async def _prepare(self, spec: ConnectionSpec, adapter: Adapter | None) -> Attempt:
        try:
            secrets = await self._engine.secrets.values(spec.secret_refs)
        except SecretUnavailable as error:
            raise AttemptFailed(Failure(kind=Kind.SECRET, detail=str(error))) from None
        attempt = render(spec, self._engine.policy, secrets, self._last_cursor())
        if adapter is None:
            return attempt
        try:
            return await adapter.prepare(attempt)
        except AttemptFailed:
            raise
        except Exception as error:  # noqa: BLE001 - the user's code: what it raises is an attempt that failed
            raise AttemptFailed(Failure(kind=Kind.ADAPTER, detail=type(error).__name__)) from None

    def _adapter(self, spec: ConnectionSpec) -> Adapter | None:
        if spec.adapter is None:
            return None
        factory = self._engine.adapters.get(spec.adapter)
        if factory is None:
            raise GivenUp(f"unknown_adapter: {spec.adapter}")
        return factory()

    def _take(self, session: Session, spec: ConnectionSpec) -> None:
        """A WebSocket is open and subscribed: from now on it is the connection's."""
        self._session = session
        self._retry = None
        self._failures = None
        now = asyncio.get_running_loop().time()
        if spec.max_lifetime_seconds is not None:
            life = spec.max_lifetime_seconds * random.uniform(1 - LIFETIME_SPREAD, 1)
            self._rotate_at = now + life - (0.0 if self.exclusive else _overlap_seconds(spec))
        self._show(State.OPEN, attempts=0)
        self.ready.set()

    async def _replace(self, old: Session, spec: ConnectionSpec) -> None:
        """Put a new WebSocket in the place of one that is too old, or that serves an older request."""
        if self.exclusive:
            self._drop(Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail="replaced"))
            return
        self._overlap = overlap = Overlap()
        new: Session | None = None
        try:
            new = await self._open(spec)
            if not old.over.done() and overlap.pending_bytes < PENDING_BYTES:
                await asyncio.wait(
                    (old.over, new.over), timeout=_overlap_seconds(spec), return_when=asyncio.FIRST_COMPLETED
                )
            if not new.over.done():
                self._cut(old, new, overlap, spec)
                return
        finally:
            self._overlap = None
            if new is not None and new is not self._session:
                new.abort(Failure(kind=Kind.LOCAL, code=ABNORMAL, detail="given up"))
        self._judge(new)

    def _cut(self, old: Session, new: Session, overlap: Overlap, spec: ConnectionSpec) -> None:
        """From one WebSocket to the next, at one moment."""
        replaced = Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail="replaced")
        self._leaving = old
        old.close(replaced)
        self._tell_closed(old, replaced)
        if old.ended_at is None or new.opened_at is None or old.ended_at >= new.opened_at:
            # Both were open at the seam: nothing was missed.
            self._gap = None
        self._overlap = None
        messages, self._echo = overlap.cut(asyncio.get_running_loop().time())
        self._take(new, spec)
        self._tell_opened(new)
        for data, received_at in messages:
            if not new.usable:
                break
            self._deliver(new, (data,), received_at)

    def _decide(self, failure: Failure, at: float) -> Retry:
        """What follows a failure, for this connection and for its group. Raises `GivenUp`."""
        decision = self._history.decide(failure, self._policy)
        close = self._status.last_close
        self._status = replace(
            self._status, attempts=self._status.attempts + 1, last_close=close, reason=_reason(failure)
        )
        if isinstance(decision, GiveUp):
            raise GivenUp(decision.reason if not failure.detail else f"{decision.reason}: {failure.detail}")
        self._retry, self._failed_at = decision, at
        if self._group is not None:
            now = asyncio.get_running_loop().time()
            self._group.dropped(now)
            if decision.rate_limited:
                self._group.rate_limited(now, retry_after_seconds(failure.retry_after, self._wall()))
            elif failure.code is None:
                self._group.let_in()
        return decision

    def _fail(self, reason: str) -> None:
        """Nothing more will be tried."""
        self._failed = True
        self._drop(Failure(kind=Kind.LOCAL, code=GOING_AWAY, detail=reason))
        self._engine.meter.count(CONNECTIONS_FAILED)
        self._show(State.FAILED, reason=reason)
        if self._grant is not None:
            self._grant.fail(self._status.to_item())

    # Cursors

    def _last_cursor(self) -> str | None:
        """That of the last message accepted: what is buffered is not lost, so there is no need to ask for it again."""
        find = self._outbox.cursor_of
        for message in reversed(self._recent or ()):
            cursor = find(message) if find is not None else None
            if cursor is not None:
                self._cursor = cursor
                break
        if self._recent is not None:
            self._recent.clear()
        return self._cursor

    # What is told

    def _tell_opened(self, session: Session) -> None:
        if self._gap is not None:
            since, reason = self._gap
            resumed = self._spec is not None and self._spec.resume is not None and self._cursor is not None
            until = timestamp(self._wall())
            self._outbox.control(Control.GAP, {"from": since, "to": until, "resumed": resumed, "reason": reason})
            self._gap = None
        self._outbox.control(Control.OPENED, {})
        self._told = session

    def _tell_closed(self, session: Session, failure: Failure) -> None:
        if session is not self._told:
            return
        self._told = None
        code = failure.code or ABNORMAL
        reason = failure.detail if failure.kind in (Kind.CLOSED, Kind.LOCAL) else failure.reason
        at = timestamp(self._wall())
        self._outbox.control(Control.CLOSED, {"code": code, "reason": reason})
        self._gap = (at, failure.reason)
        self._status = replace(self._status, last_close=Close(code=code, reason=reason, at=at))
        self._log(Event.CONNECTION_CLOSED, failure)

    def _gap_since_last_owner(self) -> tuple[str | None, str] | None:
        """Another worker had it before and left without a word: since when, as far as the row knows."""
        known = Status.from_item(self._row.status) if self._row.status else None
        if known is None or (known.state is not State.OPEN and known.last_message_at is None):
            return None
        return known.last_message_at or known.since, "owner_lost"

    def _show(
        self,
        state: State,
        *,
        attempts: int | None = None,
        next_retry_at: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Note the observed state, and have it stored if it changed. Beside an open WebSocket nothing changes."""
        status = self._status
        if self._overlap is not None and self._session is not None and self._session.usable:
            return
        changed = status.state is not state
        self._status = replace(
            status,
            state=state,
            since=timestamp(self._wall()) if changed else status.since,
            attempts=status.attempts if attempts is None else attempts,
            next_retry_at=next_retry_at,
            reason=None if state is State.OPEN else reason or status.reason,
        )
        if self._status != status:
            self._report()

    def _report(self) -> None:
        """Have the status stored, if this process may."""
        last = self._outbox.last_message_at
        if last is not None:
            self._status = replace(self._status, last_message_at=timestamp(last))
        if self._grant is not None:
            self._reported_at = asyncio.get_running_loop().time()
            self._grant.report(self._status.to_item())

    def _log(self, event: Event, failure: Failure, occurrences: int = 1) -> None:
        log.info(
            "%s (%s)",
            _SAID[event],
            _reason(failure),
            extra={
                Field.EVENT: event,
                Field.CONNECTION: self.connection,
                Field.REASON: failure.reason,
                Field.OCCURRENCES: occurrences,
            },
        )


def _overlap_seconds(spec: ConnectionSpec) -> float:
    """How long the old WebSocket stays beside its successor: for the shortest life, half of it at most.

    With more it would be replaced as soon as it is there, over and over.
    """
    if spec.max_lifetime_seconds is None:
        return spec.overlap_seconds
    return min(spec.overlap_seconds, spec.max_lifetime_seconds * (1 - LIFETIME_SPREAD) / 2)


def _reason(failure: Failure) -> str:
    return f"{failure.reason}: {failure.detail}" if failure.detail else failure.reason
