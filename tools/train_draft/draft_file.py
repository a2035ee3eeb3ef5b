"""The draft model as one GGUF file.

A Llama model without embedding and tokenizer, which are those of the target's GGUF file, and with
an output head of some of the target's ids alone. For a target without such a file, a folder, the
draft has the embedding, and tokens without texts:

- the `llama.*` metadata and tensors `blk.N.*`, `output_norm.weight` as in any GGUF file;
- `output.weight` [num_head_rows, width]: row r scores the id `outrider.draft.head_ids[r]`;
- `outrider.draft.target`: the target's catalog name;
- `outrider.draft.vocabulary_digest`: of the target's vocabulary, hexadecimal;
- `outrider.draft.calibration_begins`: the first reply token of each of b ranges, from 0 on;
- `outrider.draft.calibration_greedy`, `outrider.draft.calibration_sampled`: b curves of 21 values,
  one after the other: the chance that the target chooses the draft's token too, in that range of
  the reply, at temperature 0 and at 0.8 with shared noise, where the draft's confidence
  (outrider.engines.draft_calibration) is 0, 1/20, 2/20, ... 1; linear between these.

Four-bit blocks that survive the engine's conversion (`pack`): a Q4_1 block of 32 values is a scale
d and a minimum m in f16, then 16 bytes: the low halves are the first 16 values, the high halves the
others. A value is d * q + m, but the converter writes d * (q - z) with a whole z, 0 <= z <= 15, in
place of -m / d. Rounded so afterwards, weights change by some 8 %; these blocks have m = -d * z
from the start, so they change by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    dequantize,
    quantize,
)

from outrider.engines.draft_file import add_placeholder_tokens
from tools.train_draft.target import EMBEDDING, OUTPUT, Floats, Geometry, Tensors

QUANTISATIONS = ("Q4_1", "Q8_0")
_PREFIX = "outrider.draft"
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Draft:
    """The contents of the file; `geometry` is the draft's own."""

    geometry: Geometry
    tensors: Tensors
    head_ids: npt.NDArray[np.uint32]
    """[num_head_rows] distinct ids, ascending."""
    target: str
    vocabulary_digest: str
    calibration_begins: npt.NDArray[np.uint32]
    """[b] the first reply token of each range, ascending from 0."""
    calibration_greedy: Floats
    """[b, 21]"""
    calibration_sampled: Floats
    embedding: Floats | None = None
    """[V, width] of a target that is a folder; None: it is in the target's file."""

    def __post_init__(self) -> None:
        """Raises ValueError for parts that do not belong together."""
        if np.any(np.diff(self.head_ids.astype(np.int64)) <= 0):
            raise ValueError("the head's ids do not ascend")
        if self.head_ids[-1] >= self.geometry.vocab_size:
            raise ValueError("the head has ids outside the vocabulary")
        if self.tensors[OUTPUT].shape != (len(self.head_ids), self.geometry.embedding_length):
            raise ValueError(f"the head is {self.tensors[OUTPUT].shape}, its ids another number")
        for curves in (self.calibration_greedy, self.calibration_sampled):
            if curves.ndim != 2 or len(curves) != len(self.calibration_begins):
                raise ValueError(f"calibration curves {curves.shape} for another number of ranges")


def write_draft(path: Path, draft: Draft, layers: str = "Q8_0", head: str = "Q8_0") -> None:
    """Write `path`, matrices quantised as named by `layers` and `head`; it replaces the file in
    one step, so that a reader never finds a half-written one."""
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, "llama")
    _add_metadata(writer, draft)
    if draft.embedding is not None:
        add_placeholder_tokens(writer, len(draft.embedding))
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(EMBEDDING, quantize(draft.embedding, kind), raw_dtype=kind)
    for name, tensor in draft.tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.astype(np.float32))
            continue
        kind = GGMLQuantizationType[head if name == OUTPUT else layers]
        is_packed = kind == GGMLQuantizationType.Q4_1
        data = pack(tensor) if is_packed else quantize(tensor, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    _finish(writer)
    partial.replace(path)


def replace_metadata(path: Path, out: Path, draft: Draft) -> None:
    """Write `out`: the weights of the file at `path` as they are, with the metadata of `draft`. It
    replaces `out`, which may be `path`, in one step."""
    partial = out.with_suffix(".partial")
    writer = GGUFWriter(partial, "llama")
    _add_metadata(writer, draft)
    reader = GGUFReader(path)
    if _TOKENS in reader.fields:
        add_placeholder_tokens(writer, len(reader.fields[_TOKENS].data))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)
    partial.replace(out)


