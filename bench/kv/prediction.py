"""How small exact KV could be if something predicted it: the bound for each predictor.

    python -m bench.kv.prediction

Each prefix is computed by a model and its draft model, both in f32. Predictors are fitted on some
prefixes and judged on others: the bits are those of an ideal arithmetic coder with a distribution
of prediction errors that was fitted too (one shape for each plane, one width for each channel), so
no coder of these predictions does better but by a better shape. Keys are predicted without their
rotation and rotated again. bf16: the numbers rounded to bf16, as an engine in bf16 would keep them,
but without its rounding in between, which no predictor knows.

`restore`: the link's time or the predictor's, whichever is longer: both at once, at the best.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from bench.harness import Run, median, parser, start
from bench.harness.larger_models import CODER_05B, CODER_15B, have_all
from bench.harness.prompts import PromptSupply
from outrider.codec.kv import KvDtype, KvLayout, Payload
from outrider.codec.kv.payload import encode_block
from outrider.engines.base import Ids, SequenceSlice
from outrider.engines.config import EngineConfig
from outrider.engines.gguf_decoder.metadata import number_of
from outrider.engines.openvino.loading import load_engine
from outrider.models.catalog import DEFAULT_MODEL, ModelSpec
from outrider.models.gguf_file import content_of
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

KINDS: Final = ("document", "chat", "document", "code")
LENGTH: Final = 256
"""Tokens of a prefix."""
LINK_MBIT_S: Final = 50.0
NUM_PREFIXES: Final = 12
NUM_QUICK: Final = 4
TEST_SHARE: Final = 4
"""One prefix of so many is judged; the others are fitted on."""
NUM_QUANTILES: Final = 2048
RIDGE: Final = 0.01
"""Of the variance of each input, added to it."""
ESCAPE: Final = 0.01
"""Share of a Cauchy distribution in that of the errors, for those that no prefix showed."""
MANTISSA_BITS: Final = {KvDtype.BF16: 7, KvDtype.F32: 23}
PREDICTORS: Final = (
    "nothing but the channel",
    "previous token, same channel",
    "token (layer 0's KV)",
    "layers below, same token",
    "draft model's KV",
    "layers below and draft model's KV",
)


@dataclass(frozen=True, slots=True)
class Computed:
    """KV of one model: [prefixes, planes, tokens, channels], keys rotated and not."""

    kv: Floats
    plain: Floats
    head_size: int
    base: float
    ms_per_token: float
    packed_bits: dict[KvDtype, float] = field(default_factory=dict)
    """Bits of a number in today's frames."""

    def at_depth(self, share: float) -> Floats:
        """[prefixes, tokens, inputs] of the three layers around a share of the depth."""
        num_layers = self.kv.shape[1] // 2
        first = min(max(round(share * (num_layers - 1)) - 1, 0), max(num_layers - 3, 0))
        return _side_by_side(self.plain[:, 2 * first : 2 * first + 6])


def rotated(keys: Floats, head_size: int, base: float, *, back: bool = False) -> Floats:
    """[..., tokens, channels] keys turned by their positions (or back), the halves of a head being
    the pairs (RoFormer, arXiv 2104.09864; the halves as in GPT-NeoX)."""
    half = head_size // 2
    angles = np.arange(keys.shape[-2])[:, None] * base ** -(np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None] * (-1 if back else 1)
    heads = keys.reshape(*keys.shape[:-1], -1, head_size)
    first, second = heads[..., :half], heads[..., half:]
    turned = (first * cosine - second * sine, first * sine + second * cosine)
    return np.concatenate(turned, axis=-1).reshape(keys.shape).astype(np.float32)


