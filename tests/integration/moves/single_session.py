"""An upstream that allows one session per feed: it refuses the second (`--second refuse`), or ends the first for it."""

import asyncio
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from local.upstream import Upstream, arguments, main

KICKED = 4000
"""The close code of a session that had to make room for another one."""
REFUSED = 4409
"""Shown in the report for an attempt that was refused with 409, though it never became a WebSocket."""


class SingleSession(Upstream):
    """Feeds of one session each."""

    def __init__(self, period: float, *, kicks: bool) -> None:
        super().__init__(period)
        self._kicks = kicks
        self._sessions: dict[str, ServerConnection] = {}

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one socket until it closes."""
        path = connection.request.path if connection.request else ""
        first = self._sessions.get(path)
        self._sessions[path] = connection
        if first is not None:
            await first.close(KICKED, "another session")
        try:
            await super().handle(connection)
        finally:
            if self._sessions.get(path) is connection:
                del self._sessions[path]

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse the second session of a feed, unless it is to end the first."""
        if request.path in self._sessions and not self._kicks:
            self.note_refusal(request.path, connection.remote_address[1], REFUSED)
            return connection.respond(HTTPStatus.CONFLICT, "one session only")
        return super().answer(connection, request)


if __name__ == "__main__":
    parser = arguments()
    parser.add_argument("--second", choices=("refuse", "kick"), required=True)
    options = parser.parse_args()
    asyncio.run(main(SingleSession(options.period, kicks=options.second == "kick")))
