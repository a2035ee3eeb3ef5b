"""The table of all benchmarks: the record each makes, how it is run, what its figures depend on,
how long it takes. A new benchmark is one file that uses `bench.harness`, and one row here.

A record is stale when a file under its benchmark's `sources` has changed since it was made. By
default these are all services and the benchmark's own file or folder; one that measures less of the
project names less, so that a change elsewhere leaves its record fresh.
"""

from __future__ import annotations

from dataclasses import dataclass

SERVICES = ("outrider", "services", "protos")
PROMPTS = "bench/data/held_out"
SYSTEMS = ("bench/systems", "bench/peers")
"""Ours and others, as they are started and asked."""
COMPOSED_PROMPTS = (
    *("bench/harness/prompts.py", PROMPTS),
    *(f"bench/data/composed_{kind}.json" for kind in ("chat", "code", "document")),
)
"""Prompts that no run asks twice (bench.harness.prompts.PromptSupply)."""
SCALE_INPUTS = ("calls", "tick")
"""Records that the fleet simulation draws its durations from."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark: how one record is made."""

    record: str
    """`bench/results/RECORD.json`."""
    module: str
    flags: tuple[str, ...] = ()
    sources: tuple[str, ...] = SERVICES
    """Files and folders that its figures depend on, beside its own folder."""
    minutes: float = 5.0
    """Of a full run on two cores; used until a record says how long it took."""
    core_minutes: float = 0.0
    """Of its smaller run in `make bench-core`; 0 where it takes no part."""
    core_flags: tuple[str, ...] = ("--core",)
    peers: tuple[str, ...] = ()
    """What it compares with, where that is to be installed (bench.harness.series)."""

    @property
    def all_sources(self) -> tuple[str, ...]:
        """With its own folder, or file."""
        own = "/".join(self.module.split(".")[:2])
        return (*self.sources, own, f"{own}.py")

    def command(self, *, core: bool = False, quick: bool = False) -> tuple[str, ...]:
        """Module and flags."""
        flags = (*self.flags, *(self.core_flags if core else ()), *(("--quick",) if quick else ()))
        return (self.module, *flags)


def bench_of(record: str) -> Bench:
    """The benchmark that makes this record; one that is not in the table is called after its
    record."""
    return _BY_RECORD.get(record) or Bench(record, f"bench.{record}")


