"""Whether the engine says what the model's file says, and what a call costs, by layout of weights.

Each layout's engine reads the texts of `outrider.fidelity`, teacher-forced, as it is served (bf16
where the CPU has it, products' inputs rounded to 8 bits) and in plain f32; the reference is numpy's
on the file's own weights. Then all layouts take turns at calls of one thread; CPU time, which on a
shared machine says nearly the same every time. Needs about 1.5 GB a layout.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.engine import CONTEXT, Sessions, cpu_ms
from bench.harness import Run, parser, start
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.convert import ConvertedModel, convert, read_converted
from outrider.engines.openvino.engine import OpenVinoEngine
from outrider.engines.openvino.layouts import DEFAULT_LAYOUT, LAYOUTS
from outrider.fidelity.comparing import Expected, compare, expected
from outrider.fidelity.measure import Fidelity
from outrider.fidelity.reference import Reference
from outrider.fidelity.texts import shipped
from outrider.models.catalog import DEFAULT_MODEL, lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.telemetry.logs import configure_logging

SHAPES: Final = {
    "1 row": (1, 1),
    "4 rows": (1, 4),
    "8 rows": (1, 8),
    "16 rows": (1, 16),
    "32 rows": (1, 32),
    "8 sessions": (8, 1),
    "16 sessions": (16, 1),
}
"""Sessions, and rows of each."""
NUM_BLOCKS: Final = 96
"""16 sessions of CONTEXT + 32 + 1 tokens; the longest text takes fewer."""
REPEATS, QUICK_REPEATS = 30, 3

Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One layout's figures."""

    num_bytes: int
    """Of the graph's weights on disk."""
    precision: str
    """As served: bf16 or f32."""
    served: Fidelity
    plain: Fidelity
    """In f32, inputs of products as they are."""
    times: Times
    """CPU ms of calls as served, by shape."""


def main() -> int:
    flags = parser("fidelity", __doc__ or "")
    flags.add_argument("--model", default=DEFAULT_MODEL.name, help="a name of the catalogue")
    arguments: argparse.Namespace = flags.parse_args()
    run = start("fidelity", arguments)
    configure_logging("fidelity", "warning")
    layouts = (DEFAULT_LAYOUT,) if run.quick else LAYOUTS
    spec, store = lookup(arguments.model), ModelStore(default_root())
    source = store.ensure(spec.source, sha256=spec.sha256).path
    vocabulary = load_vocabulary(spec, store)
    texts = [text.encode(vocabulary) for text in shipped()]
    run.setting("outrider", threads=1, context_tokens=CONTEXT, model=spec.name, texts=len(texts))
    with TemporaryDirectory() as work:
        log_progress(f"converting into {len(layouts)} layouts")
        models = {name: converted(source, Path(work) / name, name) for name in layouts}
        log_progress(f"reference over {sum(map(len, texts))} tokens")
        reference = Reference(source)
        documents = expected(reference, texts, lambda _: None)
        found = measured(models, reference, documents, QUICK_REPEATS if run.quick else REPEATS)
    report(run, found)
    run.finish()
    return 0


def converted(source: Path, folder: Path, layout: str) -> ConvertedModel:
    """The model of a file in a layout."""
    folder.mkdir()
    convert(source, folder, layout)
    return read_converted(folder)


