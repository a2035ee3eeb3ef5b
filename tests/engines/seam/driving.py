"""How tests drive an engine: sequences, block tables, slices, and rows compared bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from outrider.engines.base import Engine, Ids, Logits, LogitsRows, SequenceSlice

numbers = itertools.count(1_000_000)
"""Numbers that no sequence has."""


def random_ids(engine: Engine, count: int, seed: int = 0) -> Ids:
    """[count] ids from all of the vocabulary."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, engine.info.vocabulary_size, count).astype(np.int32)


def table(engine: Engine, num_tokens: int, seed: int = 0, *, first: int = 0) -> Ids:
    """Blocks for num_tokens and the scratch tokens, in random order, from number `first` on."""
    needed = -(-(num_tokens + engine.info.scratch_tokens) // engine.info.block_tokens)
    rng = np.random.default_rng(seed)
    return (first + rng.permutation(engine.info.num_blocks - first)[:needed]).astype(np.int32)


@contextmanager
def opened(engine: Engine, *prompts: Ids) -> Iterator[list[int]]:
    """Numbers of newly opened sequences, closed afterwards."""
    sequences = [next(numbers) for _ in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.open(sequence, prompt)
    yield sequences
    for sequence in sequences:
        engine.close_sequence(sequence)


def run(engine: Engine, sequence: int, ids: Ids, past: int, blocks: Ids, rows: int) -> Logits:
    """One slice on its own, [rows, V]."""
    return dense(engine, engine.step([SequenceSlice(sequence, ids, past, blocks, rows)])[0])


def dense(engine: Engine, rows: LogitsRows) -> Logits:
    """[r, V] one column per id; -inf for those that are no candidates."""
    if rows.ids is None:
        return rows.logits.copy()
    logits = np.full((len(rows.logits), engine.info.vocabulary_size), -np.inf, np.float32)
    np.put_along_axis(logits, rows.ids.astype(np.intp), rows.logits, axis=1)
    return logits


def assert_answers(engine: Engine, rows: LogitsRows, expected: Logits) -> None:
    """Bit equality with what was asked."""
    assert_same(dense(engine, rows), expected)


def all_rows(engine: Engine, ids: Ids, blocks: Ids, chunk: int | None = None) -> Logits:
    """[len(ids), V] every row, computed in chunks."""
    chunk = chunk or len(ids)
    with opened(engine, ids) as (sequence,):
        parts = [
            run(engine, sequence, ids[past : past + chunk], past, blocks, len(ids[past:][:chunk]))
            for past in range(0, len(ids), chunk)
        ]
    return np.concatenate(parts)


def assert_same(actual: Logits, expected: Logits) -> None:
    """Bit equality, shapes included."""
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    different = np.flatnonzero((actual != expected).any(axis=1))
    assert different.size == 0, f"rows {different.tolist()} differ"
