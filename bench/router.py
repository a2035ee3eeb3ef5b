"""What a router costs: a decision by fleet and knowledge, and a hop.

Decisions are those of the router's own placement and prefix index, on a fleet made up of numbers:
every prefix is a prompt of 60 blocks, of which 30 are shared by the prompts of its group, held by
one or two replicas. What is asked for is one of these prompts with a new question behind it. The
hop is measured over gRPC on the loopback, with the fake engine as replica. What it costs to relay a
token is measured by `bench.cost`.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from bench.harness import Run, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.region_client import RegionClient
from bench.harness.replica import coder_of
from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from outrider.sampling.params import SamplingParams
from services.router.fleet.replica import PrefillLimits, Replica, ReplicaLoad, ServedModel
from services.router.placement.placement import Placement
from services.router.placement.types import PlacementPolicy
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.session_request import SessionRequest

BLOCK = 16
_SHARED_BLOCKS = 30
_OWN_BLOCKS = 30
_PROMPTS_PER_GROUP = 5
_QUESTION_TOKENS = 40
_VOCABULARY = 49_152
_MODEL = ServedModel(
    "m",
    b"\x01" * 32,
    block_tokens=BLOCK,
    prefill_limits=PrefillLimits(256, 12, 40.0, 8.0, 1.25),  # a replica's defaults
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is known."""

    replicas: int
    prefixes: int

    def __str__(self) -> str:
        return f"{self.replicas} x {self.prefixes}"


SIZES = (Size(64, 10_000), Size(1000, 100_000))
QUICK = (Size(8, 200), Size(64, 2000))


@dataclass(frozen=True, slots=True)
class DecisionTimings:
    """Milliseconds, decision by decision."""

    decide: list[float]
    """A prompt seen for the first time by this router: all of it hashed."""
    again: list[float]
    """Prompts whose beginnings were asked for lately."""
    match: list[float]
    """The look-up in the prefix index alone, first time."""
    put: list[float]
    """Noting what was decided, beside the way of the session."""
    num_blocks: int
    bytes_per_block: float


class FleetTable:
    """Replicas as placement reads them."""

    def __init__(self, count: int, rng: Random) -> None:
        self.rows = {f"r{n}": _replica(f"r{n}", n % 12, rng) for n in range(count)}
        self.changed: set[str] = set()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.rows.values())

    def find(self, name: str) -> Replica | None:
        """The replica of that name."""
        return self.rows.get(name)

    def report(self, name: str, rng: Random, now: float) -> None:
        """A load report comes in."""
        row = self.rows[name]
        row.load, row.reported_at = _load(rng), now
        self.changed.add(name)


def measure(size: Size, rounds: int) -> DecisionTimings:
    """Decide `rounds` times, with load reports in between."""
    rng = Random(1)
    fleet = FleetTable(size.replicas, rng)
    index = PrefixIndex(PrefixIndexLimits(max_blocks=1 << 23))
    policy = PlacementPolicy()
    placement = Placement(fleet, index, policy, Random(2))
    before = _resident_bytes()
    prompts = _fill(index, placement, size, rng, rounds)
    per_block = (_resident_bytes() - before) / index.num_blocks
    timings = DecisionTimings([], [], [], [], index.num_blocks, per_block)
    for number, ids in enumerate(prompts):
        now = 100.0 + number * 0.01
        fleet.report(f"r{rng.randrange(size.replicas)}", rng, now)
        _decide(timings, index, placement, ids, number, now)
        index.memo.clear()
        began = time.perf_counter()
        index.match(index.prompt(ids, b""), BLOCK, (1 << size.replicas) - 1)
        timings.match.append((time.perf_counter() - began) * 1e3)
    return timings


