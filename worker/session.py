"""One WebSocket that is used for a connection: opening steps, pulse, application pings, adapter."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from connections.spec import ConnectionSpec, WaitFor
from telemetry.logs import Field
from worker.adapters import Acknowledgement, Adapter, Reply
from worker.attempt import Attempt, Opening
from worker.dial import Dialer
from worker.keepalive import Pulse, Sweeper, Verdict
from worker.logs import fault, logger
from worker.outbox import Outbox, Overflow
from worker.pointer import value_at
from worker.redaction import Redactor
from worker.retry import AttemptFailed, Failure, Kind
from worker.upstream import Intake, Upstream

CLOSE_SECONDS = 3.0
"""How long a peer has to answer our close frame; then the socket is aborted."""

DRY_SECONDS = 1.0
"""How long a settling connection goes on reading what has arrived; a flood has no end."""

EASE_SECONDS = 10.0
"""So long a full buffer may keep a WebSocket from being read: half of what servers commonly wait for a pong."""

EASED_LOOK_SECONDS = 0.01
"""How often a settling connection looks whether it may read again."""

VISIT_SECONDS = 60.0
"""How often a WebSocket is looked at, at least."""

GOING_AWAY = 1001
ABNORMAL = 1006

log = logger()


class Owner(Protocol):
    """Whoever a session belongs to. Called on the loop."""

    connection: str

    def accept(self, session: "Session", messages: Sequence[str | bytes]) -> None:
        """Messages came."""
        ...

    def may_acknowledge(self) -> bool:
        """Whether the upstream may be told that something was taken over."""
        ...

    def opened(self, session: "Session") -> None:
        """The handshake succeeded; messages follow."""
        ...

    def ended(self, session: "Session", failure: Failure) -> None:
        """An opened WebSocket has ended."""
        ...

    def visited(self, session: "Session", now: float) -> None:
        """Some seconds have passed, and the WebSocket is still open."""
        ...


class Session:
    """One WebSocket, from the attempt to its end: a listener of its socket, and a member of the sweeper."""

    __slots__ = (
        "_adapter",
        "_app_ping",
        "_app_ping_seconds",
        "_attempt",
        "_awaited",
        "_easing",
        "_ended_at",
        "_openings",
        "_owner",
        "_pulse",
        "_reached",
        "_redactor",
        "_settled",
        "_socket",
        "_timer",
        "ended_with",
        "generation",
        "message_at",
        "messages",
        "opened_at",
        "over",
    )

    def __init__(
        self, owner: Owner, spec: ConnectionSpec, generation: int, attempt: Attempt, adapter: Adapter | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.generation = generation
        """Of the request that it was opened for."""
        self.opened_at: float | None = None
        """When the handshake succeeded, on the loop's clock."""
        self.message_at = loop.time()
        """When the last message came, on the loop's clock."""
        self.messages = 0
        self.over: asyncio.Future[None] = loop.create_future()
        """Done once the socket is closed."""
        self.ended_with: Failure | None = None
        self._owner = owner
        self._adapter = adapter
        self._attempt: Attempt | None = attempt
        self._openings: Iterator[Opening] = iter(attempt.openings)
        self._awaited: Opening | None = None
        self._reached: asyncio.Future[Failure | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._app_ping = attempt.app_ping
        self._app_ping_seconds = spec.app_ping.interval_seconds if spec.app_ping else 0.0
        self._pulse = Pulse(
            interval=spec.ws_ping.interval_seconds if spec.ws_ping else float("inf"),
            timeout=spec.ws_ping.timeout_seconds if spec.ws_ping else float("inf"),
            stale_after=spec.stale_after_seconds,
        )
        self._redactor = Redactor(attempt)
        self._settled = False
        self._easing: asyncio.Task[None] | None = None
        """Nothing is read while it runs."""
        self._ended_at: float | None = None
        self._socket: Upstream | None = None

    async def open(self, dialer: Dialer, intake: Intake) -> None:
        """Dial, and shake hands; the caller bounds the time. Raises `AttemptFailed`."""
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("a session is opened once")
        self._attempt = None
        self._reached = asyncio.get_running_loop().create_future()

        def socket() -> Upstream:
            self._socket = Upstream(attempt.handshake, self, intake)
            return self._socket

        try:
            await dialer.dial(attempt.handshake.url, socket)
        except BaseException:
            # The handshake may have succeeded all the same, and messages may have come.
            if self._socket is not None:
                self._socket.forsake(Failure(kind=Kind.LOCAL, code=ABNORMAL, detail="given up"))
            raise
        failure = await self._reached
        if failure is not None:
            raise AttemptFailed(failure)

    async def subscribe(self, sweeper: Sweeper) -> None:
        """Wait until the opening steps are done. Raises `AttemptFailed`."""
        if self._reached is None:
            raise RuntimeError("a session is opened before it subscribes")
        if self._awaited is not None:
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached
        self._reached = None
        if self.ended_with is not None:
            raise AttemptFailed(self.ended_with)
        sweeper.watch(self, min(self._pulse.interval, self._pulse.stale_after or VISIT_SECONDS, VISIT_SECONDS))
        if self._app_ping is not None:
            self._timer = asyncio.get_running_loop().call_later(self._app_ping_seconds, self._ping)

    @property
    def usable(self) -> bool:
        """Whether messages may still come."""
        return self._socket is not None and self._socket.is_open

    @property
    def ended_at(self) -> float | None:
        """When it became clear that no message will follow, on the loop's clock."""
        return self._socket.ended_at if self._socket is not None else self._ended_at

    async def pause(self) -> None:
        """Read what has arrived, for DRY_SECONDS at most, and then nothing for now.

        Whoever takes over has listened since before, but not since before everything that waits here to be read.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + DRY_SECONDS
        while self._socket is not None and self._socket.has_unread and loop.time() < end:  # noqa: ASYNC110 - a loop pass is a read
            await asyncio.sleep(EASED_LOOK_SECONDS if self._easing else 0)
        self._settled = True
        self._stop_easing()
        if self._socket is not None:
            self._socket.pause()

    def resume(self) -> None:
        """Read on."""
        self._settled = False
        if self._socket is not None and self._easing is None:
            self._socket.resume()

    def ease(self, outbox: Outbox) -> None:
        """The outbox is full: read nothing until it has room again. If that takes EASE_SECONDS, close.

        It cannot be for long, since pings arrive in line, behind what is not read.
        """
        if self._easing is None and self._socket is not None and self.usable:
            self._socket.pause()
            self._easing = asyncio.get_running_loop().create_task(self._ease(outbox))

    async def _ease(self, outbox: Outbox) -> None:
        try:
            await outbox.until_room(EASE_SECONDS)
        except Overflow as overflow:
            self.close(Failure(kind=Kind.SINK_STALLED, code=GOING_AWAY, detail=str(overflow)))
        self._easing = None
        if self._socket is not None:
            self._socket.resume()

    def _stop_easing(self) -> None:
        if self._easing is not None:
            self._easing.cancel()
            self._easing = None

    def close(self, failure: Failure) -> None:
        """Say good-bye with `failure.code`, then hang up, in bounded time. Messages that still come are dropped."""
        if self._socket is not None:
            self._socket.close(failure, within=CLOSE_SECONDS)

    def abort(self, failure: Failure) -> None:
        """Drop the socket, now."""
        if self._socket is not None:
            self._socket.abort(failure)

    # What the socket tells

    def opened(self) -> None:
        """See `Listener`."""
        self.opened_at = self.message_at = asyncio.get_running_loop().time()
        self._owner.opened(self)
        self._reach(None)
        self._go_on()

    def received(self, messages: Sequence[str | bytes]) -> None:
        """See `Listener`."""
        self.messages += len(messages)
        self.message_at = self._socket.heard_at  # type: ignore[union-attr]
        if self._awaited is None and self._adapter is None:
            self._owner.accept(self, messages)
            return
        for data in messages:
            if not self.usable:
                return
            if self._awaited is not None:
                self._check(self._awaited, data)
            self._owner.accept(self, (data,))
            if self._adapter is not None:
                self._reply(self._adapter, data)

    def ended(self, failure: Failure) -> None:
        """See `Listener`."""
        self.ended_with = failure = replace(failure, detail=self._redactor.redact(failure.detail))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_easing()
        self._awaited = None
        if self.opened_at is not None:
            self._owner.ended(self, failure)
        self._reach(failure)
        if self._socket is not None:
            # The sweeper keeps the session until its next visit, and need not keep the parser and its buffers as well.
            self._ended_at, self._socket = self._socket.ended_at, None
        if not self.over.done():
            self.over.set_result(None)

    def _reach(self, failure: Failure | None) -> None:
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(failure)

    # Opening steps

    def _go_on(self) -> None:
        """Do the opening steps up to the next one that has to wait."""
        self._awaited = None
        for opening in self._openings:
            if opening.wait_for is not None:
                self._awaited = opening
                timeout = opening.wait_for.timeout_seconds
                self._timer = asyncio.get_running_loop().call_later(timeout, self._not_answered, timeout)
                return
            self._say(opening)
        self._reach(None)

    def _check(self, awaited: Opening, data: str | bytes) -> None:
        if awaited.wait_for is not None and _matches(awaited.wait_for, data):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._say(awaited)
            self._go_on()

    def _say(self, opening: Opening) -> None:
        if opening.data is not None and self._socket is not None:
            self._socket.send(opening.data)

    def _not_answered(self, timeout: float) -> None:
        self._timer = None
        detail = f"an opening step waited {timeout:g} s for an answer"
        self.close(Failure(kind=Kind.WAIT_FOR, code=GOING_AWAY, detail=detail))

    # Keeping it

    def _ping(self) -> None:
        if self._socket is not None and self._app_ping is not None:
            self._socket.send(self._app_ping)
            self._timer = asyncio.get_running_loop().call_later(self._app_ping_seconds, self._ping)

    def _reply(self, adapter: Adapter, data: str | bytes) -> None:
        if self._socket is None:
            return
        for reply in _ask(adapter, data, self):
            if not isinstance(reply, Acknowledgement) or self._owner.may_acknowledge():
                self._socket.send(reply.data)

    def look(self, now: float, *, sound: bool) -> float | None:
        """See `Swept`."""
        if self._socket is None or not self.usable:
            return None
        self._owner.visited(self, now)
        if self._settled:
            # Nothing is read, so nothing can be concluded.
            return now + VISIT_SECONDS
        sound = sound and self._easing is None
        verdict, again = self._pulse.look(now, self._socket.heard_at, self.message_at, sound=sound)
        if verdict is Verdict.PING:
            self._socket.ping()
        elif verdict is Verdict.SILENT:
            self.abort(Failure(kind=Kind.PING_TIMEOUT, code=ABNORMAL, detail="nothing was heard after a ping"))
            return None
        elif verdict is Verdict.STALE:
            self.close(Failure(kind=Kind.STALE, code=GOING_AWAY, detail="no message for too long"))
            return None
        return min(again, now + VISIT_SECONDS)

    def broke(self, error: Exception) -> None:
        """See `Swept`."""
        log.error(
            "The keepalive of a WebSocket broke; it is dropped, and opened anew",
            extra={Field.CONNECTION: self._owner.connection, **fault(error)},
        )
        self.abort(Failure(kind=Kind.FAULT, code=ABNORMAL, detail=type(error).__name__))


def _ask(adapter: Adapter, data: str | bytes, session: Session) -> Iterable[Reply]:
    """What an adapter answers. It is the user's code: whatever it raises ends its own WebSocket and nothing else."""
    try:
        return tuple(adapter.received(data))
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("an adapter failed", extra={Field.REASON: type(error).__name__})
        session.close(Failure(kind=Kind.ADAPTER, code=GOING_AWAY, detail=type(error).__name__))
        return ()


def _matches(wanted: WaitFor, data: str | bytes) -> bool:
    if wanted.contains is not None:
        return wanted.contains in data if isinstance(data, str) else wanted.contains.encode() in data
    try:
        found = value_at(data, wanted.pointer or "")
    except LookupError:
        return False
    return wanted.equals is None or (found == wanted.equals and type(found) is type(wanted.equals))
