"""A router and an edge in front of two replicas, of which the one that serves a chat is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.mesh import HOST, Service
from outrider.client import (
    ChatResult,
    Client,
    Committed,
    Message,
    ReconnectPolicy,
    SamplingParams,
    connect,
)
from outrider.client.wire import SpeculationName
from outrider.rpc import make_channel
from outrider.v1 import router_pb2, router_pb2_grpc

ASK = [Message("user", "Write a short story about a lighthouse keeper and a whale.")]
_BEGUN_TOKENS = 20
"""After so many tokens the replica is killed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes a replica compute as it does."""

    settings: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class SmallMesh:
    """One router and one edge in front of two replicas."""

    folder: Path
    replicas: tuple[Service, ...]
    router: Service
    client: Client
    num_tokens: int
    """Of each reply: enough that it is not over before its replica is killed."""

    async def listed(self) -> list[router_pb2.Replica]:
        """The replicas as the router sees them."""
        async with make_channel(self.router.address) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub
            stub = router_pb2_grpc.RouterServiceStub(channel)
            return list((await stub.ListReplicas(router_pb2.ListReplicasRequest())).replicas)

    async def ask(self, *, kills: bool = False) -> ChatResult:
        """A chat; with `kills`, its replica is lost in the middle of the reply."""
        sampling = SamplingParams(max_tokens=self.num_tokens, ignore_eos=True)
        # What drafts know from the chat before would end the reply before its replica is killed.
        drafts: SpeculationName = "off" if kills else "on"
        async with self.client.chat(ASK, sampling=sampling, speculation=drafts) as chat:
            async for event in chat:
                if kills and isinstance(event, Committed) and event.upto >= _BEGUN_TOKENS:
                    kills = False
                    await self._kill_serving()
            return await chat.result()

    async def allow_inexact(self) -> None:
        """The operator permits it: every replica is there again, and another router process."""
        self.router.kill()
        for replica in self.replicas:
            if not replica.is_running:
                replica.spawn()
        self.router = router_of(self.replicas, self.folder, self.router.port, allows_inexact=True)
        self.router.spawn()
        await asyncio.gather(*(service.ready() for service in (*self.replicas, self.router)))
        async with asyncio.timeout(30):
            while any(it.state != router_pb2.REPLICA_STATE_READY for it in await self.listed()):
                await asyncio.sleep(0.02)

    async def _kill_serving(self) -> None:
        while True:
            # Stopped, they cannot end the reply while the router is asked who serves it.
            self._signal(signal.SIGSTOP)
            serving = await self._serving()
            assert serving, "the chat was over too soon"
            if len(serving) == 1:
                break
            # On a busy machine a chat may have moved, and the replica that it left still ends its
            # run.
            self._signal(signal.SIGCONT)
        next(it for it in self.replicas if it.name == serving[0]).kill()
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for replica in self.replicas:
            if replica.is_running:
                replica.signal(number)

    async def _serving(self) -> list[str]:
        """The replicas that have sessions."""
        return [replica.name for replica in await self.listed() if replica.sessions]

    def end_router(self) -> None:
        self.router.end()


def router_of(
    replicas: Sequence[Service], folder: Path, port: int = 0, *, allows_inexact: bool = False
) -> Service:
    settings = {
        "region": "here",
        "replicas": tuple(
            {"name": it.name, "region": "here", "address": it.address} for it in replicas
        ),
        "failover": {"timeout_s": 2.0},
        "tenants": ({"name": "*", "allow_inexact": allows_inexact},),
    }
    return Service("router", "router", settings, folder, port)


@asynccontextmanager
async def small_mesh(
    folder: Path,
    *kinds: Kind,
    model: str = "",
    num_tokens: int = 1000,
    allows_inexact: bool = False,
) -> AsyncIterator[SmallMesh]:
    """A replica of each kind; `model` is served, the default one if it is empty."""
    replicas = tuple(
        Service(
            f"replica-{number}",
            "inference",
            {"replica": f"replica-{number}", "region": "here", "model": model, **kind.settings},
            folder,
            environment=kind.environment,
        )
        for number, kind in enumerate(kinds)
    )
    router = router_of(replicas, folder, allows_inexact=allows_inexact)
    edge = Service(
        "edge",
        "edge",
        {
            "name": "edge",
            "anonymous": True,
            "region": "here",
            "models": (model,) if model else (),
            "routers": (router.address,),
            "state_dir": str(folder),
            "drafter.model": "none",
            "reopen_s": 3.0,
        },
        folder,
    )
    async with AsyncExitStack() as stack:
        for group in (replicas, (router,), (edge,)):
            for service in group:
                stack.callback(service.end)
                service.spawn()
            await asyncio.gather(*(service.ready() for service in group))
        ca = folder / "tls" / "cert.pem"
        hasty = ReconnectPolicy(give_up_after_s=2.0)
        way = connect(HOST, edge.port, ca=ca, reconnect=hasty)
        client = await stack.enter_async_context(way)
        mesh = SmallMesh(folder, replicas, router, client, num_tokens)
        stack.callback(mesh.end_router)
        yield mesh
