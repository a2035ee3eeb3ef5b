"""Peers that come and go in a real name server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import dns.rcode

from bench.harness.name_server import NameServer, running_name_server
from outrider.peers.discovery import Discovery
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.testing import eventually, leak_check


class Notes:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.leaving: set[str] = set()
        self.lost: set[str] = set()

    def joined(self, address: str, source: str) -> None:
        assert address not in self.there
        self.there[address] = source

    def returned(self, address: str) -> None:
        self.leaving.remove(address)

    def is_lost(self, address: str) -> bool:
        return address in self.lost

    def left(self, address: str) -> None:
        self.leaving.add(address)


@asynccontextmanager
async def looking(server: NameServer, *targets: str, grace_s: float = 0.0) -> AsyncIterator[Notes]:
    notes = Notes()
    discovery = Discovery(
        [parse_target(text, "a target") for text in targets],
        notes,
        policy=DiscoveryPolicy((server.address,), interval_s=0.01, grace_s=grace_s),
        clock=time.monotonic,
        rng=Random(1),
    )
    running = asyncio.create_task(discovery.run())
    try:
        await eventually(lambda: discovery.is_settled)
        yield notes
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def asked_again(server: NameServer) -> None:
    """Until lookups that begin now were answered."""
    server.asked.clear()
    await eventually(lambda: len(server.asked) > 4)


async def test_peers_join_leave_and_return() -> None:
    async with leak_check(), running_name_server() as server:
        server.records["x.test", "A"] = ["10.0.0.1", "10.0.0.2"]
        async with looking(server, "here:1", "dns:x.test:7") as notes:
            source = "dns:x.test:7"
            assert notes.there == {"here:1": "here:1", "10.0.0.1:7": source, "10.0.0.2:7": source}
            server.records["x.test", "A"] = ["10.0.0.2", "10.0.0.3"]
            await eventually(lambda: "10.0.0.3:7" in notes.there)
            assert notes.leaving == {"10.0.0.1:7"}
            server.records["x.test", "A"] += ["10.0.0.1"]
            await eventually(lambda: not notes.leaving)


async def test_name_servers_that_fail_or_find_nothing_cost_no_peer() -> None:
    async with leak_check(), running_name_server() as server:
        server.records["x.test", "A"] = ["10.0.0.1"]
        async with looking(server, "dns:x.test:7") as notes:
            for rcode in (dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN, dns.rcode.REFUSED):
                server.rcode = rcode
                await asked_again(server)
            server.rcode = dns.rcode.NOERROR
            server.records["x.test", "A"] = []
            await asked_again(server)
            assert (set(notes.there), notes.leaving) == ({"10.0.0.1:7"}, set())
            notes.lost.add("10.0.0.1:7")
            await eventually(lambda: notes.leaving == {"10.0.0.1:7"})  # neither found nor reached
