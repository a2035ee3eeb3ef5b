"""A router with certificates: whom it calls, and who may ask it what. Real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from bench.harness.name_server import running_name_server
from outrider.errors import ConfigError, PermissionDeniedError
from outrider.peers.membership import DiscoveryPolicy
from outrider.rpc import from_rpc_error
from outrider.testing import eventually, leak_check
from outrider.tls import Role, Tls, TlsConfig
from outrider.v1 import inference_pb2, router_pb2
from services.router.config import RouterConfig
from services.router.fleet.entries import ReplicaConfig, ReplicaTarget
from tests.router.replica import Replica, routed, running_replicas, running_router, started
from tests.tls.issuing import Issuer

READY = router_pb2.REPLICA_STATE_READY
DOWN = router_pb2.REPLICA_STATE_DOWN


@pytest.fixture
async def issuer(tmp_path: Path) -> AsyncIterator[Issuer]:
    async with leak_check():
        yield Issuer(tmp_path)


async def test_sessions_come_from_edges_and_questions_from_operators(issuer: Issuer) -> None:
    replica = Replica("a", "us", issuer.tls(Role.INFERENCE, "us"))
    own = issuer.config(Role.ROUTER, "us")
    async with running_replicas(replica):
        async with running_router(replica, caller=issuer.tls(Role.EDGE), tls=own) as router:
            await started(router.edge(), replica)
            for refused in (
                router.stub.Explain(router_pb2.ExplainRequest()),
                router.stub.ListReplicas(router_pb2.ListReplicasRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await refused
                assert isinstance(from_rpc_error(caught.value), PermissionDeniedError)
        async with running_router(replica, caller=issuer.tls(Role.OPERATOR), tls=own) as router:
            await router.state_of("a", READY)
            await router.stub.Explain(router_pb2.ExplainRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await router.stub.Route().read()
            assert isinstance(from_rpc_error(caught.value), PermissionDeniedError)


async def test_an_edge_is_told_of_the_mesh_if_the_settings_allow_it(issuer: Issuer) -> None:
    """No address and no tenant's name is in it, and nobody but an edge gets it."""
    replica = Replica("a", "us", issuer.tls(Role.INFERENCE, "us"))
    pinned = inference_pb2.StaticPrefix(name="manual", tokens=70, tenants=["acme"])
    replica.static_prefixes = (pinned,)
    asked = router_pb2.DescribeMeshRequest()
    settings: dict[str, Any] = {"tls": issuer.config(Role.ROUTER, "us"), "region": "us"}
    async with running_replicas(replica):
        for caller, is_set in ((Role.EDGE, False), (Role.OPERATOR, True)):
            async with running_router(
                replica, caller=issuer.tls(caller), mesh_page=is_set, **settings
            ) as router:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await router.stub.DescribeMesh(asked)
                assert isinstance(from_rpc_error(caught.value), PermissionDeniedError)
        async with running_router(
            replica, caller=issuer.tls(Role.EDGE), mesh_page=True, **settings
        ) as router:
            async with asyncio.timeout(60):
                while True:
                    told = await router.stub.DescribeMesh(asked)
                    (row,) = told.replicas.replicas
                    if row.state == READY and row.static_prefixes:
                        break
                    await asyncio.sleep(0.02)
            assert (told.region, row.name, row.region) == ("us", "a", "us")
            (prefix,) = row.static_prefixes
            assert (prefix.name, prefix.tokens) == ("manual", 70)
            assert [it.model for it in told.models.models] == [replica.model]
            assert b"acme" not in told.SerializeToString()
            assert replica.address.encode() not in told.SerializeToString()


async def test_a_replica_is_where_its_certificate_says(issuer: Issuer) -> None:
    """Whatever it says itself: one of the EU that would like prompts of the US gets none."""
    honest = Replica("honest", "us", issuer.tls(Role.INFERENCE, "us"))
    liar = Replica("liar", "us", issuer.tls(Role.INFERENCE, "eu"))
    nobody = Replica("nobody", "us", issuer.tls(Role.INFERENCE))
    edge = Replica("edge", "us", issuer.tls(Role.EDGE, "us"))
    plain = Replica("plain", "us")
    everyone = (honest, liar, nobody, edge, plain)
    settings: dict[str, Any] = {
        "tls": issuer.config(Role.ROUTER),
        "caller": issuer.tls(Role.OPERATOR),
    }
    async with routed(*everyone, **settings) as router:
        await router.state_of("honest", READY)
        for other in everyone[1:]:
            await router.state_of(other.name, DOWN)
            assert not other.num_streams


async def test_replicas_that_are_found_are_of_their_targets_region(issuer: Issuer) -> None:
    here = Replica("here", "us", issuer.tls(Role.INFERENCE, "us"))
    there = Replica("there", "eu", issuer.tls(Role.INFERENCE, "eu"))
    async with running_name_server() as server, running_replicas(here, there):
        server.records["us.test", "A"] = ["127.0.0.1"]
        server.records["eu.test", "A"] = ["127.0.0.1"]
        targets = (
            ReplicaTarget(f"dns:us.test:{here.port}", "us"),
            # Somebody's mistake, or somebody's wish.
            ReplicaTarget(f"dns:eu.test:{there.port}", "us"),
        )
        async with running_router(
            tls=issuer.config(Role.ROUTER),
            caller=issuer.tls(Role.OPERATOR),
            replica_targets=targets,
            discovery=DiscoveryPolicy(nameservers=(server.address,)),
        ) as router:
            await router.state_of("here", READY)
            await router.state_of(there.address, DOWN)


async def test_a_replica_whose_ca_is_revoked_is_left(issuer: Issuer) -> None:
    other = Issuer(issuer.folder / "other")
    both = issuer.ca.pem + other.ca.pem
    staying = Replica("staying", "us", issuer.tls(Role.INFERENCE, "us"))
    leaving = Replica(
        "leaving", "us", Tls.open(_trusting(other.config(Role.INFERENCE, "us"), both))
    )
    router_files = Issuer(issuer.folder / "router", issuer.ca)
    own = _trusting(router_files.config(Role.ROUTER, "us"), both)
    settings: dict[str, Any] = {"tls": own, "caller": issuer.tls(Role.OPERATOR)}
    async with routed(staying, leaving, **settings) as router:
        await router.state_of("staying", READY)
        await router.state_of("leaving", READY)
        _trusting(own, issuer.ca.pem)
        await router.state_of("leaving", DOWN)
        await eventually(lambda: leaving.num_streams == 0)
        await router.state_of("staying", READY)
        assert staying.num_streams == 1


def _trusting(config: TlsConfig, ca: bytes) -> TlsConfig:
    """The same, with another CA bundle."""
    assert config.ca
    config.ca.write_bytes(ca)
    return config


def test_regions_fit_certificates(issuer: Issuer) -> None:
    with pytest.raises(ConfigError, match="fits no certificate"):
        RouterConfig(
            tls=issuer.config(Role.ROUTER), replicas=(ReplicaConfig("a", "US_East", "h:1"),)
        )
