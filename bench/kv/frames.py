"""Frames of real KV: ratios, speeds on one core, and what quantisation does to the next tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.harness import Run, median
from bench.harness.prompts import PromptSupply
from outrider.codec.kv import KvHeader, KvLayout, Payload, decode_frame, encode_frame
from outrider.engines.base import Engine, Ids, Logits, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.definitions import Precision
from outrider.models.vocabulary import Vocabulary

SIZES = (200, 320, 480, 640, 900, 1200, 1500)
"""Tokens of a prefix, cut to whole blocks."""
NUM_NEXT = 64
"""Tokens behind the prefix that are scored with the KV that came through a frame."""


@dataclass(slots=True)
class Measured:
    """One payload over all prefixes."""

    ratios: list[float] = field(default_factory=list)
    encode_mb_s: list[float] = field(default_factory=list)
    decode_mb_s: list[float] = field(default_factory=list)
    decode_share: list[float] = field(default_factory=list)
    """Processor time of decoding over that of computing the same tokens."""
    num_scored: int = 0
    num_same: int = 0
    """Tokens of which the likeliest next one stays the same."""
    loss: float = 0.0
    exact_loss: float = 0.0
    """Sums of -log of the probability of the text's next token, with the KV and as computed."""
    num_equal: int = 0
    """Frames whose blocks came out bit for bit."""

    @property
    def perplexity_ratio(self) -> float:
        return math.exp((self.loss - self.exact_loss) / max(1, self.num_scored))


def measure(
    run: Run,
    vocabulary: Vocabulary,
    precision: Precision,
    count: int,
    progress: Callable[[str], None],
) -> dict[Payload, Measured]:
    """`count` prefixes of an engine in this precision; a table."""
    config = EngineConfig(num_blocks=160, precision=precision, max_fixed_rows=0)
    engine = create_engine(config)
    try:
        layout = engine.info.kv_layout
        assert layout is not None, "the engine's KV cannot be packed"
        found = {payload: Measured() for payload in Payload}
        for number, ids in enumerate(prefixes(vocabulary, layout.block_tokens, count)):
            _measure_one(engine, layout, number, ids, found)
            progress(f"frames in {precision}: prefix {number + 1} of {count}, {len(ids)} tokens")
    finally:
        engine.close()
    _table(run, precision, layout, found, count)
    return found


def prefixes(vocabulary: Vocabulary, block_tokens: int, count: int) -> list[Ids]:
    """Beginnings of documents, of SIZES tokens in turn and NUM_NEXT more."""
    supply = PromptSupply("document")
    texts = iter(supply.take(40 * count))
    found: list[Ids] = []
    while len(found) < count:
        size = SIZES[len(found) % len(SIZES)] // block_tokens * block_tokens + NUM_NEXT
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
    found: dict[Payload, Measured],
) -> None:
    num_prefix = len(ids) - NUM_NEXT
    num_blocks = num_prefix // layout.block_tokens
    table = np.arange(len(ids) // layout.block_tokens + 2, dtype=np.int32)
    engine.open(sequence, ids)
    begin = time.process_time()
    engine.step([SequenceSlice(sequence, ids[:num_prefix], 0, table, 1)])
    compute_s = time.process_time() - begin
    data = engine.export_blocks(table[:num_blocks].tolist())
    size = layout.block_bytes
    blocks = [data[n * size : (n + 1) * size] for n in range(num_blocks)]
    exact = _score(engine, sequence, ids, num_prefix, table)
    for payload, into in found.items():
        prefix = tuple(ids[:num_prefix].tolist())
        header = KvHeader(payload, layout, engine.info.fingerprint, b"", b"", prefix)
        begin = time.process_time()
        frame = encode_frame(header, blocks)
        encode_s = time.process_time() - begin
        begin = time.process_time()
        out = list(decode_frame(frame).blocks())
        decode_s = time.process_time() - begin
        into.ratios.append(len(data) / len(frame))
        into.encode_mb_s.append(len(data) / encode_s / 1e6)
        into.decode_mb_s.append(len(data) / decode_s / 1e6)
        into.decode_share.append(decode_s / compute_s)
        into.num_equal += out == blocks
        engine.import_blocks(table[:num_blocks].tolist(), b"".join(out))
        rows = _score(engine, sequence, ids, num_prefix, table)
        into.num_scored += NUM_NEXT - 1
        into.num_same += int((rows.argmax(1) == exact.argmax(1)).sum())
        into.loss += _loss(rows, ids[num_prefix + 1 :])
        into.exact_loss += _loss(exact, ids[num_prefix + 1 :])
    engine.close_sequence(sequence)


def _score(engine: Engine, sequence: int, ids: Ids, past: int, table: Ids) -> Logits:
    """[NUM_NEXT - 1, vocabulary] rows of the tokens behind the prefix, but for the last."""
    tokens = ids[past:-1]
    (rows,) = engine.step([SequenceSlice(sequence, tokens, past, table, len(tokens))])
    return rows.logits.copy()


def _loss(rows: Logits, following: Ids) -> float:
    shifted = rows - rows.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float((log_sums - shifted[np.arange(len(rows)), following]).sum())


def _table(
    run: Run, precision: str, layout: KvLayout, found: dict[Payload, Measured], count: int
) -> None:
    table = run.table(
        f"Frames of KV computed in {precision}: {count} prefixes of 200 to 1,500 tokens",
        *("payload", "smaller than the engine's KV", "than f32", "encode, MB/s", "decode, MB/s"),
        *("decode over compute, CPU", "same likeliest next token", "perplexity ratio", "bit-equal"),
    )
    to_f32 = 4 / layout.dtype.num_bytes
    for payload, it in found.items():
        table.add(
            payload.name.lower(),
            median(it.ratios),
            median(it.ratios) * to_f32,
            median(it.encode_mb_s),
            median(it.decode_mb_s),
            median(it.decode_share),
            f"{it.num_same / it.num_scored:.4f}",
            f"{it.perplexity_ratio:.4f}",
            f"{it.num_equal} of {count}",
        )
        run.samples(f"{precision}, {payload.name.lower()}, ratio", it.ratios, unit="ratio")
