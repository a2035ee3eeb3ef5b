"""Frames of real KV: ratios, speeds on one core, and what 8 bits do to the next tokens.

What rounding the KV does to a token shows best where nothing else rounds: in f32, without dynamic
quantization. With it, an input that changes by its last bit may round to another step of 8 bits in
the products of weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.harness import Run, median
from bench.harness.prompts import PromptSupply
from outrider.codec.kv import KvDtype, KvHeader, KvLayout, Payload, decode_frame, encode_frame
from outrider.engines.base import Engine, Ids, Logits, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import ModelSpec
from outrider.models.definitions import Precision
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary

SIZES = (200, 320, 480, 640, 900, 1200, 1500)
"""Tokens of a prefix, cut to whole blocks."""
NUM_NEXT = 192
"""Tokens behind the prefix that are scored with the KV that came through a frame."""


class Arithmetic(NamedTuple):
    """How an engine computes."""

    precision: Precision
    dynamic_quantization: bool
    """Whether products of weights round their inputs to 8 bits, as replicas do by default."""

    def __str__(self) -> str:
        return self.precision + ("" if self.dynamic_quantization else ", no dynamic quantization")


ARITHMETICS = (Arithmetic("bf16", True), Arithmetic("f32", True), Arithmetic("f32", False))


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
    bytes_per_token: list[float] = field(default_factory=list)
    encode_mb_s: list[float] = field(default_factory=list)
    decode_mb_s: list[float] = field(default_factory=list)
    decode_share: list[float] = field(default_factory=list)
    """Processor time of decoding over that of computing the same tokens."""
    scores: Scores = field(default_factory=Scores)
    num_equal: int = 0
    """Frames whose blocks came out bit for bit."""


@dataclass(slots=True)
class Frames:
    """In one arithmetic."""

    payloads: dict[Payload, Measured]
    twice: Scores = field(default_factory=Scores)
    """With KV that has been through two frames in 8 bits."""
    as_bf16: Scores = field(default_factory=Scores)
    """With f32 KV rounded to bf16."""
    flipped: Scores = field(default_factory=Scores)
    """With the last bit of every number the other one: what the least of all changes does."""


def measure(
    run: Run, model: ModelSpec, store: ModelStore, count: int, progress: Callable[[str], None]
) -> list[Frames]:
    """`count` prefixes of the model in each arithmetic, and a table of each."""
    vocabulary = load_vocabulary(model, store)
    return [_measure(run, model, store, vocabulary, it, count, progress) for it in ARITHMETICS]


def _measure(
    run: Run,
    model: ModelSpec,
    store: ModelStore,
    vocabulary: Vocabulary,
    arithmetic: Arithmetic,
    count: int,
    progress: Callable[[str], None],
) -> Frames:
    config = EngineConfig(
        num_blocks=160,
        precision=arithmetic.precision,
        dynamic_quantization=arithmetic.dynamic_quantization,
        max_fixed_rows=0,
    )
    engine = load_engine(model, store, config)
    try:
        layout = engine.info.kv_layout
        assert layout is not None, "the engine's KV cannot be packed"
        found = Frames({payload: Measured() for payload in Payload})
        for number, ids in enumerate(prefixes(vocabulary, layout.block_tokens, count)):
            _measure_one(engine, layout, number, ids, found)
            progress(f"frames of {model.name} in {arithmetic}: {number + 1} of {count}")
    finally:
        engine.close()
    _table(run, model.name, arithmetic, layout, found, count)
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

    def score(kv: bytes, into: Scores) -> None:
        engine.import_blocks(table[:num_blocks].tolist(), kv)
        into.add(_score(engine, sequence, ids, num_prefix, table), exact, following)

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
        into.bytes_per_token.append(len(frame) / num_prefix)
        score(b"".join(out), into.scores)
        if payload is Payload.Q8:
            score(b"".join(decode_frame(encode_frame(header, out)).blocks()), found.twice)
    score(_last_bits_flipped(data, layout), found.flipped)
    if layout.dtype is KvDtype.F32:
        score(_as_bf16(data), found.as_bf16)
    engine.close_sequence(sequence)


def _last_bits_flipped(data: bytes, layout: KvLayout) -> bytes:
    """The least change that there is, in every number."""
    dtype = np.dtype("<u4" if layout.dtype.num_bytes == 4 else "<u2")
    words = np.frombuffer(data, dtype)
    return (words ^ np.ones((), dtype)).tobytes()


def _as_bf16(data: bytes) -> bytes:
    """float32 numbers, rounded to the nearest that have 8 bits of mantissa."""
    bits = np.frombuffer(data, np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF_0000)).tobytes()


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
    run: Run, model: str, arithmetic: Arithmetic, layout: KvLayout, found: Frames, count: int
) -> None:
    table = run.table(
        f"Frames of KV of {model} in {arithmetic}: {count} prefixes of 200 to 1,500 tokens",
        *("payload", "bytes a token", "smaller than the engine's KV", "than f32"),
        *("encode, MB/s", "decode, MB/s"),
        *("decode over compute, CPU", "same likeliest next token", "perplexity ratio", "bit-equal"),
    )
    to_f32 = 4 / layout.dtype.num_bytes
    for payload, it in found.payloads.items():
        table.add(
            payload.name.lower(),
            median(it.bytes_per_token),
            median(it.ratios),
            median(it.ratios) * to_f32,
            median(it.encode_mb_s),
            median(it.decode_mb_s),
            median(it.decode_share),
            f"{it.scores.same_share:.4f}",
            f"{it.scores.perplexity_ratio:.4f}",
            f"{it.num_equal} of {count}",
        )
        run.samples(
            f"{model}, {arithmetic}, {payload.name.lower()}, ratio", it.ratios, unit="ratio"
        )
    others = {
        "KV that went through two frames in 8 bits": found.twice,
        "KV rounded to bf16": found.as_bf16,
        "KV as computed, but for the last bit of every number": found.flipped,
    }
    told = [
        f"{what}: {it.same_share:.4f} (perplexity ratio {it.perplexity_ratio:.4f})"
        for what, it in others.items()
        if it.num_scored
    ]
    table.note(
        f"{found.flipped.num_scored:,} next tokens. The share of the likeliest that stay the same, "
        f"for comparison. {'. '.join(told)}."
    )
