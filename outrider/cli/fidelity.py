"""`outrider models verify --fidelity`: compares the engine's logits with the model file's."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from outrider.errors import UnsupportedModelError
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore

if TYPE_CHECKING:
    from outrider.engines.base import Ids
    from outrider.engines.config import EngineConfig, Precision
    from outrider.fidelity.measure import Fidelity
    from outrider.fidelity.reference import Reference

EXIT_UNFAITHFUL: Final = 6
"""Status if a bound is broken."""

Advance: TypeAlias = Callable[[int], None]


def verify(
    spec: ModelSpec, store: ModelStore, precision: Precision, *, threads: int, as_json: bool
) -> bool:
    """Measure a model of the store with all texts, print the figures, and return whether they are
    within bounds. Takes minutes.

    f32 is f32 throughout: inputs of products are not rounded to 8 bits, as they are when served.
    Raises UnsupportedModelError for a model that the reference does not know, ModelStoreError,
    EngineError, and ConfigError for a precision that this CPU does not have.
    """
    from outrider.engines.config import EngineConfig
    from outrider.fidelity.measure import IN_F32, SERVED

    # Calls of every size compute the same bits (decision 4): one compiled model is enough.
    config = EngineConfig(
        threads=threads or os.cpu_count() or 1,
        precision=precision,
        dynamic_quantization=precision != "f32",
        max_fixed_rows=0,
    )
    found, arithmetic = _measure(spec, store, config, as_json=as_json)
    broken = (IN_F32 if precision == "f32" else SERVED).broken_by(found)
    if as_json:
        figures = {**asdict(found), "ppl_ratio": found.ppl_ratio, "broken": broken}
        print(json.dumps({"model": spec.name, "precision": arithmetic, **figures}))
    else:
        print(f"{spec.name}, {arithmetic}, {found.num_positions} positions")
        print(
            f"  perplexity        {found.perplexity:.3f}, of the file's own weights "
            f"{found.reference_perplexity:.3f}: {found.ppl_ratio:.4f} times"
        )
        print(f"  KL                {found.kl:.5f} nats")
        print(f"  argmax agreement  {found.argmax_agreement:.2%}")
    if broken:
        print(
            f"outrider models: the engine does not say what {spec.name} says: {', '.join(broken)}; "
            "serve another file of the model, or with another engine",
            file=sys.stderr,
        )
    return not broken


def _measure(
    spec: ModelSpec, store: ModelStore, config: EngineConfig, *, as_json: bool
) -> tuple[Fidelity, str]:
    """The figures, and the engine's precision."""
    from outrider.fidelity.reference import Reference
    from outrider.telemetry.logs import configure_logging

    # To standard error: standard output is the figures'.
    configure_logging("models", "warning")
    with _gguf_file(spec, store) as path:
        return _compare(spec, store, Reference(path), config, as_json=as_json)


def _compare(
    spec: ModelSpec, store: ModelStore, reference: Reference, config: EngineConfig, *, as_json: bool
) -> tuple[Fidelity, str]:
    from outrider.engines.openvino import loading
    from outrider.fidelity.comparing import compare, expected
    from outrider.fidelity.texts import shipped
    from outrider.models.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(spec, store)
    documents: list[Ids] = [text.encode(vocabulary) for text in shipped()]
    with _bar("reference, layers", reference.num_layers, as_json) as advance:
        known = expected(reference, documents, lambda _: advance(1))
    with _bar("engine, tokens", sum(map(len, documents)), as_json) as advance:
        engine = loading.load_engine(spec, store, config)
        try:
            return compare(engine, reference, known, advance), engine.info.precision
        finally:
            engine.close()


@contextmanager
def _gguf_file(spec: ModelSpec, store: ModelStore) -> Iterator[Path]:
    """The model's own weights as a GGUF file; a checkpoint's, written as one for the while."""
    from outrider.models.checkpoint_gguf import Checkpoint
    from outrider.models.folder import holds_checkpoint, is_archive, unpacked

    artifact = store.load(spec.source, sha256=spec.sha256)
    if not is_archive(artifact.path):
        yield artifact.path
        return
    files = unpacked(artifact, store)
    if not holds_checkpoint(files):
        raise UnsupportedModelError(
            f"{spec.name} is a folder of OpenVINO's, whose weights are served as they are: there "
            "is no other file to compare with; --fidelity is for GGUF files and safetensors"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.gguf"
        Checkpoint(files, artifact.path).write_gguf(path)
        yield path


@contextmanager
def _bar(label: str, total: int, as_json: bool) -> Iterator[Advance]:
    """A bar on stderr if that is a terminal; silence otherwise."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        *(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda count: bars.advance(task, count)
