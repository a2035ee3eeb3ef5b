"""Engines on one CPU beside one another: how closely each follows the model's file, and what a call
costs.

Each engine reads the texts of `outrider.fidelity`, teacher-forced; the reference is numpy's, on the
file's own weights. Then all take turns at calls of one thread; CPU time, which on a shared machine
says nearly the same every time. Needs PyTorch (`make torch`) and 3 GB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from bench.fidelity import NUM_BLOCKS, SHAPES, Times, closeness, log_progress, timed
from bench.harness import Run, parser, start
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.fidelity.comparing import compare, expected
from outrider.fidelity.measure import Fidelity
from outrider.fidelity.reference import Reference
from outrider.fidelity.texts import shipped
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.telemetry.logs import configure_logging

ENGINES = {
    "openvino, as served": EngineConfig(prepare_first=True, pin_threads=False),
    "openvino, f32 throughout": EngineConfig(
        precision="f32", dynamic_quantization=False, prepare_first=True, pin_threads=False
    ),
    "torch, f32": EngineConfig(engine="torch", device="cpu", precision="f32"),
    "torch, bf16": EngineConfig(engine="torch", device="cpu", precision="bf16"),
    "torch, f32, weights of 8 bits": EngineConfig(
        engine="torch", device="cpu", precision="f32", weight_bits=8
    ),
}
REPEATS, QUICK_REPEATS = 12, 2


def main() -> int:
    arguments = parser("engines", __doc__ or "").parse_args()
    run = start("engines", arguments)
    configure_logging("engines", "warning")
    store = ModelStore(default_root())
    source = store.ensure(DEFAULT_MODEL.source, sha256=DEFAULT_MODEL.sha256).path
    vocabulary = load_vocabulary(DEFAULT_MODEL, store)
    texts = [text.encode(vocabulary) for text in shipped()][: 1 if run.quick else None]
    run.setting("outrider", threads=1, model=DEFAULT_MODEL.name, texts=len(texts))
    log_progress(f"reference over {sum(map(len, texts))} tokens")
    reference = Reference(source)
    documents = expected(reference, texts, lambda _: None)
    found: dict[str, Fidelity] = {}
    with ExitStack() as stack:
        engines = {}
        for name, config in ENGINES.items():
            log_progress(name)
            engines[name] = stack.enter_context(running(config))
            found[name] = compare(engines[name], reference, documents)
        log_progress("calls by turns")
        times = timed(engines, QUICK_REPEATS if run.quick else REPEATS)
    report(run, found, times)
    run.finish()
    return 0


@contextmanager
def running(config: EngineConfig) -> Iterator[Engine]:
    """An engine of the default model, closed at the end."""
    engine = create_engine(replace(config, num_blocks=NUM_BLOCKS))
    try:
        yield engine
    finally:
        engine.close()


def report(run: Run, found: Mapping[str, Fidelity], times: Mapping[str, Times]) -> None:
    """Both tables, and samples."""
    first = next(iter(found.values()))
    closest = run.table(
        f"Engines against a numpy model in f32, {first.num_positions:,} positions",
        *("engine", "perplexity over the file's", "KL divergence, nats", "same argmax, %"),
    )
    for name, one in found.items():
        closest.add(name, *closeness(one))
    calls = run.table(
        "CPU time of one engine call, ms, one thread: median; rows are of one session, sessions "
        "have one row each",
        *("engine", "n", *SHAPES),
    )
    for name, by_shape in times.items():
        calls.add(name, len(by_shape["1 row"]), *(calls.median(it) for it in by_shape.values()))
        for shape, samples in by_shape.items():
            run.samples(f"{name}, {shape}", samples, unit="ms")


if __name__ == "__main__":
    sys.exit(main())
