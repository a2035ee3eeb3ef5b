"""The table of all benchmarks: the record each makes, how it is run, what its figures depend on,
how long it takes. A new benchmark is one file that uses `bench.harness`, and one row here.

What a benchmark measures is found from its imports and the processes that it starts
(`bench.harness.sources`); a row adds the data that it reads from `bench/data` and `bench/results`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.harness.provenance import ROOT
from bench.harness.sources import files_of

PROMPTS = "bench/data/held_out"
UNSEEN_PROMPTS = "bench/data/test"
COMPOSED_PROMPTS = (
    PROMPTS,
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
    data: tuple[str, ...] = ()
    """Files and folders that it reads, besides those that its measured modules bring along."""
    minutes: float = 5.0
    """Minutes of a full run on two cores; used until a record says how long it took."""
    core_minutes: float = 0.0
    """Minutes of its smaller run in `make bench-core`; 0: it takes no part in that."""
    core_flags: tuple[str, ...] = ("--core",)
    peers: tuple[str, ...] = ()
    """Systems that it compares with, if they are installed (bench.harness.series)."""

    def sources(self, root: Path = ROOT) -> tuple[str, ...]:
        """Paths below `root` of all files that its figures depend on."""
        return files_of(self.module, self.data, root)

    def command(self, *, core: bool = False, quick: bool = False) -> tuple[str, ...]:
        """Module and flags."""
        flags = (*self.flags, *(self.core_flags if core else ()), *(("--quick",) if quick else ()))
        return (self.module, *flags)


def bench_of(record: str) -> Bench:
    """The benchmark that makes this record; one that is not in the table is called after its
    record."""
    return _BY_RECORD.get(record) or Bench(record, f"bench.{record}")


_ALL = (
    Bench("exactness", "bench.exactness", data=("bench/data",), minutes=20.0, core_minutes=4.0),
    Bench("models", "bench.models", minutes=10.0, data=(PROMPTS,)),
    Bench("fidelity", "bench.fidelity", minutes=8.0, core_minutes=8.0, core_flags=()),
    Bench("tuning", "bench.tuning", minutes=8.0, core_minutes=3.0, peers=("llamacpp",)),
    Bench(
        "inference", "bench.inference", data=COMPOSED_PROMPTS, minutes=150.0, core_minutes=13.0,
        peers=("llamacpp",),
    ),
    Bench(
        "inference_documents", "bench.inference", ("--documents",), minutes=15.0,
        data=COMPOSED_PROMPTS,
    ),
    Bench("arrivals", "bench.arrivals", data=COMPOSED_PROMPTS, minutes=40.0, peers=("llamacpp",)),
    Bench("kv", "bench.kv", minutes=12.0, data=COMPOSED_PROMPTS),
    Bench("kv_prediction", "bench.kv.prediction", minutes=9.0, data=COMPOSED_PROMPTS),
    Bench("overhead", "bench.overhead", minutes=3.0),
    Bench("starts", "bench.starts", minutes=5.0),
    Bench("http", "bench.http", minutes=20.0, peers=("llamacpp",), data=COMPOSED_PROMPTS),
    Bench("wan", "bench.wan", data=(UNSEEN_PROMPTS,), minutes=45.0, core_minutes=12.0),
    Bench("wan_pair", "bench.wan", ("--pair",), data=(UNSEEN_PROMPTS,), minutes=12.0),
    Bench("wan_datacenter", "bench.wan.datacenter", data=(UNSEEN_PROMPTS,), minutes=20.0),
    Bench("capacity", "bench.capacity", minutes=15.0),
    Bench("typing", "bench.typing", data=(UNSEEN_PROMPTS,), minutes=12.0),
    Bench("display", "bench.display", data=(UNSEEN_PROMPTS,), minutes=5.0),
    Bench("verify", "bench.verify", data=(UNSEEN_PROMPTS, "examples"), minutes=5.0),
    Bench("never_slower", "bench.never_slower", data=(PROMPTS, UNSEEN_PROMPTS), minutes=80.0),
    Bench("frontier", "bench.wan.frontier", data=("bench/data/tuning",), minutes=20.0),
    Bench("structured", "bench.structured", minutes=12.0),
    Bench("tick", "bench.tick", data=COMPOSED_PROMPTS, minutes=6.0),
    Bench("engine", "bench.engine", minutes=5.0),
    Bench("contract", "bench.contract", data=("tests/engines",), minutes=10.0),
    Bench("calls", "bench.scale.calls", minutes=3.0),
    Bench(
        "scale", "bench.scale", minutes=300.0, core_minutes=10.0,
        data=tuple(f"bench/results/{name}.json" for name in SCALE_INPUTS),
    ),
    Bench(
        "scale_thousand", "bench.scale", ("--thousand",), minutes=70.0,
        data=tuple(f"bench/results/{name}.json" for name in SCALE_INPUTS),
    ),
    Bench(
        "oracle", "bench.oracle", minutes=25.0, core_minutes=4.0,
        data=tuple(f"bench/results/{name}.json" for name in SCALE_INPUTS),
    ),
    Bench(
        "autoscale", "bench.autoscale", minutes=15.0,
        data=(
            *(f"bench/results/{name}.json" for name in (*SCALE_INPUTS, "starts")),
            "deploy/components/inference-keda", "deploy/components/scale-to-zero",
        ),
    ),
    Bench("router", "bench.router", minutes=6.0),
    Bench("cost", "bench.cost", minutes=25.0, peers=("smg", "vllm_router")),
    Bench("routing", "bench.peers.routing", minutes=30.0, peers=("smg", "dynamo")),
    Bench("stock_engine", "bench.stock_engine", minutes=10.0, peers=("vllm",)),
    Bench("faults", "bench.faults", minutes=40.0, core_minutes=4.0),
    Bench("regions", "bench.regions", minutes=15.0),
    Bench("upgrade", "bench.upgrade", minutes=10.0),
    Bench("chaos", "bench.chaos", ("--hours", "2"), minutes=122.0),
    Bench("hostile", "bench.hostile", minutes=28.0),
    Bench("hostile_http", "bench.hostile", ("--http",), minutes=30.0),
    Bench("embeddings", "bench.embeddings", minutes=25.0, core_minutes=8.0, data=(PROMPTS,)),
    Bench("lossy", "bench.lossy", data=(UNSEEN_PROMPTS,), minutes=10.0),
    Bench("prediction", "bench.prediction", data=(UNSEEN_PROMPTS,), minutes=6.0),
    Bench("tokenizer", "bench.tokenizer", data=(PROMPTS,), minutes=12.0, core_minutes=3.0),
    Bench("tokenizer_bulk", "bench.tokenizer.bulk", minutes=15.0),
    Bench("tokenizer_service", "bench.tokenizer.service"),
    Bench("tokenizer_hosts", "bench.tokenizer.other_hosts", minutes=4.0),
    Bench("browser", "bench.browser", data=(UNSEEN_PROMPTS,), minutes=12.0),
    Bench("codec", "bench.codec", data=(PROMPTS,), minutes=1.0),
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
        "faults",
        "scale",
        "tokenizer",
    )
)
"""Benches that `make bench-core` runs, in this order."""
MAX_CORE_MINUTES = 60.0