def to_bf16(numbers: Floats) -> Floats:
    """float32 rounded to the nearest that have 7 bits of mantissa."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF_0000)).view(np.float32)


def fitted(inputs: Floats, targets: Floats) -> Floats:
    """[inputs + 1, targets] of the ridge regression; the last row is the constant."""
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-6
    scaled = ((inputs - mean) / spread).astype(np.float64)
    gram = scaled.T @ scaled
    gram[np.diag_indices_from(gram)] += RIDGE * len(inputs)
    centre = targets.mean(0)
    weights = np.linalg.solve(gram, scaled.T @ (targets - centre)) / spread[:, None]
    return np.vstack([weights, centre - mean @ weights]).astype(np.float32)


class ErrorCoder:
    """An ideal coder of numbers whose errors of prediction are distributed as those of the fit."""

    def __init__(self, errors: Floats) -> None:
        """`errors`: [tokens, channels] of the prefixes that are fitted on."""
        self._widths = np.sqrt(np.mean(errors.astype(np.float64) ** 2, axis=0)) + 1e-30
        self._shares = np.linspace(0.0, 1.0, NUM_QUANTILES)
        self._quantiles = np.quantile(errors / self._widths, self._shares)

    def bits(self, numbers: Floats, predicted: Floats, mantissa_bits: int) -> float:
        """Mean bits of a number of [tokens, channels] with so many bits of mantissa."""
        exact = numbers.astype(np.float64)
        exponents = np.frexp(exact)[1] - 1
        half = np.ldexp(0.5, np.maximum(exponents, -126) - mantissa_bits)
        low = self._below((exact - half - predicted) / self._widths)
        share = self._below((exact + half - predicted) / self._widths) - low
        return float(-np.log2(np.maximum(share, 2.0**-64)).mean())

    def _below(self, errors: Floats) -> Floats:
        shown = np.interp(errors, self._quantiles, self._shares)
        return (1 - ESCAPE) * shown + ESCAPE * (0.5 + np.arctan(errors) / np.pi)


def computed(spec: ModelSpec, prefixes: Sequence[Ids], store: ModelStore) -> Computed:
    """KV of the prefixes. Blocks for minutes."""
    engine = load_engine(
        spec, store, EngineConfig(num_blocks=40, precision="f32", max_fixed_rows=0)
    )
    layout = engine.info.kv_layout
    assert layout is not None and len(layout.groups) == 1, "all layers have to be alike"
    group = layout.groups[0]
    num_blocks = LENGTH // layout.block_tokens
    table = np.arange(num_blocks + 1, dtype=np.int32)
    kv, took_ms = [], []
    packed: dict[KvDtype, list[float]] = {dtype: [] for dtype in MANTISSA_BITS}
    shape = (num_blocks, layout.num_planes, group.num_heads, layout.block_tokens, group.head_size)
    for number, ids in enumerate(prefixes):
        engine.open(number, ids)
        begin = time.process_time()
        engine.step([SequenceSlice(number, ids, 0, table, 1)])
        took_ms.append(1e3 * (time.process_time() - begin) / LENGTH)
        blocks = np.frombuffer(engine.export_blocks(table[:-1].tolist()), np.float32)
        engine.close_sequence(number)
        for dtype, into in packed.items():
            into.append(_packed_bits(blocks.reshape(num_blocks, -1), dtype, layout))
        planes = blocks.reshape(shape).transpose(1, 0, 3, 2, 4)
        kv.append(planes.reshape(layout.num_planes, LENGTH, -1).copy())
        print(f"{spec.name}: {number + 1} of {len(prefixes)} prefixes", file=sys.stderr)
    engine.close()
    whole = np.stack(kv)
    base = _rotary_base(store.ensure(spec.source, sha256=spec.sha256 or None).path)
    plain = whole.copy()
    plain[:, ::2] = rotated(whole[:, ::2], group.head_size, base, back=True)
    bits = {dtype: median(found) for dtype, found in packed.items()}
    return Computed(whole, plain, group.head_size, base, median(took_ms), bits)


def predicted(
    name: str, target: Computed, draft: Computed | None, plane: int, fit: slice, test: slice
) -> tuple[Floats, Floats]:
    """Predictions of one plane for the prefixes of `fit` and of `test`, [tokens, channels] each."""
    truth = target.plain[:, plane]
    if name == PREDICTORS[0]:
        guess = np.broadcast_to(truth[fit].mean((0, 1)), truth.shape)
    else:
        inputs = _inputs(name, target, draft, plane)
        early = inputs[fit, : 3 * LENGTH // 4]
        wanted = truth[fit, : 3 * LENGTH // 4]
        if name == PREDICTORS[1]:
            mean = wanted.mean((0, 1))
            slope = ((early - mean) * (wanted - mean)).mean((0, 1)) / (wanted.var((0, 1)) + 1e-9)
            guess = mean + slope * (inputs - mean)
        else:
            weights = fitted(_rows(early), _rows(wanted))
            guess = (_rows(inputs) @ weights[:-1] + weights[-1]).reshape(truth.shape)
    if plane % 2 == 0:
        guess = rotated(guess, target.head_size, target.base)
    return guess[fit, 3 * LENGTH // 4 :], guess[test]


def _inputs(name: str, target: Computed, draft: Computed | None, plane: int) -> Floats:
    """[prefixes, tokens, inputs] of what a predictor knows of the target's plane."""
    if name == PREDICTORS[1]:
        return np.concatenate([target.plain[:, plane, :1], target.plain[:, plane, :-1]], axis=1)
    token = _side_by_side(target.plain[:, :2])
    if name == PREDICTORS[2]:
        return token
    # A layer's keys are known when its values are decoded.
    below = _side_by_side(target.plain[:, max(0, plane - 2 - plane % 2) : plane])
    if name == PREDICTORS[3]:
        return np.concatenate([token, below], axis=2) if plane > 3 else below
    assert draft is not None
    of_draft = draft.at_depth(plane // 2 / (target.plain.shape[1] // 2 - 1))
    return of_draft if name == PREDICTORS[4] else np.concatenate([below, of_draft], axis=2)


def bits_of(name: str, target: Computed, draft: Computed | None) -> dict[KvDtype, float]:
    """Mean bits of a number in each format. Layer 0 costs none for predictors that know the token:
    its keys and values follow from the id alone, by one small product each."""
    num_test = -(-len(target.kv) // TEST_SHARE)
    fit, test = slice(0, -num_test), slice(len(target.kv) - num_test, None)
    sums = dict.fromkeys(MANTISSA_BITS, 0.0)
    for plane in range(target.kv.shape[1]):
        if plane < 2 and name in PREDICTORS[2:]:
            continue
        of_fit, of_test = predicted(name, target, draft, plane, fit, test)
        coder = ErrorCoder(_rows(target.kv[fit, plane, 3 * LENGTH // 4 :] - of_fit))
        numbers = target.kv[test, plane]
        for dtype, mantissa_bits in MANTISSA_BITS.items():
            exact = to_bf16(numbers) if dtype is KvDtype.BF16 else numbers
            sums[dtype] += coder.bits(_rows(exact), _rows(of_test), mantissa_bits)
    return {dtype: bits / target.kv.shape[1] for dtype, bits in sums.items()}


def _rows(numbers: Floats) -> Floats:
    """[prefixes, tokens, channels] as [rows, channels]."""
    return numbers.reshape(-1, numbers.shape[-1])


def _side_by_side(planes: Floats) -> Floats:
    """[prefixes, planes, tokens, channels] as [prefixes, tokens, inputs]."""
    prefixes, _, tokens, _ = planes.shape
    return planes.transpose(0, 2, 1, 3).reshape(prefixes, tokens, -1)


def _packed_bits(blocks: Floats, dtype: KvDtype, layout: KvLayout) -> float:
    """Bits of a number in exact sections of today's codec."""
    layout = KvLayout(dtype, layout.block_tokens, layout.groups)
    num_bytes = 0
    for block in blocks:
        words = np.ascontiguousarray(block)
        if dtype is KvDtype.BF16:
            words = (to_bf16(words).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        num_bytes += len(encode_block(memoryview(words.tobytes()), layout, Payload.EXACT))
    return 8 * num_bytes / blocks.size


def _rotary_base(path: Path) -> float:
    reader = GGUFReader(path)
    return number_of(reader, f"{content_of(reader, 'general.architecture')}.rope.freq_base", 1e4)


def prefixes(vocabulary: Vocabulary, count: int) -> list[Ids]:
    """Of texts of all kinds in turn, none twice."""
    supplies = {kind: PromptSupply(kind) for kind in KINDS}
    found: list[Ids] = []
    while len(found) < count:
        supply = supplies[KINDS[len(found) % len(KINDS)]]
        ids: list[int] = []
        while len(ids) < LENGTH:
            ids += vocabulary.encode(supply.take(1)[0])
        found.append(np.array(ids[:LENGTH], np.int32))
    return found


def report(run: Run, name: str, target: Computed, draft: Computed | None) -> None:
    """A row for today's frames and for each predictor."""
    table = run.table(
        f"Exact KV of {name}, predicted: {len(target.kv)} prefixes of {LENGTH} tokens",
        *("predictor", "bits a number, bf16", "smaller than bf16", "bits a number, f32"),
        *("predictor, CPU ms a token", f"bf16 at {LINK_MBIT_S:g} Mbit/s, ms a token"),
        "restore over computing",
    )
    table.note(
        f"Computing: {target.ms_per_token:.1f} ms of CPU a token. Restore: the longer of link and "
        "predictor. Today's frames are bytes, all others bounds."
    )
    channels = target.kv.shape[1] * target.kv.shape[3]
    for predictor in ("none: today's frames", *PREDICTORS[: 6 if draft else 4]):
        today = predictor not in PREDICTORS
        bits = target.packed_bits if today else bits_of(predictor, target, draft)
        with_draft = draft is not None and "draft" in predictor
        own_ms = draft.ms_per_token if draft is not None and with_draft else 0.0
        link_ms = bits[KvDtype.BF16] * channels / LINK_MBIT_S / 1e3
        table.add(
            predictor,
            round(bits[KvDtype.BF16], 2),
            round(16 / bits[KvDtype.BF16], 2),
            round(bits[KvDtype.F32], 2),
            round(own_ms, 1),
            round(link_ms, 2),
            round(max(link_ms, own_ms) / target.ms_per_token, 3),
        )
        print(f"{name}: {predictor}: {bits}", file=sys.stderr)


def main() -> int:
    run = start("kv_prediction", parser("kv_prediction", __doc__ or "").parse_args())
    store = ModelStore(default_root())
    count = NUM_QUICK if run.quick else NUM_PREFIXES
    texts = prefixes(load_vocabulary(DEFAULT_MODEL, store), count)
    report(run, DEFAULT_MODEL.name, computed(DEFAULT_MODEL, texts, store), None)
    files, missing = have_all(() if run.quick else (CODER_05B, CODER_15B))
    run.setting("missing", **missing)
    if len(files) == 2:
        draft, target = (
            ModelSpec(model.name, f"file:{files[model.name]}", model.sha256)
            for model in (CODER_05B, CODER_15B)
        )
        texts = prefixes(load_vocabulary(target, store), count)
        of_draft = computed(draft, texts, store)
        report(run, target.name, computed(target, texts, store), of_draft)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
