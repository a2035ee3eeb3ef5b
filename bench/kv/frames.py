"""Frames of real KV: ratios, and speeds on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.harness import Run, median
from bench.harness.prompts import PromptSupply
from outrider.codec.kv import KvHeader, KvLayout, decode_frame, encode_frame
from outrider.engines.base import Engine, Ids, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import ModelSpec
from outrider.models.definitions import Precision
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary

SIZES = (200, 320, 480, 640, 900, 1200, 1500)
"""Tokens of a prefix, cut to whole blocks."""
PRECISIONS: tuple[Precision, Precision] = ("bf16", "f32")


@dataclass(slots=True)
class Measured:
    """Over all prefixes, in one precision."""

    ratios: list[float] = field(default_factory=list)
    encode_mb_s: list[float] = field(default_factory=list)
    decode_mb_s: list[float] = field(default_factory=list)
    decode_share: list[float] = field(default_factory=list)
    """Processor time of decoding over that of computing the same tokens."""
    num_equal: int = 0
    """Frames whose blocks came out bit for bit."""


def measure(
    run: Run, model: ModelSpec, store: ModelStore, count: int, progress: Callable[[str], None]
) -> tuple[Measured, Measured]:
    """`count` prefixes of the model computed in bf16, and in f32; two tables."""
    vocabulary = load_vocabulary(model, store)
    found = [_measure(run, model, store, vocabulary, p, count, progress) for p in PRECISIONS]
    return found[0], found[1]


def _measure(
    run: Run,
    model: ModelSpec,
    store: ModelStore,
    vocabulary: Vocabulary,
    precision: Precision,
    count: int,
    progress: Callable[[str], None],
) -> Measured:
    config = EngineConfig(num_blocks=160, precision=precision, max_fixed_rows=0)
    engine = load_engine(model, store, config)
    try:
        layout = engine.info.kv_layout
        assert layout is not None, "the engine's KV cannot be packed"
        found = Measured()
        for number, ids in enumerate(prefixes(vocabulary, layout.block_tokens, count)):
            _measure_one(engine, layout, number, ids, found)
            progress(f"frames of {model.name} in {precision}: {number + 1} of {count}")
    finally:
        engine.close()
    _table(run, model.name, precision, layout, found, count)
    return found


def prefixes(vocabulary: Vocabulary, block_tokens: int, count: int) -> list[Ids]:
    """Beginnings of documents, of SIZES tokens in turn."""
    supply = PromptSupply("document")
    texts = iter(supply.take(40 * count))
    found: list[Ids] = []
    while len(found) < count:
        size = SIZES[len(found) % len(SIZES)] // block_tokens * block_tokens
        ids: list[int] = []
        while len(ids) < size:
            ids += vocabulary.encode(next(texts))
        found.append(np.array(ids[:size], np.int32))
    return found


def _measure_one(
    engine: Engine,
    layout: KvLayout,
    sequence: int,
    ids: Ids,
    found: Measured,
) -> None:
    num_blocks = len(ids) // layout.block_tokens
    table = np.arange(num_blocks + 2, dtype=np.int32)
    engine.open(sequence, ids)
    begin = time.process_time()
    engine.step([SequenceSlice(sequence, ids, 0, table, 1)])
    compute_s = time.process_time() - begin
    data = engine.export_blocks(table[:num_blocks].tolist())
    size = layout.block_bytes
    blocks = [data[n * size : (n + 1) * size] for n in range(num_blocks)]
    header = KvHeader(layout, engine.info.fingerprint, b"", b"", tuple(ids.tolist()))
    begin = time.process_time()
    frame = encode_frame(header, blocks)
    encode_s = time.process_time() - begin
    begin = time.process_time()
    out = list(decode_frame(frame).blocks())
    decode_s = time.process_time() - begin
    found.ratios.append(len(data) / len(frame))
    found.encode_mb_s.append(len(data) / encode_s / 1e6)
    found.decode_mb_s.append(len(data) / decode_s / 1e6)
    found.decode_share.append(decode_s / compute_s)
    found.num_equal += out == blocks
    engine.close_sequence(sequence)


def _table(
    run: Run, model: str, precision: str, layout: KvLayout, found: Measured, count: int
) -> None:
    table = run.table(
        f"Frames of KV of {model} computed in {precision}: {count} prefixes of 200 to 1,500 tokens",
        *("smaller than the engine's KV", "than f32", "encode, MB/s", "decode, MB/s"),
        *("decode over compute, CPU", "bit-equal"),
    )
    table.add(
        median(found.ratios),
        median(found.ratios) * 4 / layout.dtype.num_bytes,
        median(found.encode_mb_s),
        median(found.decode_mb_s),
        median(found.decode_share),
        f"{found.num_equal} of {count}",
    )
    run.samples(f"{model}, {precision}, ratio", found.ratios, unit="ratio")
