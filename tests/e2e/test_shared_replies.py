"""HTTP streams with an idempotency key before two processes of an edge that share a Redis: a client
that comes back reaches either, and one process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from httpx2 import AsyncClient, HTTPError, Limits

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.models.catalog import DEFAULT_MODEL
from outrider.testing import eventually
from tests.e2e.test_processes import by_worker, workers
from tests.edge.http.asking import events_of
from tests.edge.integration.chat_routes import CHAT
from tests.redis_server import redis_server

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 200
CALL_MS = 10.0
"""A reply lasts for seconds: it is not over before its client has left, or its process is dead."""
NUM_STREAMS = 12
SECRET = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    secret = tmp_path_factory.mktemp("secrets") / "replies"
    secret.write_text(SECRET)
    with (
        redis_server() as redis,
        local_mesh(
            engine="fake",
            regions="here",
            http=True,
            shape=("--edge-processes", "2"),
            settings=(
                f"edge.shared_replies.url={redis.url}",
                f"edge.shared_replies.key_file={secret}",
                "edge.shared_replies.timeout_ms=5000",
                "edge.access.http_anonymous=true",
                "edge.drafter.model=none",
                f"inference.fake_call_ms={CALL_MS}",
            ),
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def references() -> list[ReferenceChat]:
    return make_reference_chats("fake", num_tokens=NUM_TOKENS)


def body_of(reference: ReferenceChat) -> dict[str, Any]:
    sampling = reference.sampling
    return {
        "model": DEFAULT_MODEL.name,
        "messages": [{"role": "user", "content": reference.prompt}],
        "stream": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,  # else the model's own
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "ignore_eos": True,
        "speculation": "off",
    }


@asynccontextmanager
async def new_connections(mesh: LocalMesh) -> AsyncIterator[AsyncClient]:
    """A client of which each request is a connection of its own."""
    host, port = mesh.state.host, mesh.state.service("edge")["http_port"]
    limits = Limits(max_keepalive_connections=0)
    headers = {"x-outrider-client": "ab" * 16}
    async with AsyncClient(
        base_url=f"http://{host}:{port}", limits=limits, timeout=120, headers=headers
    ) as client:
        yield client


class Stream:
    """One stream, over all the connections that it takes."""

    def __init__(self, client: AsyncClient, reference: ReferenceChat, key: str) -> None:
        self.client = client
        self.reference = reference
        self.key = key
        self.text = ""
        self.last_id = ""
        self.num_requests = 0

    async def read(self, num_chars: int | None = None) -> None:
        """Read behind what was read, until there is so much text; None: to the end."""
        self.num_requests += 1
        headers = {"Idempotency-Key": self.key}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        unread = b""
        body = body_of(self.reference)
        async with self.client.stream("POST", CHAT.path, json=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for piece in answer.aiter_bytes():
                unread += piece
                whole, cut, unread = unread.rpartition(b"\n\n")
                self.text += CHAT.text_of(whole + cut)
                ids = [it["id"] for it in events_of(whole + cut) if "id" in it] if whole else []
                self.last_id = ids[-1] if ids else self.last_id
                if num_chars is not None and len(self.text) >= num_chars:
                    return

    async def read_whole(self) -> None:
        """To the end, as often as the connection breaks."""
        while True:
            try:
                await self.read()
                return
            except HTTPError:
                continue

    def check(self) -> None:
        """All of it came once."""
        assert self.text == self.reference.text


def streams_of(client: AsyncClient, references: list[ReferenceChat], prefix: str) -> list[Stream]:
    return [
        Stream(client, references[number % len(references)], f"{prefix}-{number}")
        for number in range(NUM_STREAMS)
    ]


def num_tokens(mesh: LocalMesh) -> float:
    """Tokens of replies that both processes have had computed."""
    return sum(by_worker(mesh, "edge", "outrider_edge_tokens_total").values())


async def test_clients_that_come_back_find_their_replies_whichever_process_has_them(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    before = num_tokens(mesh)
    async with new_connections(mesh) as client:
        streams = streams_of(client, references, "cut")
        for num_chars in (50, 150, 300):
            await asyncio.gather(*(it.read(num_chars) for it in streams))
        await asyncio.gather(*(it.read_whole() for it in streams))
    for stream in streams:
        stream.check()
    computed = NUM_STREAMS * NUM_TOKENS
    await eventually(lambda: num_tokens(mesh) - before >= computed)
    assert num_tokens(mesh) - before == computed, "some of them twice"


async def test_a_process_that_is_killed_costs_a_pause(
    mesh: LocalMesh, references: list[ReferenceChat]
) -> None:
    parent = mesh.state.service("edge")["pid"]
    async with new_connections(mesh) as client:
        streams = streams_of(client, references, "killed")
        reading = [asyncio.create_task(it.read_whole()) for it in streams]
        while not all(len(it.text) > 50 for it in streams):
            await asyncio.sleep(0.01)
        os.kill(workers(parent)[0], signal.SIGKILL)
        await asyncio.gather(*reading)
    for stream in streams:
        stream.check()
    assert max(it.num_requests for it in streams) > 1
