"""What the tokenizer service adds to the time to the first token: nothing to chats that the edge
tokenizes, its own time to those of clients that leave that to the region.

One mesh on the loopback, whose engine is fake and immediate. The two kinds of chats take turns with
requests straight at the service."""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from bench.harness import Run, median
from bench.harness.local_mesh import LocalMesh, local_mesh
from outrider.client import Client, Committed, connect
from outrider.models.chat import Message
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.tls import Role
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.service import REQUESTS

SAMPLING = SamplingParams(max_tokens=2)
QUESTION = "Explain to a child what the moon does to the sea, and why it does so twice a day."

_numbers = itertools.count(1)


def measure(run: Run) -> None:
    """Adds the table and figures."""
    table = run.table(
        "Time to the first committed token by who tokenizes, and of one request to the service, ms",
        "way",
        "median",
        "p95",
        "n",
    )
    with local_mesh(engine="fake", regions="us-east") as mesh:
        before = _num_requests(mesh)
        asyncio.run(_alternate(mesh, 20, edge_alone=True))
        run.figures["service_requests_of_edge_chats"] = _num_requests(mesh) - before
        found = asyncio.run(_alternate(mesh, 60 if run.quick else 300, edge_alone=False))
    for way, samples in found.items():
        table.add(way, table.median(samples), table.quantile(samples, 0.95), len(samples))
        run.samples(f"first token, {way}", samples, unit="ms")
    edge, region, alone = (median(samples) for samples in found.values())
    run.figures["text_only_added_ttft_ms"] = round(region - edge, 3)
    run.figures["service_alone_ms"] = round(alone, 3)


async def _alternate(mesh: LocalMesh, count: int, *, edge_alone: bool) -> dict[str, list[float]]:
    address = mesh.address(mesh.services("tokenizer")[0]["name"])
    channel = make_channel(address, tls=mesh.tls("router"), role=Role.TOKENIZER)
    async with connect(*mesh.edge, ca=mesh.ca) as client, channel:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        call = stub.Encode()

        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "edge tokenizes": lambda: _ttft(client, thin=False)
        }
        if not edge_alone:
            ways |= {
                "service tokenizes": lambda: _ttft(client, thin=True),
                "service alone": lambda: _alone(call),
            }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(-5, count):
            for way, ask in ways.items():
                took_ms = await ask()
                if turn >= 0:  # the first few warm all ways up
                    found[way].append(took_ms)
    return found


async def _alone(call: Any) -> float:
    """A request straight at the service, on an open stream."""
    turns = [common_pb2.ChatMessage(role=m.role, content=m.content) for m in _ask()]
    conversation = tokenizer_pb2.Conversation(messages=turns)
    begun_at = time.perf_counter()
    await call.write(tokenizer_pb2.EncodeRequest(conversation=conversation))
    await call.read()
    return (time.perf_counter() - begun_at) * 1e3


def _ask() -> list[Message]:
    return [Message("system", f"{next(_numbers):06d} is this chat."), Message("user", QUESTION)]


async def _ttft(client: Client, *, thin: bool) -> float:
    messages = _ask()
    begun_at = time.perf_counter()
    async with client.chat(messages, sampling=SAMPLING, thin=thin) as chat:
        async for event in chat:
            if isinstance(event, Committed):
                took_ms = (time.perf_counter() - begun_at) * 1e3
                break
        await chat.result()
    return took_ms


def _num_requests(mesh: LocalMesh) -> int:
    """What the service has been asked to encode."""
    port = mesh.services("tokenizer")[0]["admin_port"]
    url = f"http://{mesh.state.host}:{port}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    name = REQUESTS.replace(".", "_") + "_total{"
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith(name)))
