"""One WebSocket without the machinery around it: what its listener is told."""

import asyncio
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from connections.url_policy import UrlPolicy, check_url
from worker.dial import Dialer, Resolver
from worker.retry import AttemptFailed, Failure
from worker.upstream import Handshake, Intake, Upstream

POLICY = UrlPolicy.parse("localhost,127.0.0.0/8,::1")


@dataclass
class Recorder:
    """A listener that keeps everything."""

    handshaken: int = 0
    messages: list[str | bytes] = field(default_factory=list)
    failure: Failure | None = None
    socket: Upstream | None = None

    def opened(self) -> None:
        self.handshaken += 1

    def received(self, messages: Sequence[str | bytes]) -> None:
        self.messages += messages

    def ended(self, failure: Failure) -> None:
        assert self.failure is None, "told twice"
        self.failure = failure


async def connect(url: str, *, context: ssl.SSLContext | None = None, **handshake: Any) -> Recorder:
    """Dial, and return at once. A failure to connect is a failure like any other."""
    recorder = Recorder()
    said = Handshake(url=check_url(url, POLICY), headers=handshake.pop("headers", {}), **handshake)
    intake = Intake()
    with ThreadPoolExecutor(1) as executor:
        dialer = Dialer(Resolver(executor), context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), attempt_seconds=5)

        def socket() -> Upstream:
            recorder.socket = Upstream(said, recorder, intake)
            return recorder.socket

        try:
            await dialer.dial(said.url, socket)
        except AttemptFailed as failed:
            recorder.failure = failed.failure
    await asyncio.sleep(0)
    return recorder
