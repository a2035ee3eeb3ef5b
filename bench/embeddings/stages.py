"""The stages of the seed's profile, one thread, texts of 50 tokens: the naive way, a text at a
time, and ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np

from bench.embeddings.naive import Naive
from bench.harness import Run, median
from outrider.codec.vectors import VectorFormat, packed
from outrider.engines.embedding import Ids
from outrider.engines.openvino.embedder import OpenVinoEmbedder
from outrider.models.embedding_folder import EmbeddingFolder
from outrider.session_types import Priority
from services.inference.embedding.limits import EmbeddingLimits
from services.inference.embedding.queue import EmbeddingQueue

STAGES: Final = ("tokenize", "batch", "engine", "write the reply")
_CHUNK: Final = 16
_T = TypeVar("_T")
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
        with_time = _Stopwatch(found, 1)
        tokens = with_time("tokenize", lambda text=text: naive.tokenized([text]))
        ids, mask = with_time("batch", lambda tokens=tokens: naive.padded(tokens))
        lengths = [len(tokens[0])]
        vectors = with_time("engine", lambda i=ids, m=mask, n=lengths: naive.computed(i, m, n))
        with_time("write the reply", lambda v=vectors: naive.written(v))
    return found


def _our_times(model: EmbeddingFolder, texts: Sequence[str]) -> _Times:
    found: _Times = {stage: [] for stage in STAGES}
    tokenizer = model.tokenizer()
    engine = OpenVinoEmbedder(model, threads=1)
    for part in _chunks(texts):
        with_time = _Stopwatch(found, len(part))
        ids = with_time("tokenize", lambda p=part: [tokenizer.encode(text) for text in p])
        batches = with_time("batch", lambda i=ids: _batched(i))
        vectors = with_time(
            "engine", lambda b=batches: np.concatenate([engine.embed(each) for each in b])
        )
        with_time("write the reply", lambda v=vectors: packed(v, VectorFormat.F32))
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


class _Stopwatch:
    """Times work, and shares the time among so many texts."""

    def __init__(self, found: _Times, num_texts: int) -> None:
        self._found = found
        self._num_texts = num_texts

    def __call__(self, stage: str, work: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        made = work()
        self._found[stage].append((time.perf_counter() - began) * 1e6 / self._num_texts)
        return made


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(texts), _CHUNK):
        yield texts[begin : begin + _CHUNK]
