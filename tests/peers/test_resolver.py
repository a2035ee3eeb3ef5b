"""Lookups of a real name server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator

import dns.rcode
import pytest

from bench.harness.name_server import NameServer, running_name_server
from outrider.errors import ConfigError, UnavailableError
from outrider.peers.membership import parse_target
from outrider.peers.resolver import DnsResolver


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with running_name_server() as server:
        yield server


async def look_up(server: NameServer, text: str, timeout_s: float = 5.0) -> list[str]:
    resolver = DnsResolver((server.address,), timeout_s=timeout_s)
    return sorted(await resolver.addresses(parse_target(text, "a target")))


async def test_a_name_stands_for_all_its_addresses(server: NameServer) -> None:
    server.records["inference.test", "A"] = ["10.0.0.2", "10.0.0.1"]
    server.records["inference.test", "AAAA"] = ["fd00::1"]
    found = await look_up(server, "dns:inference.test:7300")
    assert found == ["10.0.0.1:7300", "10.0.0.2:7300", "[fd00::1]:7300"]


async def test_service_records_say_the_ports(server: NameServer) -> None:
    server.records["_grpc._tcp.x.test", "SRV"] = [
        "0 50 7300 a.x.test.",
        "0 50 7301 b.x.test.",
        "0 50 7302 gone.x.test.",
    ]
    server.records["a.x.test", "A"] = ["10.0.0.1"]
    server.records["b.x.test", "A"] = ["10.0.0.2"]
    assert await look_up(server, "srv:_grpc._tcp.x.test") == ["10.0.0.1:7300", "10.0.0.2:7301"]


async def test_a_name_that_is_not_there_has_no_addresses(server: NameServer) -> None:
    assert await look_up(server, "dns:nobody.test:1") == []
    server.records["nobody.test", "TXT"] = ['"there, but without addresses"']
    assert await look_up(server, "dns:nobody.test:1") == []
    assert await look_up(server, "srv:nobody.test") == []


async def test_a_server_that_fails_or_is_silent_is_no_answer(server: NameServer) -> None:
    server.rcode = dns.rcode.SERVFAIL
    with pytest.raises(UnavailableError, match=r"dns:x\.test:1 was not looked up"):
        await look_up(server, "dns:x.test:1", timeout_s=0.2)
    server.is_silent = True
    with pytest.raises(UnavailableError, match="was not looked up"):
        await look_up(server, "dns:x.test:1", timeout_s=0.2)


@pytest.mark.parametrize("entry", ["127.0.0.1", "ns.example:53"])
def test_name_servers_are_addresses_with_ports(entry: str) -> None:
    with pytest.raises(ConfigError, match="nameservers"):
        DnsResolver((entry,))
