"""An upstream whose every WebSocket brings the same numbered messages from the moment it opens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.upstream import RawUpstream, Script, behave, text


@asynccontextmanager
async def numbered(script: Script = behave, every: float = 0.002) -> AsyncIterator[RawUpstream]:
    """A server with a message `{"n": 1}`, `{"n": 2}` ... for everyone who is there, `every` so many seconds."""

    async def feed(upstream: RawUpstream) -> None:
        number = 0
        while True:
            number += 1
            message = text(f'{{"n": {number}}}')
            for peer in upstream.open_peers:
                if peer.upgraded_at is not None and not peer.writer.is_closing():
                    peer.writer.write(message)
            await asyncio.sleep(every)

    async with RawUpstream(script) as upstream:
        feeding = asyncio.create_task(feed(upstream))
        try:
            yield upstream
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))


def numbers(data: list[str]) -> list[int]:
    """The numbers of messages."""
    return [int(message[6:-1]) for message in data]
