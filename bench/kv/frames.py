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
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import ModelSpec
from outrider.models.definitions import Precision
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary

SIZES = (200, 320, 480, 640, 900, 1200, 1500)
"""Tokens of a prefix, cut to whole blocks."""
PRECISIONS: tuple[Precision, Precision] = ("bf16", "f32")
NUM_NEXT = 64
"""Tokens behind the prefix that are scored with the KV that came through a frame."""


@dataclass(slots=True)
class Scores:
    """What becomes of tokens behind prefixes whose KV is not quite what was computed."""

    num_scored: int = 0
    num_same: int = 0
    """Tokens of which the likeliest next one stays the same."""
    loss: float = 0.0
    exact_loss: float = 0.0
    """Sums of -log of the probability of the text's next token, with the KV and as computed."""

    def add(self, rows: Logits, exact: Logits, following: Ids) -> None:
        """Rows of logits with the KV and as computed, and the text's next tokens."""
        self.num_scored += len(rows)
        self.num_same += int((rows.argmax(1) == exact.argmax(1)).sum())
        self.loss += _loss(rows, following)
        self.exact_loss += _loss(exact, following)

    @property
    def same_share(self) -> float:
        return self.num_same / self.num_scored

    @property
    def perplexity_ratio(self) -> float:
        return math.exp((self.loss - self.exact_loss) / self.num_scored)


@dataclass(slots=True)
class Measured:
    """One payload over all prefixes."""

    ratios: list[float] = field(default_factory=list)
    encode_mb_s: list[float] = field(default_factory=list)
    decode_mb_s: list[float] = field(default_factory=list)
    decode_share: list[float] = field(default_factory=list)
    """Processor time of decoding over that of computing the same tokens."""
    scores: Scores = field(default_factory=Scores)
    num_equal: int = 0
    """Frames whose blocks came out bit for bit."""


@dataclass(slots=True)
class Frames:
    """In one precision."""

    payloads: dict[Payload, Measured]
    flipped: Scores = field(default_factory=Scores)
    """With the last bit of every number the other one: what the least of all changes does."""


def measure(
    run: Run, model: ModelSpec, store: ModelStore, count: int, progress: Callable[[str], None]
) -> tuple[Frames, Frames]:
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
) -> Frames:
    config = EngineConfig(num_blocks=160, precision=precision, max_fixed_rows=0)
    engine = load_engine(model, store, config)
    try:
        layout = engine.info.kv_layout
        assert layout is not None, "the engine's KV cannot be packed"
        found = Frames({payload: Measured() for payload in Payload})
        for number, ids in enumerate(prefixes(vocabulary, layout.block_tokens, count)):
            _measure_one(engine, layout, number, ids, found)
            progress(f"frames of {model.name} in {precision}: {number + 1} of {count}")
    finally:
        engine.close()
    _table(run, model.name, precision, layout, found, count)
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
    found: Frames,
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
    following = ids[num_prefix + 1 :]
    for payload, into in found.payloads.items():
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
        into.scores.add(_score(engine, sequence, ids, num_prefix, table), exact, following)
    engine.import_blocks(table[:num_blocks].tolist(), _last_bits_flipped(data, layout))
    found.flipped.add(_score(engine, sequence, ids, num_prefix, table), exact, following)
    engine.close_sequence(sequence)


def _last_bits_flipped(data: bytes, layout: KvLayout) -> bytes:
    """The least change that there is, in every number."""
    dtype = np.dtype("<u4" if layout.dtype.num_bytes == 4 else "<u2")
    words = np.frombuffer(data, dtype)
    return (words ^ np.ones((), dtype)).tobytes()


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
    run: Run, model: str, precision: str, layout: KvLayout, found: Frames, count: int
) -> None:
    table = run.table(
        f"Frames of KV of {model} computed in {precision}: {count} prefixes of 200 to 1,500 tokens",
        *("payload", "smaller than the engine's KV", "than f32", "encode, MB/s", "decode, MB/s"),
        *("decode over compute, CPU", "same likeliest next token", "perplexity ratio", "bit-equal"),
    )
    to_f32 = 4 / layout.dtype.num_bytes
    for payload, it in found.payloads.items():
        table.add(
            payload.name.lower(),
            median(it.ratios),
            median(it.ratios) * to_f32,
            median(it.encode_mb_s),
            median(it.decode_mb_s),
            median(it.decode_share),
            f"{it.scores.same_share:.4f}",
            f"{it.scores.perplexity_ratio:.4f}",
            f"{it.num_equal} of {count}",
        )
        run.samples(f"{model}, {precision}, {payload.name.lower()}, ratio", it.ratios, unit="ratio")
    table.note(
        "For comparison: KV as computed, but for the last bit of every number, leaves the "
        f"likeliest next token the same in {found.flipped.same_share:.4f} of them (perplexity "
        f"ratio {found.flipped.perplexity_ratio:.4f})."
    )
