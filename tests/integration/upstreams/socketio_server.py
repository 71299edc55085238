"""python-socketio, emitting `number` to everyone fifty times a second; it drops who does not answer its pings.

python socketio_server.py PORT
"""

import asyncio
import sys

from hypercorn.asyncio import serve
from hypercorn.config import Config
from socketio import ASGIApp, AsyncServer

server = AsyncServer(async_mode="asgi", ping_interval=1, ping_timeout=1)


async def connect(sid: str, environ: object) -> None:
    """Emit to a new client, until it leaves."""
    server.start_background_task(count, sid)


async def disconnect(sid: str, reason: str) -> None:
    """Tell that a client left."""
    print(f"left: {reason}", flush=True)


async def count(sid: str) -> None:
    """Numbers from 1 for one client."""
    number = 0
    while server.manager.is_connected(sid, "/"):
        number += 1
        await server.emit("number", number, to=sid)
        await asyncio.sleep(0.02)


server.on("connect", connect)
server.on("disconnect", disconnect)
config = Config()
config.bind = [f"127.0.0.1:{sys.argv[1]}"]
asyncio.run(serve(ASGIApp(server), config))
