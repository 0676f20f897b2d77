"""What may be fetched: public addresses of the web, and nothing that only this machine or its network can see.

An address is checked where it is used.  Names are resolved by us, every address that comes back is checked, and
the connection is made to what was checked: an answer that changes between check and use cannot matter (TS-02).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult

from aiohttp.abc import AbstractResolver, ResolveResult

from carr_jax.addresses import http_address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NEVER = (
    *map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT
            "192.88.99.0/24",  # 6to4 relays
            "64:ff9b:1::/48",  # NAT64 of a local network
            "2001::/32",  # Teredo: holds another address
            "2002::/16",  # 6to4: holds another address
            "fec0::/10",  # site-local, as it was called
        ),
    ),
)

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class Refused(Exception):
    """This address is not fetched; `reason` is "scheme", "userinfo", "port" or "private"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Rules:
    """Which ports may be asked for, and hosts that may be private, by the name in the address.

    Tests and laboratories name hosts; on the open web there are none.
    """

    ports: frozenset[int] = frozenset((80, 443))
    hosts: frozenset[str] = frozenset()


def is_public(address: str) -> bool:
    """Whether an IP address is one that anybody on the internet could reach, and that hides no other one.

    Not public: loopback, private, link-local, carrier-grade, multicast, reserved, unspecified; an IPv6 address
    that maps, translates or tunnels an IPv4 address that is not public.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip in _NAT64 or int(ip) >> 32 == 0:
            return int(ip) >> 32 != 0 and is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    if any(ip.version == network.version and ip in network for network in _NEVER):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def checked(url: str, rules: Rules) -> SplitResult:
    """The parts of an address that may be fetched, as far as that can be told without asking for its name.

    Raises Refused.
    """
    parts = http_address(url)
    if parts is None:
        raise Refused("scheme")
    if "@" in parts.netloc:
        raise Refused("userinfo")
    if _plain(parts.hostname) in rules.hosts:
        return parts
    if (parts.port or {"http": 80, "https": 443}[parts.scheme]) not in rules.ports:
        raise Refused("port")
    try:
        address = _literal(parts.hostname)
    except ValueError:
        return parts  # a name: the resolver looks at what is behind it
    if not is_public(address):
        raise Refused("private")
    return parts


def _literal(host: str) -> str:
    """The IP address that a host is, also in the spellings of `inet_aton`: decimal, octal, hex, fewer dots.

    Raises ValueError for a name.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pieces = _plain(host).split(".")
        if len(pieces) > 4 or not all(_is_number(piece) for piece in pieces):
            raise
    try:
        return socket.inet_ntoa(socket.inet_aton(_plain(host)))
    except OSError as error:
        raise Refused("private") from error  # numbers that mean no address, to us


def _is_number(piece: str) -> bool:
    digits = piece.removeprefix("0x")
    return digits.isascii() and (digits.isdigit() or (digits != piece and not digits.strip("0123456789abcdef")))


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


async def system_lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, by this machine's resolver.  Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedResolver(AbstractResolver):
    """Gives a connector the addresses of a name, once each of them was found public.

    One private address among them is enough to refuse.  Raises Refused, and OSError for a name that is unknown.
    """

    def __init__(self, rules: Rules, lookup: Lookup = system_lookup) -> None:
        self._rules, self._lookup = rules, lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._lookup(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        if _plain(host) not in self._rules.hosts and not all(map(is_public, addresses)):
            raise Refused("private")
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Nothing is held."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )
