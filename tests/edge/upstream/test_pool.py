"""An edge's links to several real gRPC routers, configured and found by DNS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import grpc.aio
import pytest

from bench.harness.name_server import running_name_server
from outrider.backoff import Backoff
from outrider.errors import OutriderError, UnavailableError
from outrider.peers.health import HealthPolicy, PeerState
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import bind, make_server
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, free_tcp_port, leak_check
from outrider.v1 import inference_pb2, router_pb2, router_pb2_grpc
from services.edge.upstream.link import LinkPolicy
from services.edge.upstream.metrics import RouterMetrics
from services.edge.upstream.pool import RouterPool, RouterPoolPolicy
from services.edge.upstream.table import RouterTable


class Router(router_pb2_grpc.RouterServiceServicer):
    """Commits one empty block for every open; hangs while `answering` is not set."""

    def __init__(self, region: str) -> None:
        self.region = region
        self.serving = True
        self.answering = asyncio.Event()
        self.answering.set()
        self.num_opened = self.num_streams = 0
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = make_server()
        router_pb2_grpc.add_RouterServiceServicer_to_server(self, self._server)
        self.port = bind(self._server, host, self.port or port or free_tcp_port(host))
        await self._server.start()

    async def kill(self) -> None:
        assert self._server is not None
        await self._server.stop(grace=None)

    async def GetRouter(
        self, request: router_pb2.GetRouterRequest, context: Any
    ) -> router_pb2.GetRouterResponse:
        await self.answering.wait()
        return router_pb2.GetRouterResponse(region=self.region, serving=self.serving)

    async def Route(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[router_pb2.RouteResponse]:
        self.num_streams += 1
        try:
            async for request in request_iterator:
                self.num_opened += len(request.frames)
                frames = [
                    inference_pb2.SessionDown(
                        session=frame.session, commit=inference_pb2.Commit(upto=1)
                    )
                    for frame in request.frames
                ]
                yield router_pb2.RouteResponse(frames=frames)
        finally:
            self.num_streams -= 1

    async def ListReplicas(self, request: Any, context: Any) -> router_pb2.ListReplicasResponse:
        return router_pb2.ListReplicasResponse()

    async def ListModels(self, request: Any, context: Any) -> router_pb2.ListModelsResponse:
        return router_pb2.ListModelsResponse()

    async def DescribeMesh(self, request: Any, context: Any) -> router_pb2.DescribeMeshResponse:
        return router_pb2.DescribeMeshResponse()

    async def DrainReplica(
        self, request: router_pb2.DrainReplicaRequest, context: Any
    ) -> router_pb2.DrainReplicaResponse:
        return router_pb2.DrainReplicaResponse()

    async def Explain(self, request: Any, context: Any) -> router_pb2.ExplainResponse:
        return router_pb2.ExplainResponse()


class Session:
    """What a chat would hear."""

    def __init__(self) -> None:
        self.frames: list[inference_pb2.SessionDown] = []
        self.lost: list[OutriderError] = []

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        self.frames.append(frame)

    def region_lost(self, error: OutriderError) -> None:
        self.lost.append(error)


@asynccontextmanager
async def up(*routers: Router) -> AsyncIterator[None]:
    for router in routers:
        await router.start()
    try:
        yield
    finally:
        for router in routers:
            await router.kill()


@asynccontextmanager
async def upstream(
    *targets: str, nameserver: str = "127.0.0.1:1", metrics: Metrics | None = None, **link: Any
) -> AsyncIterator[RouterPool]:
    quick: dict[str, Any] = {"probe_interval_s": 0.02, "probe_timeout_s": 2.0, "max_backoff_s": 0.1}
    own = metrics or Metrics("edge")
    it = RouterPool(
        RouterPoolPolicy(
            targets=tuple(parse_target(text, "a router") for text in targets),
            link=LinkPolicy(100, **(quick | link)),
            health=HealthPolicy(suspect_s=0.2),
            discovery=DiscoveryPolicy((nameserver,), interval_s=0.05, grace_s=0.1),
        ),
        clock=StallFreeClock(),
        rng=Random(1),
        on_tick=RouterMetrics(own).tick,
    )
    it.start()
    try:
        await it.wait_connected()
        yield it
    finally:
        await it.stop()
        own.close()


def opened(it: RouterPool, *avoid: str) -> tuple[Session, str, int]:
    session, link = Session(), it.pick(avoid)
    return session, link.address, link.open(session, inference_pb2.SessionUp())


def states(it: RouterPool) -> dict[str, PeerState]:
    return {router.address: router.state for router in it.table}


async def ready(it: RouterPool, *routers: Router) -> None:
    wanted = {router.address: PeerState.READY for router in routers}
    await eventually(lambda: states(it) == wanted)


async def test_sessions_fail_over_to_the_other_router_and_the_lost_one_is_found_again() -> None:
    first, second = Router("x"), Router("x")
    async with leak_check(), up(first, second), upstream(first.address, second.address) as it:
        await ready(it, first, second)
        session, address, _ = opened(it)
        await eventually(lambda: len(session.frames) == 1)
        at = {router.address: router for router in (first, second)}
        await at[address].kill()
        await eventually(lambda: len(session.lost) == 1)
        assert isinstance(session.lost[0], UnavailableError)
        (other,) = set(at) - {address}
        assert {opened(it)[1] for _ in range(5)} == {other}
        await at[address].start()
        await ready(it, first, second)
        assert opened(it, other)[1] == address


async def test_a_router_that_hangs_loses_its_sessions_and_gets_no_new_ones() -> None:
    first, second = Router("x"), Router("x")
    async with (
        leak_check(),
        up(first, second),
        upstream(first.address, second.address, probe_timeout_s=1.0) as it,
    ):
        await ready(it, first, second)
        session, _, _ = opened(it, second.address)
        await eventually(lambda: len(session.frames) == 1)
        first.answering.clear()
        await eventually(lambda: states(it)[first.address] is PeerState.SUSPECT)
        assert {opened(it)[1] for _ in range(5)} == {second.address}
        assert first.num_streams == 1
        await eventually(lambda: len(session.lost) == 1)
        # Its stream is broken there too: a session that goes on elsewhere has no older run here.
        await eventually(lambda: first.num_streams == 0)
        first.answering.set()
        await ready(it, first, second)


async def test_a_router_that_says_anything_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    router, num_heard = Router("x"), 0
    heard = RouterTable.heard

    def noted(self: RouterTable, address: str, now: float) -> None:
        nonlocal num_heard
        num_heard += 1
        heard(self, address, now)

    monkeypatch.setattr(RouterTable, "heard", noted)
    async with leak_check(), up(router), upstream(router.address, probe_timeout_s=0.2) as it:
        await ready(it, router)
        session, _, number = opened(it)
        router.answering.clear()

        def is_heard() -> bool:
            it.links[0].draft(number, inference_pb2.SessionUp())
            return num_heard > 3

        await eventually(is_heard)  # in four times suspect_s
        assert not session.lost and it.ready
        await eventually(lambda: len(session.lost) == 1)  # now it is silent
        router.answering.set()
        await ready(it, router)


async def test_a_router_that_stops_keeps_its_sessions_and_gets_no_new_ones() -> None:
    first, second = Router("x"), Router("x")
    async with leak_check(), up(first, second), upstream(first.address, second.address) as it:
        await ready(it, first, second)
        session, _, number = opened(it, second.address)
        await eventually(lambda: len(session.frames) == 1)
        first.serving = False
        await eventually(lambda: states(it)[first.address] is PeerState.DRAINING)
        assert {opened(it)[1] for _ in range(5)} == {second.address}
        (link,) = [link for link in it.links if link.address == first.address]
        link.draft(number, inference_pb2.SessionUp())
        await eventually(lambda: len(session.frames) == 2)
        assert not session.lost


async def test_without_a_router_the_refusal_says_how_each_of_them_is() -> None:
    there, absent = Router("x"), f"127.0.0.1:{free_tcp_port()}"
    async with leak_check(), up(there), upstream(there.address, absent) as it:
        await eventually(lambda: states(it).get(absent) is PeerState.DOWN)
        await there.kill()
        await eventually(lambda: not it.ready)
        with pytest.raises(UnavailableError, match=f"{there.address} DOWN, {absent} DOWN"):
            it.pick()
        await there.start()


async def test_who_needs_a_router_does_not_wait_for_a_long_pause_between_attempts() -> None:
    router = Router("x")
    async with leak_check(), up(router), upstream(router.address, max_backoff_s=1e4) as it:
        await ready(it, router)
        it.links[0]._reconnector._backoff = Backoff(1e4, 1e4)
        await router.kill()
        await eventually(lambda: not it.ready)
        await router.start()

        def picked() -> bool:
            with suppress(UnavailableError):
                return it.pick().address == router.address
            return False

        await eventually(picked)


async def test_routers_come_and_go_in_dns_and_their_sessions_end_by_themselves() -> None:
    async with leak_check(), running_name_server() as server:
        first, second = Router("x"), Router("x")
        await first.start("127.0.0.2")
        second.port = first.port
        await second.start("127.0.0.3")
        server.records["routers.test", "A"] = ["127.0.0.2"]
        target = f"dns:routers.test:{first.port}"
        at_first, at_second = f"127.0.0.2:{first.port}", f"127.0.0.3:{first.port}"
        async with upstream(target, nameserver=server.address) as it:
            session, address, number = opened(it)
            assert address == at_first
            server.records["routers.test", "A"] = ["127.0.0.3"]
            await eventually(
                lambda: states(it) == {at_first: PeerState.DRAINING, at_second: PeerState.READY}
            )
            assert it.pick().address == at_second
            (link,) = [link for link in it.links if link.address == at_first]
            link.draft(number, inference_pb2.SessionUp())
            await eventually(lambda: len(session.frames) == 2)
            link.forget(number)
            await eventually(lambda: set(states(it)) == {at_second})
            assert not session.lost
        await first.kill()
        await second.kill()


async def test_operators_see_the_routers() -> None:
    router, metrics = Router("x"), Metrics("edge")
    async with up(router), upstream(router.address, metrics=metrics) as it:
        await ready(it, router)
        labels = {"router": router.address, "region": "x"}

        def sample(name: str, **state: str) -> float | None:
            name = f"outrider_edge_router_{name}"
            return metrics.registry.get_sample_value(name, labels | state)

        await eventually(lambda: sample("state", state="ready") == 1.0)
        assert sample("state", state="down") == 0.0
        assert 0.0 < (sample("rtt_seconds") or 0.0) < 10.0
        assert sample("quarantines") == 0.0
        assert metrics.registry.get_sample_value("outrider_edge_routers", {"state": "ready"}) == 1.0
