"""A scripted replica and a router, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc.aio

from outrider.config_following import ConfigSource
from outrider.errors import OutriderError
from outrider.process import Ports
from outrider.rpc import HealthControl, add_health, bind, make_channel, make_server
from outrider.testing import free_tcp_port, leak_check
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc, router_pb2, router_pb2_grpc
from services.router.app import serve
from services.router.config import RouterConfig
from services.router.fleet.entries import ReplicaConfig
from services.router.placement.types import PlacementPolicy
from tests.router.relay.mesh import IDENTITY, commit, opening
from tests.service import running_service

DIGEST = b"\x01" * 32
CODECS = (common_pb2.TOKEN_CODEC_VARINT, common_pb2.TOKEN_CODEC_U16)
Context = grpc.aio.ServicerContext[Any, Any]


class Replica(inference_pb2_grpc.InferenceServiceServicer):
    """An InferenceService that says nothing but what a test tells it to say."""

    def __init__(self, name: str, region: str = "us", tls: Tls = PLAINTEXT) -> None:
        self.name, self.region, self.tls = name, region, tls
        self.model, self.digest, self.identity = "m", DIGEST, IDENTITY
        self.max_context_tokens = 0
        self.static_prefixes: tuple[inference_pb2.StaticPrefix, ...] = ()
        self.address = ""
        self.received: asyncio.Queue[inference_pb2.SessionUp] = asyncio.Queue()
        self.num_streams = 0
        self.drains: list[inference_pb2.DrainRequest] = []
        self._outgoing: asyncio.Queue[inference_pb2.SessionDown | OutriderError] = asyncio.Queue()
        self._loads: asyncio.Queue[inference_pb2.WatchLoadResponse] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None
        self.health: HealthControl | None = None
        self.host, self.port = "127.0.0.1", 0

    async def start(self) -> None:
        """Listen; again on the same port after `kill`."""
        self._server = make_server(self.tls)
        self.register(self._server)
        self.health = add_health(self._server)
        self.port = bind(self._server, self.host, self.port or free_tcp_port(self.host), self.tls)
        self.address = f"{self.host}:{self.port}"
        self.health.set_serving(True)
        await self._server.start()

    def register(self, server: grpc.aio.Server) -> None:
        """What it serves."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)

    async def kill(self) -> None:
        """Break every stream and stop listening."""
        assert self._server is not None
        await self._server.stop(grace=None)

    def say(self, frame: inference_pb2.SessionDown) -> None:
        """Send a frame."""
        self._outgoing.put_nowait(frame)

    def give_up(self, error: OutriderError) -> None:
        """End the router's stream with this error."""
        self._outgoing.put_nowait(error)

    def report(self, **load: Any) -> None:
        """Send a load report."""
        self._loads.put_nowait(inference_pb2.WatchLoadResponse(**load))

    async def hear(self, kind: str) -> inference_pb2.SessionUp:
        """The next frame, which is to be of this kind."""
        async with asyncio.timeout(60):
            frame = await self.received.get()
        assert frame.WhichOneof("kind") == kind, frame
        return frame

    async def Generate(
        self, request_iterator: AsyncIterator[inference_pb2.GenerateRequest], context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.num_streams += 1
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                said = await self._outgoing.get()
                if isinstance(said, OutriderError):
                    raise said
                yield inference_pb2.GenerateResponse(frames=[said])
        finally:
            self.num_streams -= 1
            reader.cancel()

    async def _read(self, requests: AsyncIterator[inference_pb2.GenerateRequest]) -> None:
        async for request in requests:
            for frame in request.frames:
                self.received.put_nowait(frame)

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        load = inference_pb2.WatchLoadResponse(fixed_ms=10.0, row_ms=1.0, max_sessions=64)
        yield load
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout((request.max_interval_ms or 1e9) / 1000):
                    load = await self._loads.get()
            yield load

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        yield inference_pb2.WatchKvResponse()

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Context
    ) -> inference_pb2.DrainResponse:
        self.drains.append(request)
        self.report(fixed_ms=10.0, row_ms=1.0, max_sessions=64, draining=not request.undo)
        return inference_pb2.DrainResponse()

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        return inference_pb2.GetModelResponse(
            model=self.model,
            vocabulary_digest=self.digest,
            model_identity=self.identity,
            max_context_tokens=self.max_context_tokens,
            codecs=CODECS,
            replica=self.name,
            region=self.region,
            static_prefixes=self.static_prefixes,
        )


