"""The engine's contract, and the bits of rows, without a test runner: a machine with a GPU may have
none. Each check raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outrider.engines.base import Engine, Ids, Logits, SequenceSlice
from outrider.engines.fingerprint import probe_ids

ROWS = (1, 2, 7, 16, 33, 63, 64, 65, 128, 255, 256, 257, 288)


def ids_of(engine: Engine, count: int, seed: int = 0) -> Ids:
    """[count] random ids."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, engine.info.vocabulary_size, count).astype(np.int32)


def table(engine: Engine, num_tokens: int, first: int = 0) -> Ids:
    """Blocks for so many tokens, from number `first` on."""
    count = -(-num_tokens // engine.info.block_tokens)
    return np.arange(first, first + count, dtype=np.int32)


def rows_of(engine: Engine, ids: Ids, chunk: int, *, first: int = 0, sequence: int = 1) -> Logits:
    """[n, V] every row, in calls of `chunk` tokens."""
    engine.open(sequence, ids[:1])
    blocks, parts = table(engine, len(ids), first), []
    for past in range(0, len(ids), chunk):
        tokens = ids[past : past + chunk]
        part = SequenceSlice(sequence, tokens, past, blocks, len(tokens))
        parts.append(engine.step([part])[0].logits.copy())
    engine.close_sequence(sequence)
    return np.concatenate(parts)


def same(one: Logits, other: Logits, what: str) -> None:
    """Bit equality."""
    different = np.flatnonzero((one != other).any(axis=1))
    assert not different.size, f"{what}: rows {different[:9].tolist()} differ"


def rows_of_a_call(engine: Engine) -> None:
    """The first row of a call does not depend on how many follow, in whichever call."""
    ids = ids_of(engine, max(ROWS))
    expected = rows_of(engine, ids, len(ids))
    for count in ROWS:
        same(rows_of(engine, ids[:count], count), expected[:count], f"{count} rows at once")


def chunks(engine: Engine) -> None:
    """How a prompt is cut changes nothing."""
    ids = ids_of(engine, 150, 1)
    expected = rows_of(engine, ids, len(ids))
    for chunk in (1, 2, 3, 7, 33, 64, 65):
        same(rows_of(engine, ids, chunk, first=9), expected, f"chunks of {chunk}")


def company(engine: Engine) -> None:
    """Nor does who else is in the call."""
    prompts = [ids_of(engine, 70, seed) for seed in range(6)]
    expected = [rows_of(engine, ids, len(ids)) for ids in prompts]
    for number, ids in enumerate(prompts):
        engine.open(number, ids[:1])
    rng, past = np.random.default_rng(3), [0] * len(prompts)
    per = len(table(engine, 70))
    while any(at < 70 for at in past):
        some = [int(n) for n in rng.permutation(len(prompts)) if past[n] < 70][:4]
        parts = []
        for n in some:
            tokens = prompts[n][past[n] : past[n] + int(rng.choice([1, 1, 2, 5, 33]))]
            blocks = table(engine, 70, n * per)
            parts.append(SequenceSlice(n, tokens, past[n], blocks, len(tokens)))
        for part, answer in zip(parts, engine.step(parts), strict=True):
            n, end = part.sequence, part.past + len(part.tokens)
            same(answer.logits, expected[n][past[n] : end], "a batch")
            past[n] = end
    for number in range(len(prompts)):
        engine.close_sequence(number)


def drafts(engine: Engine) -> None:
    """Wrong tokens behind a row, and what they leave in the pool, change nothing."""
    ids, garbage = ids_of(engine, 60), ids_of(engine, 300, 9)
    expected = rows_of(engine, ids, len(ids))
    rows_of(engine, garbage, 64)
    engine.open(1, ids[:1])
    blocks = table(engine, 80)
    for past in range(len(ids)):
        tokens = np.concatenate([ids[past : past + 1], garbage[past : past + 4]])
        answer = engine.step([SequenceSlice(1, tokens, past, blocks, 1 + 4)])[0].logits
        same(answer[:1], expected[past : past + 1], "in front of drafts")
    engine.close_sequence(1)


def kv(engine: Engine) -> None:
    """Copied, exported and imported KV is as good as computed."""
    ids = ids_of(engine, 90)
    expected = rows_of(engine, ids, len(ids))
    size = engine.info.block_tokens
    data = engine.export_blocks([0, 1])
    assert len(data) == 2 * engine.info.block_bytes
    engine.import_blocks([5, 6], data)
    engine.copy_block(2, 7)
    assert engine.export_blocks([5, 6]) == data
    engine.open(1, ids[:1])
    blocks = np.array([5, 6, 7], np.int32)
    tokens = ids[2 * size + 3 :]
    part = SequenceSlice(1, tokens, 2 * size + 3, blocks, len(tokens))
    same(engine.step([part])[0].logits, expected[2 * size + 3 :], "behind moved KV")
    engine.close_sequence(1)


CONTRACT: dict[str, Callable[[Engine], None]] = {
    "rows of a call": rows_of_a_call,
    "chunks": chunks,
    "company": company,
    "drafts": drafts,
    "kv": kv,
}


def digest_ids(engine: Engine) -> Ids:
    """Fixed tokens for comparing processes and modes."""
    return probe_ids(engine.info.vocabulary_size, 300)
