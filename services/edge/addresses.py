"""Whose address it is: all of a prefix count as one (pure)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefixes:
    """How much of an address says whose it is."""

    ipv4_bits: int = 32
    ipv6_bits: int = 56
    """What a provider gives to one home, as a rule (RFC 6177, section 2); a host can send from any
    of its addresses."""

    def of(self, host: str) -> str:
        """The prefix that a numeric address is of; an IPv4 address mapped into IPv6 (RFC 4291,
        section 2.5.5.2) counts as the IPv4 address."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        bits = self.ipv4_bits if address.version == 4 else self.ipv6_bits
        spare = address.max_prefixlen - bits
        return f"{type(address)(int(address) >> spare << spare)}/{bits}"
