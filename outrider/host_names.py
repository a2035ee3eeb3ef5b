"""The host that a request asks for (pure).

A page that somebody visits can make its own name lead to an address that only the visitor reaches,
such as 127.0.0.1. The visitor's browser then lets the page read what answers there (DNS rebinding).
It still tells the page's name, in `Host` or `:authority`, so whoever serves such an address without
asking for a key has to look at the name.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+?)\.?)(?::[0-9]{0,5})?")
"""An address in brackets, or a name or IPv4 address; then a port (RFC 3986, section 3.2)."""


def host_of(authority: str) -> str:
    """The name or address of a `Host` or `:authority`, in lower case, without the port and a dot at
    its end; "" if it has none."""
    parts = _AUTHORITY.fullmatch(authority.lower())
    return "" if parts is None else parts[1] or parts[2]


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """A numeric address, without its zone; None for a name. An IPv4 address mapped into IPv6
    (RFC 4291, section 2.5.5.2) is the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether only this machine is found at a host: localhost, or an address for the purpose."""
    address = address_of(host)
    return host == "localhost" if address is None else address.is_loopback
