"""Time to the first committed token through the mesh, over our own protocol and over HTTP, against
calling the replica directly.

One client process, one mesh on the loopback with one replica. Calls take turns between the three
ways, and another one begins each time; every prompt begins with its own number, so no prefix is
reused. All ways use connections that are up: no handshake is in any time. The mesh's times start at
the client's chat call and hold its transport, the edge with its tokenization, the router and the
way back; the direct time starts when the opening frame, ids included, is made. The native client
decodes tokens and keeps a chat's state for resumption; the HTTP client only finds the text.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from bench.harness import Run, parser, start
from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.region_client import RegionClient
from bench.harness.replica import coder_of
from bench.peers.lineup import rotated
from outrider.cli.local import development_key
from outrider.client import Client, Committed, connect
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

SAMPLING = SamplingParams(max_tokens=4)
QUESTION = "Explain to a child what the moon does to the sea, and why it does so twice a day."
DIRECT, MESH, HTTP = "direct", "mesh", "mesh, over HTTP"
ADDED, ADDED_BY_HTTP = "added by the mesh", "added by HTTP"
AIM_HTTP_MS = 2.0
_WARM_UPS = 6

_numbers = itertools.count(1)

Samples = Mapping[str, Sequence[float]]
"""Milliseconds to the first committed token by way, turn by turn."""


def messages() -> list[Message]:
    """A chat that no earlier one shares a prefix block with."""
    return [Message("system", f"{next(_numbers):06d} is this chat."), Message("user", QUESTION)]


async def through_mesh(client: Client) -> float:
    """One chat over QUIC."""
    began = time.perf_counter()
    async with client.chat(messages(), sampling=SAMPLING) as chat:
        async for event in chat:
            if isinstance(event, Committed):
                first = time.perf_counter()
                break
        await chat.result()
    return (first - began) * 1000


async def over_http(client: HttpClient) -> float:
    """One chat over HTTP. Raises RuntimeError if it fails."""
    asked = [{"role": it.role, "content": it.content} for it in messages()]
    body = {"messages": asked, "temperature": 0, "max_tokens": SAMPLING.max_tokens, "stream": True}
    done = Answer(began_at=time.perf_counter())
    await client.chat(body, done)
    if done.error:
        raise RuntimeError(done.error)
    return done.ttft_ms


async def direct(client: RegionClient, vocabulary: Vocabulary) -> float:
    """One session straight at the replica, ids ready."""
    ids = vocabulary.encode_chat(messages())
    reply = await client.generate(ids, SAMPLING, digest=vocabulary.digest)
    return reply.ttft_ms


async def measure(mesh: LocalMesh, vocabulary: Vocabulary, count: int) -> Samples:
    """Every way in turn, one call at a time."""
    replica = mesh.address(mesh.services("inference")[0]["name"])
    key = development_key.read(mesh.state_dir)
    http_port = mesh.state.service("edge")["http_port"]
    samples: dict[str, list[float]] = {DIRECT: [], MESH: [], HTTP: []}
    async with (
        connect(*mesh.edge, ca=mesh.ca, key=key) as client,
        HttpClient(mesh.state.host, http_port, key) as http,
        RegionClient(
            coder_of(vocabulary), replica, via_router=False, tls=mesh.tls("router")
        ) as region,
    ):
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            DIRECT: lambda: direct(region, vocabulary),
            MESH: lambda: through_mesh(client),
            HTTP: lambda: over_http(http),
        }
        for turn in range(-_WARM_UPS, count):
            for way in rotated(ways, turn):
                time_ms = await ways[way]()
                if turn >= 0:  # the first few warm all ways up
                    samples[way].append(time_ms)
    return samples


def report(run: Run, results: Mapping[str, Samples]) -> None:
    """Table and samples, by engine."""
    title = (
        "Time to the first committed token, ms: through edge and router (mesh) against asking the "
        "replica itself (direct); loopback"
    )
    table = run.table(title, "engine", "way", "n", "p50", "p95", "p99")
    for engine, samples in results.items():
        added = {
            ADDED: _differences(samples[MESH], samples[DIRECT]),
            ADDED_BY_HTTP: _differences(samples[HTTP], samples[MESH]),
        }
        for way, times in {**samples, **added}.items():
            tail = (table.quantile(times, share) for share in (0.95, 0.99))
            table.add(engine, way, len(times), table.median(times), *tail)
            run.samples(f"{engine}, {way}", times, unit="ms")
    table.note(f"Aim: at most {AIM_HTTP_MS:g} ms added by HTTP.")


def _differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def main() -> int:
    run = start("overhead", parser("overhead", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    results = {}
    for engine, count in (
        ("openvino", 30 if run.quick else 500),
        ("fake", 60 if run.quick else 1000),
    ):
        # Nothing compiles beside what is measured.
        ready = ("inference.prepare_first=true",)
        with local_mesh(engine=engine, regions="us-east", settings=ready, http=True) as mesh:
            results[engine] = asyncio.run(measure(mesh, vocabulary, count))
    report(run, results)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
