"""How large a model is once it serves, read from its file's header or its folder's config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from outrider.engines.config import Precision
from outrider.engines.cpu_features import cpu_flags
from outrider.errors import UnsupportedModelError
from outrider.models.catalog import ModelSpec
from outrider.models.checkpoint import read_checkpoint_config
from outrider.models.folder import (
    holds_checkpoint,
    is_archive,
    read_config,
    read_facts,
    unpacked,
)
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.sources.members import WEIGHTS
from outrider.models.store import ModelStore

_GROUP: Final = 32
_SCALE_BYTES: Final = 2
"""The converter stores weights in a byte each, and an f16 for each group of so many (layouts)."""
_FEW_BITS: Final = 4
_FEW_BITS_BYTES: Final = (64 / 2 + _SCALE_BYTES + 1 / 2) / 64
"""Bytes of a weight stored in few bits: groups of 64, each with an f16 scale and a zero point of
half a byte."""
_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_VERSION: Final = 2
"""Raised whenever the stored record changes."""
_KEPT: Final = "size.json"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes that a model's memory depends on."""

    weights_bytes: int
    """Bytes of all matrices as converted, with 8 bits a weight."""
    vocabulary_size: int
    num_layers: int
    kv_values: int
    """Values of one token's keys and values in one layer."""
    packed_bytes: int = 0
    """Part of weights_bytes that is stored with 4 bits a weight if that is configured: all matrices
    but the embedding; 0 for an OpenVINO folder, which is served as it is."""

    def weights_bytes_of(self, weight_bits: int) -> int:
        """Bytes of all matrices with `weight_bits` a weight (layouts)."""
        if weight_bits != _FEW_BITS:
            return self.weights_bytes
        share = _FEW_BITS_BYTES / (1 + _SCALE_BYTES / _GROUP)
        return self.weights_bytes - self.packed_bytes + round(self.packed_bytes * share)

    def kv_token_bytes(self, precision: Precision) -> int:
        """KV bytes of one token over all layers, in the precision that serves here."""
        return self.num_layers * self.kv_values * _value_bytes(precision)


def size_of(spec: ModelSpec, store: ModelStore) -> ModelSize:
    """Size of a model in the store. It is cached there, since reading a large vocabulary's header
    takes seconds. Raises what ModelStore.load, read_size and read_folder_size raise."""
    artifact = store.load(spec.source, sha256=spec.sha256)

    def build(folder: Path) -> None:
        if spec.embeds:
            size = read_embedder_size(unpacked(artifact, store), artifact.num_bytes)
        elif is_archive(artifact.path):
            size = read_folder_size(unpacked(artifact, store))
        else:
            size = read_size(artifact.path)
        (folder / _KEPT).write_text(json.dumps(asdict(size)))

    directory = store.derived(artifact, f"size-v{_VERSION}", build)
    return ModelSize(**json.loads((directory / _KEPT).read_text()))


def read_size(path: Path) -> ModelSize:
    """Size of a GGUF file's model. Raises ArtifactCorruptError if it is no GGUF file, OSError, and
    UnsupportedModelError if its header is not that of a transformer."""
    reader = open_gguf(path)
    tokens = reader.fields.get("tokenizer.ggml.tokens")
    if tokens is None:
        raise UnsupportedModelError("the model file has no vocabulary; use a complete GGUF file")

    def number(key: str, default: int | None = None) -> int:
        value = content_of(reader, f"{content_of(reader, 'general.architecture')}.{key}")
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise UnsupportedModelError(
                f"the model file has no number {key}; use a complete GGUF file"
            )
        return value

    heads = number("attention.head_count")
    head_size = number("embedding_length") // heads
    sizes = (number("attention.key_length", head_size), number("attention.value_length", head_size))
    weights_bytes, packed_bytes = _weights_bytes(reader)
    return ModelSize(
        weights_bytes=weights_bytes,
        vocabulary_size=len(tokens.data),
        num_layers=number("block_count"),
        kv_values=number("attention.head_count_kv", heads) * sum(sizes),
        packed_bytes=packed_bytes,
    )


def read_folder_size(folder: Path) -> ModelSize:
    """Size of the model in a folder: a checkpoint, or an OpenVINO model, whose weights serve as
    they are. Raises UnsupportedModelError if its config.json is not that of a transformer,
    OSError."""
    config = read_config(folder)

    def number(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise UnsupportedModelError(f"config.json has no number {key}; use a complete folder")
        return value

    heads = number("num_attention_heads")
    head_size = number("head_dim", max(1, number("hidden_size") // heads))
    if holds_checkpoint(folder):
        weights_bytes, packed_bytes = _checkpoint_bytes(config)
    else:
        weights_bytes, packed_bytes = (folder / WEIGHTS).stat().st_size, 0
    return ModelSize(
        weights_bytes=weights_bytes,
        vocabulary_size=number("vocab_size"),
        num_layers=number("num_hidden_layers"),
        kv_values=number("num_key_value_heads", heads) * 2 * head_size,
        packed_bytes=packed_bytes,
    )


def read_embedder_size(folder: Path, num_bytes: int) -> ModelSize:
    """Size of an embedding model whose archive has `num_bytes`: the engine holds its weights in
    float32 once as they are and once for its kernels, and it has no KV. Raises
    UnsupportedModelError."""
    facts = read_facts(folder)
    return ModelSize(
        weights_bytes=2 * num_bytes,
        vocabulary_size=facts.vocabulary_size,
        num_layers=1,
        kv_values=0,
    )


def _checkpoint_bytes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of all matrices, and of all but the embedding. The output head counts separately, even
    if it is the embedding."""
    return _summed(
        {
            each.gguf_name: math.prod(each.shape)
            for each in read_checkpoint_config(config).tensors(with_head=True)
            if len(each.shape) > 1
        }
    )


def _stored_bytes(count: int) -> int:
    return count + count // _GROUP * _SCALE_BYTES


def _summed(counts: Mapping[str, int]) -> tuple[int, int]:
    whole = sum(map(_stored_bytes, counts.values()))
    return whole, whole - _stored_bytes(counts.get(_EMBEDDING, 0))


def _weights_bytes(reader: Any) -> tuple[int, int]:
    """Bytes of all matrices of a GGUF file, and of all but the embedding, as
    `_checkpoint_bytes`."""
    counts = {
        tensor.name: int(tensor.n_elements) for tensor in reader.tensors if len(tensor.shape) > 1
    }
    if _HEAD not in counts:  # one matrix for both, which the graph holds twice
        counts[_HEAD] = counts.get(_EMBEDDING, 0)
    return _summed(counts)


def _value_bytes(precision: Precision) -> int:
    """Bytes of a KV value: decides as compiling.precision_of, without OpenVINO."""
    flags = cpu_flags()
    served = "avx512_bf16" in flags and "amx_bf16" not in flags
    return 2 if precision == "bf16" or (precision == "auto" and served) else 4
