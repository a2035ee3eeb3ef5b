"""A model without replicas, before real services: its chats wait until one is started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from httpx2 import AsyncClient

from bench.harness.name_server import NameServer, running_name_server
from outrider.client import Message, SamplingParams
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.peers.membership import DiscoveryPolicy
from outrider.testing import free_tcp_port
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from services.router.admission.policy import WakeUpPolicy
from services.router.fleet.entries import ReplicaTarget
from tests.edge.integration.chat_routes import CHAT
from tests.mesh import MODEL, Mesh, model_of, running_mesh, running_replica
from tests.router.integration.test_app import get

HOST = "127.0.0.2"
ASK = [Message("user", "hello, hello, hello")]
SAMPLING = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=7)
SEEDED = {"seed": 7, "max_tokens": 40}
EDGE = {
    "http": HttpConfig(port=0, comment_s=0.05),
    "access": AccessConfig(http_anonymous=True),
}
DESIRED = f'outrider_router_desired_replicas{{model="{MODEL}",region="us"}}'


def asleep(server: NameServer, port: int) -> dict[str, Any]:
    """Settings of a router whose replicas are in DNS: none is, at first."""
    return {
        "replicas": (),
        "replica_targets": (ReplicaTarget(f"dns:replicas.test:{port}", "us"),),
        "discovery": DiscoveryPolicy((server.address,), interval_s=0.05, grace_s=0.1),
        "wake_up": WakeUpPolicy((MODEL,)),
    }


@asynccontextmanager
async def started(words: Vocabulary, server: NameServer, port: int) -> AsyncIterator[None]:
    """What an autoscaler does: a replica, which is in DNS from then on."""
    options = FakeOptions(vocabulary_size=words.size, min_rows=2, repetition=1.0)
    model = model_of(words, FakeEngine(options))
    async with running_replica(model, replica="a", region="us", host=HOST, port=port):
        server.records["replicas.test", "A"] = [HOST]
        yield


async def reply(mesh: Mesh, *, thin: bool = False) -> str:
    async with (
        mesh.client() as client,
        client.chat(ASK, sampling=SAMPLING, thin=thin) as chat,
    ):
        return (await chat.result()).text


async def wanted(mesh: Mesh, value: int) -> None:
    """Until the router says that there should be so many replicas."""
    async with asyncio.timeout(60):
        while f"{DESIRED} {value}.0" not in await get(mesh.routers[0].ports.admin, "/metrics"):
            await asyncio.sleep(0.02)


async def test_chats_wait_for_a_replica_and_get_the_reply_that_they_would_have_had(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with running_mesh(words, tmp_path / "awake", tokenizers=1, edge=EDGE) as mesh:
        expected = await reply(mesh)
        async with AsyncClient(base_url=f"http://127.0.0.1:{mesh.edges[0].ports.http}") as caller:
            answer = await caller.post(CHAT.path, json={**CHAT.body, **SEEDED})
            expected_http = CHAT.text(answer.json())
    port = free_tcp_port(HOST)
    async with (
        running_name_server() as server,
        running_mesh(
            words,
            tmp_path / "asleep",
            replicas=0,
            tokenizers=1,
            edge=EDGE,
            router=asleep(server, port),
        ) as mesh,
        AsyncClient(base_url=f"http://127.0.0.1:{mesh.edges[0].ports.http}", timeout=60) as caller,
    ):
        assert "200 OK" in await get(mesh.routers[0].ports.admin, "/ready"), "or no edge comes"
        await wanted(mesh, 0)
        waiting = [asyncio.create_task(reply(mesh, thin=thin)) for thin in (False, True)]
        async with caller.stream("POST", CHAT.path, json={**CHAT.streamed, **SEEDED}) as answer:
            assert answer.status_code == 200
            had, pieces = b"", answer.aiter_bytes()
            while b": still here" not in had:
                had += await anext(pieces)
            await wanted(mesh, 1)
            assert not any(task.done() for task in waiting)
            async with started(words, server, port):
                async for piece in pieces:
                    had += piece
                assert await asyncio.gather(*waiting) == [expected] * 2
                assert CHAT.text_of(had) == expected_http
