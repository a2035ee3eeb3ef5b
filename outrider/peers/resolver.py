"""Targets to addresses, by DNS."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import dns.asyncresolver
import dns.exception
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from outrider.config import check_address
from outrider.errors import ConfigError, UnavailableError
from outrider.peers.membership import Lookup, Target, join_host_port


class DnsResolver:
    """A `discovery.Resolver` that asks name servers without ever blocking the loop.

    It caches nothing: callers ask at intervals of their own.

    getaddrinfo would be the alternative. It cannot ask for SRV, and it occupies a thread that
    cannot be cancelled for as long as a name server is silent. The price is that names looked up
    here ignore /etc/hosts; gRPC resolves plain host:port targets, and uses it.
    """

    def __init__(self, nameservers: Sequence[str] = (), *, timeout_s: float = 2.0) -> None:
        """`nameservers` are IP addresses with ports; empty: those of /etc/resolv.conf, with its
        search domains. Raises ConfigError if that file does not exist."""
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=not nameservers)
        except dns.resolver.NoResolverConfiguration as error:
            raise ConfigError(f"no name servers: {error}; set discovery.nameservers") from error
        self._resolver.lifetime = timeout_s
        self._resolver.timeout = timeout_s / 2.0
        if nameservers:
            self._resolver.nameservers = [_nameserver(entry) for entry in nameservers]

    async def addresses(self, target: Target) -> list[str]:
        """host:port of every peer that the target stands for; hosts of SRV records that have no
        address are left out. Raises UnavailableError if the question was not answered."""
        try:
            if target.lookup is Lookup.ADDRESSES:
                return await self._hosts(target.host, target.port)
            return await self._services(target.host)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, OSError) as error:
            raise UnavailableError(f"{target.text} was not looked up: {error}") from error

    async def _hosts(self, host: str, port: int) -> list[str]:
        answers = await self._resolver.resolve_name(host, search=True)
        return [join_host_port(str(address), port) for address in answers.addresses()]

    async def _services(self, name: str) -> list[str]:
        answer = await self._resolver.resolve(name, "SRV", search=True)
        found: list[str] = []
        for record in answer:
            assert isinstance(record, SRV)
            try:
                found += await self._hosts(record.target.to_text(), record.port)
            except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
                continue
        return found


def _nameserver(entry: str) -> dns.nameserver.Nameserver:
    check_address(entry, "each of discovery.nameservers")
    host, _, port = entry.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError as error:
        raise ConfigError(
            f"each of discovery.nameservers must be IP:PORT, not {entry!r}"
        ) from error
    return dns.nameserver.Do53Nameserver(str(address), int(port))
