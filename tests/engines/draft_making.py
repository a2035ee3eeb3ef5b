"""Drafts without training: some of the target's own layers and rows of its tied head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from outrider.models.gguf_file import open_gguf
from tests.models.gguf_files import write_out

LAYERS = (0, 10, 20, 29)
_GEOMETRY = (
    *("context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("rope.dimension_count", "rope.freq_base", "vocab_size"),
)


def make_draft(
    target: Path, out: Path, head_ids: Sequence[int], *, digest: str, layers: Sequence[int] = LAYERS
) -> Path:
    """Write a draft of the target's `layers` whose head has `head_ids`, in this order."""
    reader = open_gguf(target)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    writer = gguf.GGUFWriter(out, "llama")
    for name in _GEOMETRY:
        field = reader.fields.get(f"llama.{name}")
        if field is not None:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    writer.add_block_count(len(layers))
    _add_card(writer, head_ids, digest)
    for at, layer in enumerate(layers):
        for name, tensor in tensors.items():
            if name.startswith(f"blk.{layer}."):
                _add_exact(writer, name.replace(f"blk.{layer}.", f"blk.{at}."), tensor)
    _add(writer, "output_norm.weight", tensors["output_norm.weight"], None)
    head = tensors["token_embd.weight"]
    _add(writer, "output.weight", head, head.data[np.asarray(head_ids)])
    write_out(writer)
    return out


def _add_card(writer: gguf.GGUFWriter, head_ids: Sequence[int], digest: str) -> None:
    unsigned, floats = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32
    array = gguf.GGUFValueType.ARRAY
    writer.add_string("outrider.draft.target", "smollm2-135m-instruct")
    writer.add_string("outrider.draft.vocabulary_digest", digest)
    writer.add_key_value("outrider.draft.head_ids", list(head_ids), array, sub_type=unsigned)
    writer.add_key_value("outrider.draft.calibration_begins", [0], array, sub_type=unsigned)
    for kind in ("greedy", "sampled"):
        name = f"outrider.draft.calibration_{kind}"
        writer.add_key_value(name, [0.0, 0.3, 0.9], array, sub_type=floats)


def _add_exact(writer: gguf.GGUFWriter, name: str, tensor: gguf.ReaderTensor) -> None:
    """Matrices in a format that the converter reads without loss, as drafts have to be."""
    kind = gguf.GGMLQuantizationType.Q8_0
    if len(tensor.shape) == 1 or tensor.tensor_type == kind:
        writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
        return
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def _add(
    writer: gguf.GGUFWriter,
    name: str,
    tensor: gguf.ReaderTensor,
    data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None,
) -> None:
    writer.add_tensor(name, tensor.data if data is None else data, raw_dtype=tensor.tensor_type)