def measured(
    models: Mapping[str, ConvertedModel],
    reference: Reference,
    documents: Sequence[Expected],
    repeats: int,
) -> dict[str, Measured]:
    """Every layout, by name."""
    plain: dict[str, Fidelity] = {}
    for name, model in models.items():
        log_progress(f"{name} in f32")
        config = EngineConfig(
            num_blocks=NUM_BLOCKS,
            max_fixed_rows=0,
            precision="f32",
            dynamic_quantization=False,
            threads=os.cpu_count() or 1,
        )
        with running(model, config) as engine:
            plain[name] = compare(engine, reference, documents)
    with ExitStack() as stack:
        served, engines = {}, {}
        for name, model in models.items():
            log_progress(f"{name} as served")
            config = EngineConfig(num_blocks=NUM_BLOCKS, prepare_first=True, pin_threads=False)
            engines[name] = stack.enter_context(running(model, config))
            served[name] = compare(engines[name], reference, documents)
        log_progress(f"{repeats} rounds of calls")
        times = timed(engines, repeats)
        return {
            name: Measured(
                model.graph.with_suffix(".bin").stat().st_size,
                engines[name].info.precision,
                served[name],
                plain[name],
                times[name],
            )
            for name, model in models.items()
        }


@contextmanager
def running(model: ConvertedModel, config: EngineConfig) -> Iterator[Engine]:
    engine = OpenVinoEngine(model, config)
    try:
        yield engine
    finally:
        engine.close()


def timed(engines: Mapping[str, Engine], repeats: int) -> dict[str, Times]:
    """CPU ms of calls by layout and shape: in each round every layout has every shape, in random
    order; a call of the same shape goes before, unmeasured."""
    ready = {name: _sessions(engine) for name, engine in engines.items()}
    samples: dict[str, dict[str, list[float]]] = {name: {s: [] for s in SHAPES} for name in engines}
    turns = [(name, shape) for name in engines for shape in SHAPES]
    rng = random.Random(1)
    for _ in range(repeats):
        for name, shape in rng.sample(turns, len(turns)):
            slices = ready[name].slices(*SHAPES[shape])
            engines[name].step(slices)
            samples[name][shape].append(cpu_ms(engines[name], slices))
    return {name: dict(by_shape) for name, by_shape in samples.items()}


def _sessions(engine: Engine) -> Sessions:
    longest = CONTEXT + max(rows for _, rows in SHAPES.values()) + engine.info.scratch_tokens
    sessions = Sessions(engine, -(-longest // engine.info.block_tokens))
    sessions.prefill(max(count for count, _ in SHAPES.values()))
    return sessions


def report(run: Run, found: Mapping[str, Measured]) -> None:
    """Tables and samples."""
    chosen = found[DEFAULT_LAYOUT]
    count, truth = chosen.served.num_positions, chosen.served.reference_perplexity
    served = f"as served ({chosen.precision})"
    fidelity = run.table(
        "How closely the engine follows the weights of the model's file, by weight layout: "
        f"{count:,} positions, against a numpy model in f32 (its perplexity: {truth:.2f})",
        "weight layout",
        "MB",
        f"perplexity, {served}",
        "over the file's",
        "KL divergence, nats",
        "same argmax, %",
        "in f32: over the file's",
        "in f32: KL divergence, nats",
        "in f32: same argmax, %",
    )
    calls = run.table(
        "CPU time of one engine call by weight layout, ms, one thread: median and lowest; rows "
        "are of one session, sessions have one row each",
        "weight layout",
        "n",
        *(column for shape in SHAPES for column in (shape, f"{shape}, lowest")),
    )
    for name, one in found.items():
        label = f"**{name}**" if name == DEFAULT_LAYOUT else name
        fidelity.add(
            label,
            one.num_bytes / 1e6,
            one.served.perplexity,
            *closeness(one.served),
            *closeness(one.plain),
        )
        spans = (cell for s in one.times.values() for cell in (calls.median(s), min(s)))
        calls.add(label, len(one.times["1 row"]), *spans)
        for shape, samples in one.times.items():
            run.samples(f"{name}, {shape}", samples, unit="ms")


def closeness(found: Fidelity) -> tuple[str, str, float]:
    """Cells: perplexity over the reference's, KL, and percent of equal argmaxes."""
    return f"{found.ppl_ratio:.4f}", f"{found.kl:.5f}", 100 * found.argmax_agreement


def log_progress(what: str) -> None:
    """On standard error: standard output is the figures'."""
    print(f"fidelity: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