def read_draft(path: Path) -> Draft:
    """Read a draft, with its matrices dequantised to the values that engines compute with."""
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in reader.tensors
    }
    embedding = tensors.pop(EMBEDDING, None)
    begins = np.array(fields[f"{_PREFIX}.calibration_begins"], np.uint32)

    def curves(mode: str) -> Floats:
        return np.array(fields[f"{_PREFIX}.calibration_{mode}"], np.float32).reshape(
            len(begins), -1
        )

    return Draft(
        geometry=_geometry(fields),
        tensors=tensors,
        head_ids=np.array(fields[f"{_PREFIX}.head_ids"], np.uint32),
        target=fields[f"{_PREFIX}.target"],
        vocabulary_digest=fields[f"{_PREFIX}.vocabulary_digest"],
        calibration_begins=begins,
        calibration_greedy=curves("greedy"),
        calibration_sampled=curves("sampled"),
        embedding=embedding,
    )


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: GGUFWriter, draft: Draft) -> None:
    geometry = draft.geometry
    writer.add_name(f"Draft for {draft.target}")
    writer.add_license("apache-2.0")
    writer.add_block_count(geometry.block_count)
    writer.add_context_length(geometry.context_length)
    writer.add_embedding_length(geometry.embedding_length)
    writer.add_feed_forward_length(geometry.feed_forward_length)
    writer.add_head_count(geometry.head_count)
    writer.add_head_count_kv(geometry.head_count_kv)
    writer.add_rope_dimension_count(geometry.rope_dimension_count)
    writer.add_rope_freq_base(geometry.rope_freq_base)
    writer.add_layer_norm_rms_eps(geometry.rms_epsilon)
    writer.add_vocab_size(geometry.vocab_size)
    writer.add_string(f"{_PREFIX}.target", draft.target)
    writer.add_string(f"{_PREFIX}.vocabulary_digest", draft.vocabulary_digest)
    for name in ("head_ids", "calibration_begins"):
        numbers = getattr(draft, name).tolist()
        writer.add_key_value(
            f"{_PREFIX}.{name}", numbers, GGUFValueType.ARRAY, sub_type=GGUFValueType.UINT32
        )
    writer.add_array(f"{_PREFIX}.calibration_greedy", draft.calibration_greedy.ravel().tolist())
    writer.add_array(f"{_PREFIX}.calibration_sampled", draft.calibration_sampled.ravel().tolist())


def _geometry(fields: dict[str, Any]) -> Geometry:
    return Geometry(
        block_count=fields["llama.block_count"],
        context_length=fields["llama.context_length"],
        embedding_length=fields["llama.embedding_length"],
        feed_forward_length=fields["llama.feed_forward_length"],
        head_count=fields["llama.attention.head_count"],
        head_count_kv=fields["llama.attention.head_count_kv"],
        rope_dimension_count=fields["llama.rope.dimension_count"],
        rope_freq_base=fields["llama.rope.freq_base"],
        rms_epsilon=fields["llama.attention.layer_norm_rms_epsilon"],
        vocab_size=fields["llama.vocab_size"],
    )


Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK = 32
MOST = 15
_HALF = BLOCK // 2
_HEAD_BYTES = 4


def pack(matrix: Floats) -> Bytes:
    """[out, in / 32 * 20] bytes of [out, in] values; zero is always exact."""
    blocks = matrix.reshape(-1, BLOCK)
    least = np.minimum(blocks.min(1, keepdims=True), 0)
    most = np.maximum(blocks.max(1, keepdims=True), 0)
    scale = ((most - least) / MOST).astype(np.float16)
    divisor = np.where(scale > 0, scale, 1).astype(np.float32)
    zero = np.clip(np.round(-least / divisor), 0, MOST)
    values = np.clip(np.round(blocks / divisor) + zero, 0, MOST).astype(np.uint8)
    offset = (-scale.astype(np.float32) * zero).astype(np.float16)
    heads = np.concatenate((scale, offset), 1).view(np.uint8)
    packed = values[:, :_HALF] | (values[:, _HALF:] << 4)
    return np.concatenate((heads, packed), 1).reshape(len(matrix), -1)


def unpack_as_converted(rows: Bytes) -> Floats:
    """[out, in] the values that the engine computes with."""
    block = rows.reshape(-1, _HEAD_BYTES + _HALF)
    scale, offset = block[:, :_HEAD_BYTES].copy().view(np.float16).astype(np.float32).T[:, :, None]
    packed = block[:, _HEAD_BYTES:]
    values = np.concatenate((packed & MOST, packed >> 4), 1).astype(np.float32)
    divisor = np.where(scale != 0, scale, 1)
    zero = np.clip(np.round(-offset / divisor), 0, MOST)
    return np.asarray((scale * (values - zero)).reshape(len(rows), -1), np.float32)