class Edge:
    """One Route stream, driven frame by frame."""

    def __init__(self, stub: router_pb2_grpc.RouterServiceAsyncStub) -> None:
        self.call = stub.Route()
        self._heard: deque[inference_pb2.SessionDown] = deque()

    async def send(self, frame: inference_pb2.SessionUp) -> None:
        """Write a frame."""
        await self.call.write(router_pb2.RouteRequest(frames=[frame]))

    async def hear(self, kind: str) -> inference_pb2.SessionDown:
        """The next frame, which is to be of this kind."""
        async with asyncio.timeout(60):
            frame = await self.next()
        assert frame is not None, "the stream is over"
        assert frame.WhichOneof("kind") == kind, frame
        return frame

    async def next(self) -> inference_pb2.SessionDown | None:
        """The next frame; None after the last."""
        if not self._heard:
            response = await self.call.read()
            if not isinstance(response, router_pb2.RouteResponse):
                return None
            self._heard.extend(response.frames)
        return self._heard.popleft()


class RouterUnderTest:
    """A running router as its clients see it."""

    def __init__(self, channel: grpc.aio.Channel, ports: Ports) -> None:
        self.stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(
            channel
        )
        self.channel = channel
        self.ports = ports

    def edge(self) -> Edge:
        """A new edge stream."""
        return Edge(self.stub)

    async def replicas(self) -> dict[str, router_pb2.Replica]:
        """The replica table by name."""
        answer = await self.stub.ListReplicas(router_pb2.ListReplicasRequest())
        return {replica.name: replica for replica in answer.replicas}

    async def state_of(self, name: str, state: router_pb2.ReplicaState.ValueType) -> None:
        """Until a replica is seen in this state."""
        async with asyncio.timeout(60):
            while (await self.replicas())[name].state != state:
                await asyncio.sleep(0.02)


QUICK: Mapping[str, Any] = {
    "port": 0,
    "region": "us",
    "default_model": "m",
    "seed": 1,
    "placement": PlacementPolicy(near_ms=0.0),
    "probe_interval_s": 0.05,
    "probe_timeout_s": 2.0,
    "max_backoff_s": 0.2,
    "drain_s": 0.0,
    "log_level": "error",
}
"""Settings of a router that need not be patient."""


@asynccontextmanager
async def running_router(*replicas: Replica, **settings: Any) -> AsyncIterator[RouterUnderTest]:
    """A router before these replicas, through its own `serve`, stopped at the end. Among the
    settings, `caller` is who calls it, by default nobody with a certificate, and `file` a
    configuration file that it follows."""
    caller = settings.pop("caller", PLAINTEXT)
    file = settings.pop("file", None)
    known = tuple(ReplicaConfig(r.name, r.region, r.address) for r in replicas)
    settings = {**QUICK, **settings}
    source = file and ConfigSource(RouterConfig, "router", file, settings, with_models=False)
    config = source.read().config if source else RouterConfig(**{"replicas": known, **settings})
    async with AsyncExitStack() as until_drained:
        async with running_service(serve, config, source=source) as ports:
            channel = make_channel(f"127.0.0.1:{ports.main}", tls=caller, role=Role.ROUTER)
            await until_drained.enter_async_context(channel)
            yield RouterUnderTest(channel, ports)


@asynccontextmanager
async def running_replicas(*replicas: Replica) -> AsyncIterator[None]:
    """Start these replicas, and stop them at the end."""
    for replica in replicas:
        await replica.start()
    try:
        yield
    finally:
        for replica in replicas:
            await replica.kill()


@asynccontextmanager
async def routed(*replicas: Replica, **settings: Any) -> AsyncIterator[RouterUnderTest]:
    """These replicas and a router before them; nothing of them is left at the end."""
    async with leak_check(), running_replicas(*replicas):
        async with running_router(*replicas, **settings) as router:
            yield router


async def started(edge: Edge, replica: Replica, number: int = 1) -> int:
    """A session that has committed; what the replica calls it."""
    await edge.send(opening(number))
    sent = await replica.hear("open")
    replica.say(commit(sent.session))
    await edge.hear("commit")
    return sent.session
