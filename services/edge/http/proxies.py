"""Proxies in front of an edge, and the client of a request that came through one (pure).

Anyone can send `X-Forwarded-For`. So it is read only on connections of proxies that the
configuration names, and only the part that those added: the nearest address, from the right, that
is not itself such a proxy's. `Forwarded` (RFC 7239) is not read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from outrider.errors import ConfigError

FORWARDED_FOR: Final = "x-forwarded-for"
_SIGNS: Final = (FORWARDED_FOR, "forwarded", "via")
"""Headers of requests that came by some proxy, trusted or not."""


class TrustedProxies:
    """Proxies that are trusted to name the client of a request."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """`networks` are addresses, or networks such as 10.1.0.0/16. Raises ConfigError for other
        texts."""
        self._networks = tuple(_network(text) for text in networks)

    def trusts(self, host: str) -> bool:
        """Whether this numeric address is of one."""
        address = _address(host)
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, forwarded_for: Iterable[str]) -> str:
        """The numeric address of the client of a request on a connection from `peer`;
        `forwarded_for`: the X-Forwarded-For headers, in their order."""
        if not self.trusts(peer):
            return peer
        named = [name.strip() for header in forwarded_for for name in header.split(",")]
        client = peer
        for name in reversed(named):
            if _address(name) is None:
                break  # a proxy that hides whom it serves, or none of ours wrote it
            client = name
            if not self.trusts(name):
                break
        return client


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Whether a request came through a proxy by its own headers: then unrelated clients may share
    its connection."""
    return any(name in headers for name in _SIGNS)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"http.trusted_proxies: {text!r} is no address and no network ({error}); write "
            "192.0.2.7 or 10.1.0.0/16"
        ) from None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IPv4 address mapped into IPv6 (RFC 4291, section 2.5.5.2) is the IPv4 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
