"""Time to the first committed token through the mesh against calling the replica directly.

One client process, one mesh on the loopback with one replica. Calls alternate between the two
ways; every prompt begins with its own number, so no prefix is reused. Both ways use connections
that are up: no handshake is in either time. The mesh's time starts at the client's chat call and
holds QUIC, the edge with its tokenization, the router and the way back; the direct time starts
when the opening frame, ids included, is made.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from bench.harness import Run, median, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.region_client import RegionClient
from outrider.client import Client, Committed, connect
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

SAMPLING = SamplingParams(max_tokens=4)
QUESTION = "Explain to a child what the moon does to the sea, and why it does so twice a day."

_numbers = itertools.count(1)


def messages() -> list[Message]:
    """A chat that no earlier one shares a prefix block with."""
    return [Message("system", f"{next(_numbers):06d} is this chat."), Message("user", QUESTION)]


@dataclass(slots=True)
class Samples:
    """Milliseconds to the first committed token, pair by pair."""

    direct: list[float] = field(default_factory=list)
    mesh: list[float] = field(default_factory=list)

    @property
    def added(self) -> list[float]:
        return [m - d for m, d in zip(self.mesh, self.direct, strict=True)]


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


async def direct(client: RegionClient, vocabulary: Vocabulary) -> float:
    """One session straight at the replica, ids ready."""
    ids = vocabulary.encode_chat(messages())
    reply = await client.generate(ids, SAMPLING, digest=vocabulary.digest)
    return reply.ttft_ms


async def measure(mesh: LocalMesh, vocabulary: Vocabulary, pairs: int) -> Samples:
    """Alternate the two ways, one call at a time."""
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    replica = mesh.address(mesh.services("inference")[0]["name"])
    samples = Samples()
    async with (
        connect(*mesh.edge, ca=mesh.ca) as client,
        RegionClient(coder, replica, via_router=False, tls=mesh.tls("router")) as region,
    ):
        for turn in range(-5, pairs):
            one, two = await direct(region, vocabulary), await through_mesh(client)
            if turn >= 0:  # the first few warm both ways up
                samples.direct.append(one)
                samples.mesh.append(two)
    return samples


def report(run: Run, results: dict[str, Samples]) -> None:
    columns = ("engine", "way", "n", "p50", "p95", "p99")
    title = (
        "Time to the first committed token, ms: through edge and router (mesh) against asking the "
        "replica itself (direct); loopback"
    )
    table = run.table(title, *columns)
    for engine, samples in results.items():
        ways = {"direct": samples.direct, "mesh": samples.mesh, "added": samples.added}
        for way, times in ways.items():
            tail = (table.quantile(times, share) for share in (0.95, 0.99))
            table.add(engine, way, len(times), table.median(times), *tail)
            run.samples(f"{engine}, {way}", times, unit="ms")
        run.figures[f"added_ttft_ms_{engine}"] = round(median(samples.added), 2)
    run.figures["added_ttft_ms"] = run.figures["added_ttft_ms_openvino"]


def main() -> int:
    arguments = parser("overhead", __doc__ or "").parse_args()
    run = start("overhead", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    results = {}
    for engine, pairs in (
        ("openvino", 40 if run.quick else 500),
        ("fake", 100 if run.quick else 1000),
    ):
        # Nothing compiles beside what is measured.
        ready = ("inference.prepare_first=true",)
        with local_mesh(engine=engine, regions="us-east", settings=ready) as mesh:
            results[engine] = asyncio.run(measure(mesh, vocabulary, pairs))
    report(run, results)
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
