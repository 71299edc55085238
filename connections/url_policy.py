"""Which URLs the fleet may dial: checked when a connection is requested, and again on the address that is dialled.

Other people choose the URLs and our network dials them, so everything is refused that could reach what only our network
can reach. A host is checked twice, since a name may be made to resolve to anything at any time:

- `check_url` judges the text: the scheme, how the host is written and, where the host is an address, that address;
- `CheckedUrl.check_address` judges one address that the host resolved to. Dial that very address, with the URL's `host`
  for SNI and its `authority` for Host.

The allow-list opens what its entries name: `ws://`, local names, and addresses that are not public.
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Literal, NoReturn, Self
from urllib.parse import quote

import idna

from connections.refusal import Refusal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Scheme = Literal["wss", "ws"]

MAX_URL_LENGTH = 4096
"""Characters, as given and as sent. Common servers take 8 KiB for the request line and for each header."""

DEFAULT_PORTS: dict[Scheme, int] = {"wss": 443, "ws": 80}

INSTANCE_SERVICES = tuple(map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32")))
"""Link-local: the metadata and container-credential services. Open only to an entry that lies inside of one."""

GLOBAL_UNICAST = ip_network("2000::/3")
"""What IANA has given out of IPv6 to hosts. Not in it: loopback, v4-mapped, v4-compatible, NAT64, ULA, multicast."""

NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # IETF protocol assignments (RFC 6890)
            "192.88.99.0/24",  # 6to4 relays (RFC 7526)
            "224.0.0.0/4",  # multicast (RFC 5771)
            "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, benchmarking (RFC 2928)
            "2002::/16",  # 6to4: holds an IPv4 address (RFC 3056)
            "2620:4f:8000::/48",  # AS112 (RFC 7534)
            "3fff::/20",  # documentation (RFC 9637)
        ),
    )
)
"""What `ipaddress` of some Python calls global although no public server lives there."""

LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa")
"""Domains that only a private resolver answers (RFC 6761, 6762, 8375; ICANN reserves `internal`)."""

URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<path>[^?]*)(?P<query>\?.*)?", re.IGNORECASE)
AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label like this makes a host an IPv4 address in one of its spellings (WHATWG URL, "ends in a number")."""
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """The allow-list: host names, exact and in lower case, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Read ALLOWED_HOSTS: host names, IP addresses and CIDR networks, separated by commas.

        Raises `ValueError` for an entry that is none of them.
        """
        hosts: set[str] = set()
        networks: list[Network] = []
        for entry in filter(None, map(str.strip, setting.split(","))):
            if "/" in entry or ":" in entry or NUMBER.fullmatch(entry.rpartition(".")[2]):
                networks.append(ip_network(entry))
            else:
                hosts.add(_to_ascii(entry))
        return cls(frozenset(hosts), tuple(networks))

    def lists(self, address: Address) -> bool:
        """Whether an entry names this address. A wide network does not open the instance services by accident."""
        return any(
            address in network
            and all(address not in special or _within(network, special) for special in INSTANCE_SERVICES)
            for network in self.networks
        )


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A URL that may be dialled, at an address that passes `check_address`. Made by `check_url`."""

    scheme: Scheme
    host: str
    """Lower case and ASCII; an IPv6 address without brackets. For DNS, SNI and the certificate."""
    address: Address | None
    """The host, if it is an address."""
    port: int
    target: str
    """Path and query, percent-encoded. May hold secrets."""
    policy: UrlPolicy

    @property
    def authority(self) -> str:
        """The value of the Host header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """The whole URL. May hold secrets."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def public(self) -> str:
        """The URL without its query, where tokens are. For answers and logs."""
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"

    def __repr__(self) -> str:
        return f"<CheckedUrl {self.public}>"

    def check_address(self, address: Address) -> None:
        """Judge one address that the host resolved to. Raises `Refusal` with code `blocked_address`.

        A host in the allow-list may resolve to what is not public, but never to the instance services: whoever answers
        for its name must not be able to point us at our own credentials.
        """
        trusted = self.host in self.policy.hosts and not any(address in special for special in INSTANCE_SERVICES)
        if not trusted:
            check_address(address, self.policy)


def check_address(address: Address, policy: UrlPolicy) -> None:
    """Judge an address by itself. Raises `Refusal` with code `blocked_address`."""
    if not (_is_public(address) or policy.lists(address)):
        raise Refusal("blocked_address", "the host is not a public address", "url")


def check_url(text: str, policy: UrlPolicy) -> CheckedUrl:
    """Judge the text of a URL. Raises `Refusal` with code `invalid_url`, `scheme_not_allowed` or `blocked_address`.

    The syntax is RFC 3986's as RFC 6455 section 3 narrows it. Host names follow IDNA 2008 after UTS 46 mapping, so
    `WSS://Feed.Example.COM` and `wss://feed.example.com` are one. What a request line cannot carry is percent-encoded.
    """
    if len(text) > MAX_URL_LENGTH:
        _invalid(f"longer than {MAX_URL_LENGTH} characters")
    if not text.isprintable() or set(text) & set(" \\#"):
        _invalid("spaces, control characters, backslashes and fragments are not allowed")
    parts = URL.fullmatch(text)
    if parts is None:
        _invalid("not an absolute URL")
    scheme = parts["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise Refusal("scheme_not_allowed", "only WebSocket servers are supported: the scheme must be wss", "url")
    host, address, port = _authority(parts["authority"])
    checked = CheckedUrl(
        scheme=scheme,
        host=host,
        address=address,
        port=DEFAULT_PORTS[scheme] if port is None else port,
        target=_encode(parts["path"] or "/") + _encode(parts["query"] or ""),
        policy=policy,
    )
    if len(checked.text) > MAX_URL_LENGTH:
        _invalid(f"longer than {MAX_URL_LENGTH} characters when percent-encoded")
    if address is not None:
        check_address(address, policy)
    elif host not in policy.hosts and _is_local(host):
        raise Refusal("blocked_address", "the host is a local name", "url")
    if scheme == "ws" and not (host in policy.hosts or (address is not None and policy.lists(address))):
        raise Refusal("scheme_not_allowed", "the scheme must be wss", "url")
    return checked


def _invalid(message: str) -> NoReturn:
    raise Refusal("invalid_url", message, "url")


def _authority(text: str) -> tuple[str, Address | None, int | None]:
    if "@" in text:
        _invalid("user information is not allowed")
    parts = AUTHORITY.fullmatch(text)
    if parts is None:
        _invalid("the host or the port is malformed")
    port = None if parts["port"] is None else int(parts["port"])
    if port is not None and not 0 < port < 65536:
        _invalid("the port must be from 1 to 65535")
    try:
        if parts["ipv6"] is None:
            host = _to_ascii(parts["name"])
            address: Address | None = IPv4Address(host) if NUMBER.fullmatch(host.rpartition(".")[2]) else None
        else:
            # A zone (`%eth0`) names an interface of this machine: never a public server.
            address = IPv6Address(parts["ipv6"].replace("%", "zone"))
            host = address.compressed
    except AddressValueError:
        _invalid("the host is a malformed address")
    except ValueError:
        _invalid("the host is not a valid name")
    return host, address, port


def _to_ascii(name: str) -> str:
    """A host name in the form that goes on the wire. Raises `ValueError`."""
    plain = name.isascii() and "xn--" not in name.lower()
    # Underscores break IDNA's rules but are common in names that DNS serves.
    ascii_name = (name if plain else idna.encode(name, uts46=True).decode()).lower().removesuffix(".")
    if len(ascii_name) > 253 or not all(map(LABEL.fullmatch, ascii_name.split("."))):
        raise ValueError("not a host name")
    return ascii_name


def _encode(text: str) -> str:
    if BAD_ESCAPE.search(text):
        _invalid("a percent sign must be followed by two hexadecimal digits")
    return quote(text, safe="/?:@!$&'()*+,;=%")


def _is_local(host: str) -> bool:
    return "." not in host or any(f".{host}".endswith(f".{local}") for local in LOCAL_NAMES)


def _is_public(address: Address) -> bool:
    if address.version == 6 and address not in GLOBAL_UNICAST:
        return False
    return address.is_global and not any(address in network for network in NOT_PUBLIC)


def _within(inner: Network, outer: Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)