def _decide(
    timings: DecisionTimings,
    index: PrefixIndex,
    placement: Placement,
    ids: bytes,
    number: int,
    now: float,
) -> None:
    request = SessionRequest(_MODEL.name, _MODEL.vocabulary_digest, len(ids) // 4)
    first = time.perf_counter()
    prompt = index.prompt(ids, b"")
    decision = placement.decide(replace(request, prompt=prompt), now)
    second = time.perf_counter()
    placement.put(number, replace(request, prompt=prompt), decision, now)
    third = time.perf_counter()
    placement.release(number)
    timings.decide.append((second - first) * 1e3)
    timings.put.append((third - second) * 1e3)
    first = time.perf_counter()
    placement.decide(replace(request, prompt=index.prompt(ids, b"")), now)
    timings.again.append((time.perf_counter() - first) * 1e3)


def _fill(
    index: PrefixIndex, placement: Placement, size: Size, rng: Random, rounds: int
) -> list[bytes]:
    """Let the index know the prefixes; returns prompts that begin with some of them."""
    owners = [placement.owner(f"r{n}") for n in range(size.replicas)]
    root = root_hash(b"")
    asked: list[bytes] = []
    every = max(1, size.prefixes // rounds)
    shared: list[int] = []
    for number in range(size.prefixes):
        if number % _PROMPTS_PER_GROUP == 0:
            shared = _tokens(rng, _SHARED_BLOCKS * BLOCK)
        ids = shared + _tokens(rng, _OWN_BLOCKS * BLOCK)
        blocks = list(block_hashes(ids, BLOCK, b""))
        for owner in rng.sample(owners, rng.choice((1, 1, 2))):
            index.store(owner, root, blocks)
        if number % every == 0 and len(asked) < rounds:
            whole = ids + _tokens(rng, _QUESTION_TOKENS)
            asked.append(struct.pack(f"<{len(whole)}I", *whole))
    return asked


def _tokens(rng: Random, count: int) -> list[int]:
    return rng.choices(range(_VOCABULARY), k=count)


def _replica(name: str, region: int, rng: Random) -> Replica:
    return Replica(
        name=name,
        region=f"region-{region}",
        address="host:1",
        expected_model="",
        health=PeerHealth(HealthPolicy(), 0.0, PeerState.READY),
        rtt=RoundTrip(1.0 + 20.0 * region),
        model=_MODEL,
        load=_load(rng),
        reported_at=1.0,
    )


def _load(rng: Random) -> ReplicaLoad:
    return ReplicaLoad(
        running_sessions=rng.randrange(16),
        queued_prompt_tokens=rng.choice((0, 0, 500, 2000)),
        fixed_ms=10.0,
        row_ms=0.1,
        max_sessions=32,
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


async def hop_ms(mesh: LocalMesh, vocabulary: Vocabulary, pairs: int) -> tuple[list[float], ...]:
    """Milliseconds to the first token, straight and through the router, by turns."""
    direct, routed = [], []
    sampling, coder = SamplingParams(max_tokens=2), coder_of(vocabulary)
    replica = mesh.address(mesh.services("inference")[0]["name"])
    async with (
        RegionClient(coder, replica, via_router=False, tls=mesh.tls("router")) as one,
        RegionClient(coder, mesh.address("router"), via_router=True, tls=mesh.tls("edge")) as two,
    ):
        for turn in range(-20, pairs):
            ids = [turn % 1000 + 100, *range(200, 260)]  # no prefix block is shared
            times = []
            for client in (one, two):
                reply = await client.generate(ids, sampling, digest=vocabulary.digest)
                times.append(reply.ttft_ms)
            if turn >= 0:  # the first few warm both ways up
                direct.append(times[0])
                routed.append(times[1])
    return direct, routed


def decided(run: Run) -> None:
    """Decisions by size."""
    table = run.table(
        "Time to place a prompt of 1,000 tokens, 960 of them cached on some replica, ms",
        "replicas x known prefixes",
        "part",
        "n",
        "mean",
        "p50",
        "p99",
    )
    memory = run.table(
        "Memory of the router's prefix index",
        "replicas x known prefixes",
        "blocks",
        "bytes per block",
    )
    for size in QUICK if run.quick else SIZES:
        timings = measure(size, 200 if run.quick else 2000)
        for part, times in _parts(timings).items():
            p50, p99 = table.median(times), table.quantile(times, 0.99)
            table.add(str(size), part, len(times), fmean(times), p50, p99)
            run.samples(f"{part}, {size}", times, unit="ms")
        memory.add(str(size), timings.num_blocks, round(timings.bytes_per_block))


def _parts(timings: DecisionTimings) -> dict[str, list[float]]:
    return {
        "decision, prompt not seen before": timings.decide,
        "decision, prompt seen lately": timings.again,
        "of it: look-up in the prefix index": timings.match,
        "noting it afterwards": timings.put,
    }


def hopped(run: Run) -> None:
    """A router between client and replica."""
    table = run.table(
        "Time to first token with and without a router in between, ms: loopback, fake engine",
        *("way", "n", "p50", "p95", "p99"),
    )
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    with local_mesh(engine="fake", regions="us-east") as mesh:
        direct, routed = asyncio.run(hop_ms(mesh, vocabulary, 100 if run.quick else 1000))
    added = [b - a for a, b in zip(direct, routed, strict=True)]
    for way, times in (("straight", direct), ("through the router", routed), ("added", added)):
        tail = (table.quantile(times, share) for share in (0.95, 0.99))
        table.add(way, len(times), table.median(times), *tail)
        run.samples(f"hop, {way}", times, unit="ms")


def main() -> int:
    run = start("router", parser("router", __doc__ or "").parse_args())
    decided(run)
    hopped(run)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
