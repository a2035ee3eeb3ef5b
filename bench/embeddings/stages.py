"""The stages of the seed's profile, one thread, texts of 50 tokens: the naive way, a text at a
time, and ours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from bench.embeddings.naive import Naive
from bench.harness import Run, median
from outrider.codec.vectors import VectorFormat, packed
from outrider.engines.embedding import Ids
from outrider.engines.openvino.embedder import open_embedders
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.session_types import Priority
from services.inference.embedding.limits import EmbeddingLimits
from services.inference.embedding.queue import EmbeddingQueue

STAGES: Final = ("tokenize", "batch", "engine", "write the reply")
_CHUNK: Final = 16
_Times = dict[str, list[float]]


def measure(run: Run, model: EmbeddingFolder, naive: Naive, texts: Sequence[str]) -> None:
    """Adds the table."""
    before, after = _naive_times(naive, texts), _our_times(model, texts)
    table = run.table(
        "Stages of a text of 50 tokens, one thread",
        *("stage", "naive, us a text", "share", "ours, us a text", "share", "ours overlaps with"),
    )
    beside = ("the engine", "nothing: microseconds", "", "the engine")
    totals = [sum(median(found[stage]) for stage in STAGES) for found in (before, after)]
    for stage, with_what in zip(STAGES, beside, strict=True):
        figures = [median(found[stage]) for found in (before, after)]
        cells = [
            cell
            for value, total in zip(figures, totals, strict=True)
            for cell in (round(value, 1), f"{value / total:.1%}")
        ]
        table.add(stage, *cells, with_what)
        run.figures[f"stage_us_{stage}"] = [round(value, 1) for value in figures]


def _naive_times(naive: Naive, texts: Sequence[str]) -> _Times:
    found: _Times = {stage: [] for stage in STAGES}
    for text in texts:
        with _timed(found, "tokenize", 1):
            tokens = naive.tokenized([text])
        with _timed(found, "batch", 1):
            ids, mask = naive.padded(tokens)
        with _timed(found, "engine", 1):
            vectors = naive.computed(ids, mask, [len(tokens[0])])
        with _timed(found, "write the reply", 1):
            naive.written(vectors)
    return found


def _our_times(model: EmbeddingFolder, texts: Sequence[str]) -> _Times:
    found: _Times = {stage: [] for stage in STAGES}
    tokenizer = model.tokenizer()
    (engine,) = open_embedders(model)
    for part in _chunks(texts):
        with _timed(found, "tokenize", len(part)):
            ids = [tokenizer.encode(text) for text in part]
        with _timed(found, "batch", len(part)):
            batches = _batched(ids)
        with _timed(found, "engine", len(part)):
            vectors = np.concatenate([engine.embed(each) for each in batches])
        with _timed(found, "write the reply", len(part)):
            packed(vectors, VectorFormat.F32)
    engine.close()
    return found


def _batched(ids: Sequence[Ids]) -> list[tuple[Ids, ...]]:
    """By the replica's own queue."""
    queue = EmbeddingQueue(EmbeddingLimits())
    for key, each in enumerate(ids):
        queue.add(key, 4 * len(each), Priority.MEDIUM, None, 0.0, ids=each)
    made = []
    while (batch := queue.next_batch(0.0)) is not None:
        made.append(batch.texts)
        for key in batch.keys:
            queue.finished(key)
    return made


@contextlib.contextmanager
def _timed(found: _Times, stage: str, num_texts: int) -> Iterator[None]:
    """What the block takes, shared among so many texts."""
    began = time.perf_counter()
    yield
    found[stage].append((time.perf_counter() - began) * 1e6 / num_texts)


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(texts), _CHUNK):
        yield texts[begin : begin + _CHUNK]
