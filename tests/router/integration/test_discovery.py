"""Replicas found by DNS: they say who they are, come, go and come back as others. Real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.rcode

from bench.harness.name_server import NameServer, running_name_server
from outrider.peers.membership import DiscoveryPolicy
from outrider.testing import eventually, leak_check
from outrider.v1 import router_pb2
from services.router.fleet.entries import ReplicaTarget
from tests.router.relay.mesh import commit, done
from tests.router.replica import Replica, RouterUnderTest, running_router, started

READY = router_pb2.REPLICA_STATE_READY
DRAINING = router_pb2.REPLICA_STATE_DRAINING
DOWN = router_pb2.REPLICA_STATE_DOWN


@asynccontextmanager
async def found(
    *replicas: Replica, num_listed: int | None = None
) -> AsyncIterator[tuple[NameServer, RouterUnderTest]]:
    """A router that looks its replicas up; they listen on one port of 127.0.0.2, .3 and so on, and
    so many of them are in DNS at first, all by default."""
    async with leak_check(), running_name_server() as server:
        for number, replica in enumerate(replicas):
            replica.host, replica.port = f"127.0.0.{number + 2}", replicas[0].port
            await replica.start()
        server.records["replicas.test", "A"] = [r.host for r in replicas][:num_listed]
        settings: dict[str, Any] = {
            "replica_targets": (ReplicaTarget(f"dns:replicas.test:{replicas[0].port}", "us"),),
            "discovery": DiscoveryPolicy((server.address,), interval_s=0.05, grace_s=0.1),
        }
        async with running_router(**settings) as router:
            yield server, router
        for replica in replicas:
            await replica.kill()


async def names(router: RouterUnderTest) -> set[str]:
    return set(await router.replicas())


async def test_replicas_that_are_found_say_who_they_are_and_serve() -> None:
    near, far = Replica("near", "us"), Replica("far", "us")
    async with found(near, far) as (_, router):
        await router.state_of("near", READY)
        await router.state_of("far", READY)
        table = await router.replicas()
        assert set(table) == {"near", "far"}
        assert (table["far"].region, table["far"].address) == ("us", far.address)
        assert table["far"].source == f"dns:replicas.test:{near.port}"
        assert table["far"].min_rtt_ms > 0.0
        await near.kill()
        await router.state_of("near", DOWN)
        await started(router.edge(), far)


async def test_a_replica_that_vanishes_from_dns_finishes_its_sessions_and_is_forgotten() -> None:
    near, far = Replica("near", "us"), Replica("far", "us")
    async with found(near, far, num_listed=1) as (server, router):
        await router.state_of("near", READY)
        edge = router.edge()
        number = await started(edge, near)
        server.records["replicas.test", "A"] = [far.host]
        await router.state_of("near", DRAINING)
        await started(edge, far, 2)
        near.say(commit(number, upto=2))
        near.say(done(number))
        await edge.hear("commit")
        await edge.hear("done")
        while await names(router) != {"far"}:
            await asyncio.sleep(0.02)
        await eventually(lambda: near.num_streams == 0)
        server.records["replicas.test", "A"] = [near.host, far.host]
        while await names(router) != {"near", "far"}:
            await asyncio.sleep(0.02)
        await router.state_of("near", READY)


async def test_name_servers_that_blink_cost_nothing() -> None:
    near = Replica("near", "us")
    async with found(near) as (server, router):
        await router.state_of("near", READY)
        edge = router.edge()
        await started(edge, near)
        for rcode in (dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN):
            server.rcode = rcode
            server.asked.clear()
            await eventually(lambda: len(server.asked) > 6)
        await router.state_of("near", READY)
        await started(edge, near, 2)


async def test_an_address_that_comes_back_as_another_replica_is_that_one() -> None:
    replica = Replica("old", "us")
    async with found(replica) as (_, router):
        await router.state_of("old", READY)
        await replica.kill()
        await router.state_of("old", DOWN)
        replica.name = "new"
        await replica.start()
        while await names(router) != {"new"}:
            await asyncio.sleep(0.02)
        await router.state_of("new", READY)
        assert (await router.replicas())["new"].region == "us"


async def test_replicas_that_were_found_by_each_others_names_are_served_once_names_are_right() -> (
    None
):
    """Each is taken for one of the other region, and refused."""
    us, eu = Replica("us", "us"), Replica("eu", "eu")
    async with leak_check(), running_name_server() as server:
        us.host, eu.host = "127.0.0.2", "127.0.0.3"
        await us.start()
        eu.port = us.port
        await eu.start()
        regions = {"us": us, "eu": eu}
        targets = tuple(
            ReplicaTarget(f"dns:replicas.{region}.test:{it.port}", region)
            for region, it in regions.items()
        )
        server.records["replicas.us.test", "A"] = [eu.host]
        server.records["replicas.eu.test", "A"] = [us.host]
        settings: dict[str, Any] = {
            "replica_targets": targets,
            "discovery": DiscoveryPolicy((server.address,), interval_s=0.05, grace_s=0.1),
        }
        async with running_router(**settings) as router:
            while {it.state for it in (await router.replicas()).values()} != {DOWN}:
                await asyncio.sleep(0.02)
            for region, replica in regions.items():
                server.records[f"replicas.{region}.test", "A"] = [replica.host]
            while await names(router) != {*regions}:
                await asyncio.sleep(0.02)
            for region in regions:
                await router.state_of(region, READY)
                assert (await router.replicas())[region].region == region
        for replica in (us, eu):
            await replica.kill()
