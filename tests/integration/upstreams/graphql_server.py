"""Ariadne, serving `subscription { count }` by graphql-transport-ws: numbers from 1, fifty a second.

python graphql_server.py PORT
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import cast

from ariadne import SubscriptionType, make_executable_schema
from ariadne.asgi import GraphQL
from ariadne.asgi.handlers import GraphQLTransportWSHandler
from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

subscription = SubscriptionType()


@subscription.source("count")
async def count(*_: object) -> AsyncGenerator[int, None]:
    """Numbers for as long as somebody listens."""
    number = 0
    try:
        while True:
            number += 1
            yield number
            await asyncio.sleep(0.02)
    finally:
        print("subscription ended", flush=True)


@subscription.field("count")
def counted(number: int, *_: object) -> int:
    """What is shown of a number: itself."""
    return number


schema = make_executable_schema("type Query { none: Int } type Subscription { count: Int! }", subscription)
config = Config()
config.bind = [f"127.0.0.1:{sys.argv[1]}"]
app = GraphQL(schema, websocket_handler=GraphQLTransportWSHandler())
asyncio.run(serve(cast("ASGIFramework", app), config))
