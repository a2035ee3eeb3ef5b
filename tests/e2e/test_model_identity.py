"""Two replicas behind one name: the one that serves a chat is killed, or its weights differ."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.faults.fleet import HOST, Service
from outrider.client import (
    ChatResult,
    Client,
    Committed,
    Message,
    ReconnectPolicy,
    SamplingParams,
    connect,
)
from outrider.engines.openvino.convert import converted, derived_name
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT
from outrider.errors import NoReplicaError
from outrider.model_identity import short_form
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.disk.derived import MANIFEST
from outrider.models.store import ModelStore
from outrider.rpc import make_channel
from outrider.v1 import router_pb2, router_pb2_grpc
from services.inference.app import load_model
from services.inference.config import InferenceConfig
from tests.router.relay.scripted import World

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

ASK = [Message("user", "Write a short story about a lighthouse keeper and a whale.")]
SAMPLING = SamplingParams(max_tokens=600, ignore_eos=True)
_BEGUN_TOKENS = 20
"""After so many tokens the replica is killed."""


@dataclass(frozen=True, slots=True)
class SmallMesh:
    """One router and one edge in front of two replicas."""

    replicas: tuple[Service, ...]
    router: Service
    client: Client

    async def listed(self) -> list[router_pb2.Replica]:
        """The replicas as the router sees them."""
        async with make_channel(self.router.address) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub
            stub = router_pb2_grpc.RouterServiceStub(channel)
            return list((await stub.ListReplicas(router_pb2.ListReplicasRequest())).replicas)

    async def ask(self, *, kills: bool = False) -> ChatResult:
        """A chat; with `kills`, its replica is lost in the middle of the reply."""
        async with self.client.chat(ASK, sampling=SAMPLING) as chat:
            async for event in chat:
                if kills and isinstance(event, Committed) and event.upto >= _BEGUN_TOKENS:
                    kills = False
                    await self._kill_busiest()
            return await chat.result()

    async def _kill_busiest(self) -> None:
        serving = max(await self.listed(), key=lambda replica: replica.sessions)
        assert serving.sessions == 1, "the chat was over too soon"
        next(it for it in self.replicas if it.name == serving.name).kill()


@asynccontextmanager
async def small_mesh(
    folder: Path, *, seeds: tuple[int, int], allows_inexact: bool = False
) -> AsyncIterator[SmallMesh]:
    """Replicas of fake engines of these seeds: another seed is another model."""
    replicas = tuple(
        Service(
            f"replica-{number}",
            "inference",
            {"replica": f"replica-{number}", "region": "here", "engine": "fake", "fake_seed": seed},
            folder,
        )
        for number, seed in enumerate(seeds)
    )
    router = Service(
        "router",
        "router",
        {
            "region": "here",
            "replicas": tuple(
                {"name": it.name, "region": "here", "address": it.address} for it in replicas
            ),
            "failover": {"timeout_s": 2.0},
            "tenants": ({"name": "*", "allow_inexact_failover": allows_inexact},),
        },
        folder,
    )
    edge = Service(
        "edge",
        "edge",
        {
            "name": "edge",
            "region": "here",
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
        yield SmallMesh(replicas, router, client)


async def test_an_equal_replica_goes_on_and_no_byte_differs(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, seeds=(0, 0)) as mesh:
        assert len({replica.model_identity for replica in await mesh.listed()}) == 1
        whole = await mesh.ask()
        interrupted = await mesh.ask(kills=True)
    assert (interrupted.text, interrupted.ids) == (whole.text, whole.ids)
    assert not whole.inexact and not interrupted.inexact


async def test_another_model_behind_the_name_does_not_go_on(tmp_path: Path) -> None:
    async with small_mesh(tmp_path, seeds=(0, 1)) as mesh:
        one, other = [replica.model_identity.hex()[:8] for replica in await mesh.listed()]
        assert one != other
        with pytest.raises(NoReplicaError) as caught:
            await mesh.ask(kills=True)
        message = caught.value.message
        for said in (one, other, "compute differently", "allow_inexact_failover"):
            assert said in message
        after = await mesh.ask()
    assert len(after.ids) == SAMPLING.max_tokens and not after.inexact, "new chats go anywhere"


async def test_where_the_operator_allows_it_another_model_goes_on_and_says_so(
    tmp_path: Path,
) -> None:
    async with small_mesh(tmp_path, seeds=(0, 1), allows_inexact=True) as mesh:
        result = await mesh.ask(kills=True)
        (left,) = [it for it in mesh.replicas if not it.num_kills]
        alone = await mesh.ask()
        counted = f'outrider_router_inexact_moves_total{{replica="{left.name}"}} 1.0'
        async with asyncio.timeout(10):
            while counted not in await mesh.router.metrics():
                pass
    assert result.inexact and result.replica == left.name
    assert len(result.ids) == SAMPLING.max_tokens
    assert not alone.inexact and result.ids[:_BEGUN_TOKENS] != alone.ids[:_BEGUN_TOKENS]


def load(store: ModelStore) -> bytes:
    """The identity of a replica that loads the default model from this store."""
    config = InferenceConfig(
        model_store=store.root, max_fixed_rows=0, warm_up_rows=0, num_blocks=16, threads=2
    )
    model = load_model(config)
    for engine in model.engines:
        engine.close()
    return model.identity


def change_a_weight(source: Path, folder: Path) -> None:
    """Copy a converted model with one bit of one weight flipped."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / MANIFEST).unlink()
    with (folder / "openvino_model.bin").open("r+b") as file:
        middle = file.seek(0, os.SEEK_END) // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 0x40]))


async def test_one_weight_that_was_changed_on_disk_is_another_model(
    model_store: ModelStore, tmp_path: Path
) -> None:
    """The model file and all names are the same; only what is computed is not."""
    original = converted(DEFAULT_MODEL, model_store).directory
    other = ModelStore(tmp_path / "other")
    for part in ("index", "blobs"):
        shutil.copytree(model_store.root / part, other.root / part)
    artifact = other.load(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256)
    name = derived_name(DEFAULT_LAYOUT)
    other.derived(artifact, name, lambda folder: change_a_weight(original, folder))
    known, changed = load(model_store), load(other)
    assert len(known) == len(changed) == 32 and known != changed
    world = World(1, identities={"near": known, "far": changed})
    world.open(1, seed=1, length=40)
    await world.tick("near")
    world.kill("near")
    await world.wait(31.0)
    error = world.chats[1].error
    assert isinstance(error, NoReplicaError) and short_form(changed) in error.message
    world.mesh.metrics.close()
