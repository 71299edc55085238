"""From a URL to a connected socket: look the name up, check each address, dial the checked address and no other."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from ipaddress import ip_address
from typing import TypeVar

from connections.refusal import Refusal
from connections.url_policy import CheckedUrl
from worker.retry import AttemptFailed, Failure, Kind

DNS_SECONDS = 30.0
"""How long the addresses of a name are used without asking again."""

ATTEMPT_SECONDS = 10.0
"""One attempt, from the look-up to the end of the handshake."""

TLS_SHUTDOWN_SECONDS = 1.0

P = TypeVar("P", bound=asyncio.BaseProtocol)

Lookup = Callable[[str, int], list[str]]
"""Blocking: the addresses of a host in the order to try them. Raises `OSError`."""


def system_lookup(host: str, port: int) -> list[str]:
    """Ask the system's resolver (RFC 6724 order)."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


class Resolver:
    """Names to addresses. However many attempts want a name at once, it is looked up once."""

    def __init__(self, executor: Executor, lookup: Lookup = system_lookup, ttl: float = DNS_SECONDS) -> None:
        """`executor` bounds how many look-ups block at a time."""
        self._executor = executor
        self._lookup = lookup
        self._ttl = ttl
        self._known: dict[str, tuple[float, list[str]]] = {}
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host. Raises `OSError`; a failure is not remembered."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        known = self._known.get(host)
        if known is not None and now < known[0]:
            return known[1]
        lookup = self._under_way.get(host)
        if lookup is None:
            lookup = self._under_way[host] = asyncio.ensure_future(self._look_up(host, port))
            lookup.add_done_callback(lambda _: self._under_way.pop(host, None))
        # One attempt that is given up must not take the look-up away from the others.
        return await asyncio.shield(lookup)

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, self._lookup, host, port)
        now = loop.time()
        # Names nobody asks for any more must not pile up.
        self._known = {name: entry for name, entry in self._known.items() if now < entry[0]}
        self._known[host] = (now + self._ttl, found)
        return found


class Dialer:
    """Opens transports. One SSLContext serves all connections: each of its own would cost a mebibyte and 47 ms."""

    def __init__(
        self,
        resolver: Resolver,
        context: ssl.SSLContext,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        """`attempt_seconds` is what an attempt may take from the look-up to the end of the handshake."""
        self._resolver = resolver
        self._context = context
        self.attempt_seconds = attempt_seconds

    async def dial(self, url: CheckedUrl, factory: Callable[[], P]) -> P:
        """Connect a new protocol from `factory` to the host of `url`.

        Each address gets its share of the time that is left. Raises `AttemptFailed`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.attempt_seconds
        addresses = await self._checked(url)
        failure = Failure(kind=Kind.DNS, detail="the name has no address")
        for tried, address in enumerate(addresses):
            share = (deadline - loop.time()) / (len(addresses) - tried)
            try:
                async with asyncio.timeout(share):
                    return await self._connect(factory, url, address)
            except OSError as error:
                failure = _failure_of(error)
        raise AttemptFailed(failure)

    async def _checked(self, url: CheckedUrl) -> list[str]:
        try:
            found = await self._resolver.addresses(url.host, url.port)
        except (OSError, UnicodeError) as error:
            raise AttemptFailed(Failure(kind=Kind.DNS, detail=f"{url.host}: {error}")) from None
        permitted = []
        for address in found:
            try:
                url.check_address(ip_address(address))
            except Refusal as refusal:
                blocked = Failure(kind=Kind.BLOCKED, detail=refusal.message)
            else:
                permitted.append(address)
        if found and not permitted:
            raise AttemptFailed(blocked)
        return permitted

    async def _connect(self, factory: Callable[[], P], url: CheckedUrl, address: str) -> P:
        loop = asyncio.get_running_loop()
        if url.scheme == "ws":
            _, protocol = await loop.create_connection(factory, address, url.port)
        else:
            _, protocol = await loop.create_connection(
                factory,
                address,
                url.port,
                ssl=self._context,
                server_hostname=url.host,
                ssl_handshake_timeout=self.attempt_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        return protocol


def _failure_of(error: OSError) -> Failure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(kind=Kind.CERTIFICATE, detail=error.verify_message)
    if isinstance(error, TimeoutError):
        return Failure(kind=Kind.TIMEOUT, detail="no connection in time")
    if isinstance(error, ssl.SSLError):
        return Failure(kind=Kind.TLS, detail=error.reason or type(error).__name__)
    return Failure(kind=Kind.TCP, detail=error.strerror or type(error).__name__)
