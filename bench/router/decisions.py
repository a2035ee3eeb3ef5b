"""How long placement takes, with how much known of how many replicas."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.replica import PrefillLimits, Replica, ReplicaLoad, ServedModel
from services.router.placement.placement import Placement
from services.router.placement.types import PlacementPolicy, PlacementRequest
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits

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
    prefill_limits=PrefillLimits(256, 12, 40.0, 1.8, 1.25),  # a replica's defaults
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is known."""

    replicas: int
    prefixes: int

    def __str__(self) -> str:
        return f"{self.replicas} x {self.prefixes}"


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
    request = PlacementRequest(_MODEL.name, _MODEL.vocabulary_digest, len(ids) // 4)
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