_ALL = (
    Bench(
        "exactness", "bench.exactness", sources=(*SERVICES, "bench/data"), minutes=20.0,
        core_minutes=4.0,
    ),
    Bench(
        "models", "bench.models", minutes=10.0,
        sources=(*SERVICES, PROMPTS, "tests/fidelity/models.py"),
    ),
    Bench(
        "fidelity", "bench.fidelity", minutes=8.0, core_minutes=8.0, core_flags=(),
        sources=("outrider/engines", "outrider/fidelity", "outrider/models", "bench/engine.py"),
    ),
    Bench(
        "tuning", "bench.tuning", sources=("outrider/engines", *SYSTEMS),
        minutes=8.0, core_minutes=3.0, peers=("llamacpp",),
    ),
    Bench(
        "inference", "bench.inference", sources=(*SERVICES, *SYSTEMS, *COMPOSED_PROMPTS),
        minutes=150.0, core_minutes=13.0, peers=("llamacpp", "ik_llamacpp"),
    ),
    Bench(
        "inference_documents", "bench.inference", ("--documents",), minutes=15.0,
        sources=(*SERVICES, *SYSTEMS, *COMPOSED_PROMPTS),
    ),
    Bench(
        "arrivals", "bench.arrivals", sources=(*SERVICES, *SYSTEMS, *COMPOSED_PROMPTS),
        minutes=40.0, peers=("llamacpp",),
    ),
    Bench(
        "prefix", "bench.prefix", sources=(*SERVICES, PROMPTS), minutes=1.5, core_minutes=1.5,
        core_flags=(),
    ),
    Bench(
        "kv", "bench.kv", minutes=12.0,
        sources=(
            *("outrider/codec", "outrider/engines", "outrider/wire.py", "services/inference"),
            *("bench/codec.py", "bench/relay", *COMPOSED_PROMPTS),
        ),
    ),
    Bench("overhead", "bench.overhead", minutes=3.0),
    Bench(
        "http", "bench.http", minutes=20.0, peers=("llamacpp",),
        sources=(*SERVICES, *SYSTEMS, *COMPOSED_PROMPTS, "bench/judges/environments.py"),
    ),
    Bench(
        "wan", "bench.wan", sources=(*SERVICES, "bench/relay", PROMPTS), minutes=45.0,
        core_minutes=12.0,
    ),
    Bench(
        "wan_pair", "bench.wan", ("--pair",), sources=(*SERVICES, "bench/relay", PROMPTS),
        minutes=12.0,
    ),
    Bench(
        "frontier", "bench.wan.frontier", sources=(*SERVICES, "bench/relay", "bench/data/tuning"),
        minutes=20.0,
    ),
    Bench("structured", "bench.structured", minutes=12.0),
    Bench("tick", "bench.tick", sources=(*SERVICES, *COMPOSED_PROMPTS), minutes=6.0),
    Bench(
        "engine", "bench.engine", sources=("outrider/engines", "outrider/models"), minutes=5.0
    ),
    Bench(
        "calls", "bench.scale.calls", sources=("outrider/engines", "outrider/models"), minutes=3.0
    ),
    Bench(
        "scale", "bench.scale", minutes=300.0, core_minutes=10.0,
        sources=(*SERVICES, *(f"bench/results/{name}.json" for name in SCALE_INPUTS)),
    ),
    Bench("router", "bench.router", minutes=6.0),
    Bench("cost", "bench.cost", minutes=25.0, peers=("smg", "vllm_router")),
    Bench(
        "routing", "bench.peers.routing", sources=(*SERVICES, "bench/scale/calls.py"),
        minutes=30.0, peers=("smg", "dynamo"),
    ),
    Bench(
        "faults", "bench.faults", sources=(*SERVICES, "bench/relay"), minutes=40.0,
        core_minutes=4.0,
    ),
    Bench("hostile", "bench.hostile", minutes=28.0),
    Bench("hostile_http", "bench.hostile", ("--http",), minutes=30.0),
    Bench("soak", "bench.soak", sources=(*SERVICES, PROMPTS), minutes=15.0),
    Bench(
        "embeddings", "bench.embeddings", minutes=25.0, core_minutes=8.0,
        sources=(
            *("outrider/codec", "outrider/engines", "outrider/models", "services", "protos"),
            *("bench/judges/environments.py", "bench/peers/llamacpp.py", PROMPTS),
        ),
        peers=("llamacpp",),
    ),
    Bench("lossy", "bench.lossy", sources=(*SERVICES, PROMPTS), minutes=10.0),
    Bench("prediction", "bench.prediction", sources=(*SERVICES, PROMPTS), minutes=6.0),
    Bench(
        "tokenizer", "bench.tokenizer", sources=(*SERVICES, PROMPTS), minutes=12.0,
        core_minutes=3.0,
    ),
    Bench("tokenizer_bulk", "bench.tokenizer.bulk", minutes=15.0),
    Bench("tokenizer_service", "bench.tokenizer.service"),
    Bench(
        "codec", "bench.codec",
        sources=(
            *("outrider/codec", "outrider/wire.py", "outrider/models", "protos"),
            *("services/edge/wire", PROMPTS),
        ),
        minutes=1.0,
    ),
    Bench("sampling", "bench.sampling", sources=("outrider/sampling",), minutes=1.0),
)  # fmt: skip
_BY_RECORD = {bench.record: bench for bench in _ALL}

CORE = tuple(
    _BY_RECORD[name]
    for name in (
        "exactness",
        "fidelity",
        "tuning",
        "inference",
        "wan",
        "prefix",
        "faults",
        "scale",
        "tokenizer",
    )
)
"""What `make bench-core` runs, in this order."""
MAX_CORE_MINUTES = 60.0
