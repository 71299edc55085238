"""What a connection request cannot say in JSON is said in Python, by an adapter.

A request names one (`"adapter": "engine.io"`); ADAPTERS lists what there is. To add your own, write a class with the
two methods of `Adapter`, and list it:

    class SlackSocketMode(Adapter):
        async def prepare(self, attempt: Attempt) -> Attempt:
            # Each connect needs a URL of its own, which a REST call returns.
            return attempt.at(await self._open_connection(attempt.handshake.headers["Authorization"]))

        def received(self, message: str | bytes) -> Iterable[Reply]:
            # Acknowledged is what was accepted, by the owner only: a standby must keep quiet.
            envelope = json.loads(message).get("envelope_id")
            return [Acknowledgement(json.dumps({"envelope_id": envelope}))] if envelope else ()

An adapter object serves one WebSocket, from before it is opened to its end, so it may keep state. Everything runs on
the event loop: neither method may block it. An exception ends the attempt or the WebSocket, as a failure with the
reason `adapter`, and is retried like any other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from worker.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Answer:
    """A message that keeps the WebSocket alive or its subscription going: sent by whoever holds the socket."""

    data: str | bytes


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A message that tells the upstream that something was taken over: sent only while the lease allows it."""

    data: str | bytes


Reply = Answer | Acknowledgement


class Adapter:
    """Does nothing; override what is needed."""

    async def prepare(self, attempt: Attempt) -> Attempt:
        """Change what is about to be said: the URL, headers, opening steps. Secrets are filled in already.

        Called before every attempt, within its time-out, so signatures and tokens are always fresh.
        """
        return attempt

    def received(self, message: str | bytes) -> Iterable[Reply]:  # noqa: ARG002 - for those who override it
        """Say what to answer to a message. It is delivered in any case."""
        return ()


class EngineIo(Adapter):
    """Engine.IO 4, below Socket.IO: the server pings with `2` and wants `3`
    (https://socket.io/docs/v4/engine-io-protocol/#heartbeat)."""

    def received(self, message: str | bytes) -> Iterable[Reply]:
        return (Answer("3"),) if message == "2" else ()


ADAPTERS: Mapping[str, Callable[[], Adapter]] = {"engine.io": EngineIo}
