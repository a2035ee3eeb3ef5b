"""A checkpoint in safetensors written as a GGUF file, value by value: F32, F16 and BF16 keep their
type and bits, but for Gemma's gains, which GGUF files have as F32 with 1 added. Tensors are mapped
and written one after the other; in memory is one at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType

from outrider.errors import ArtifactCorruptError, UnsupportedModelError
from outrider.models.checkpoint import (
    EMBEDDING,
    HEAD,
    CheckpointConfig,
    GemmaConfig,
    NamedTensor,
    read_checkpoint_config,
)
from outrider.models.folder import checkpoint_extents, read_config
from outrider.models.safetensors_file import Extent, SafetensorsFile, TensorEntry
from outrider.models.sources.members import CHECKPOINT_INDEX, weight_map

VERSION: Final = 1
"""Raised whenever the files or their meaning change."""
NO_TOKENIZER: Final = "none"
"""The tokenizer's type in these files: it is elsewhere, in the folder."""

_TYPES: Final[dict[str, tuple[npt.DTypeLike, GGMLQuantizationType]]] = {
    "F32": (np.float32, GGMLQuantizationType.F32),
    "F16": (np.float16, GGMLQuantizationType.F16),
    "BF16": (np.uint16, GGMLQuantizationType.BF16),
}
_LEFT_OUT: Final = "rotary_emb.inv_freq"
"""Tensors that older checkpoints have beside the model's, and that follow from config.json."""
_ROTARY: Final = "rope_freqs.weight"
_SHOWN_CHARS: Final = 100
"""Longest part of a file's own name for something that an error message shows."""


class Checkpoint:
    """An unpacked folder and the checkpoint in its archive; only headers are read until a tensor is
    needed."""

    def __init__(self, folder: Path, archive: Path) -> None:
        """Raises ArtifactCorruptError for damaged files; UnsupportedModelError for an unsupported
        model, and for one with missing or unused tensors."""
        self.config = read_checkpoint_config(read_config(folder))
        index = folder / CHECKPOINT_INDEX
        files = _open(checkpoint_extents(archive))
        if index.exists():
            _check_index(weight_map(index.read_bytes()), files)
        self._file_of = {name: file for file in files.values() for name in file.tensors}
        self.tensors = self._chosen()
        """The model's tensors, in its order."""

    def write_gguf(self, path: Path) -> None:
        """Raises what reading them raises, OSError."""
        writer = GGUFWriter(path, self.config.architecture.name)
        _add_fields(writer, self.config)
        if self.config.gemma is not None:
            _add_gemma(writer, self.config.gemma, self._embedding_scale())
        factors = self.config.factors
        rotary = None if factors is None else factors.astype(np.float32)
        if rotary is not None:
            writer.add_tensor_info(_ROTARY, rotary.shape, rotary.dtype, rotary.nbytes)
        for tensor in self.tensors:
            dtype, kind = _TYPES["F32" if tensor.plus_one else self._entry(tensor.name).dtype]
            num_bytes = int(np.prod(tensor.shape)) * np.dtype(dtype).itemsize
            writer.add_tensor_info(
                tensor.gguf_name, tensor.shape, np.dtype(dtype), num_bytes, raw_dtype=kind
            )
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            if rotary is not None:
                writer.write_tensor_data(rotary)
            for tensor in self.tensors:
                writer.write_tensor_data(self._values(tensor))
        finally:
            writer.close()

    def _embedding_scale(self) -> float:
        """Gemma's, the root of the width, as upstream has it: a number of the embedding's type."""
        root = np.float32(math.sqrt(self.config.width))
        dtype = self._entry(EMBEDDING).dtype
        if dtype == "BF16":
            bits = int(root.view(np.uint32))
            bits += 0x7FFF + (bits >> 16 & 1)  # to the nearest, of two as near the even one
            return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
        return float(np.float16(root) if dtype == "F16" else root)

    def _entry(self, name: str) -> TensorEntry:
        return self._file_of[name].tensors[name]

    def _values(self, tensor: NamedTensor) -> npt.NDArray[Any]:
        """A tensor's values as the GGUF file stores them; BF16 as bits."""
        dtype, _ = _TYPES[self._entry(tensor.name).dtype]
        values = self._file_of[tensor.name].bytes_of(tensor.name).view(dtype).reshape(tensor.shape)
        if tensor.plus_one:
            if dtype is np.uint16:
                values = (values.astype(np.uint32) << 16).view(np.float32)
            return 1 + values.astype(np.float32)
        return _interleaved(values, tensor.heads) if tensor.heads else values

    def _chosen(self) -> list[NamedTensor]:
        with_head = HEAD in self._file_of
        if with_head and self.config.tied:
            # Then the head is the embedding, and what the file has besides is not used.
            self._check_equal(HEAD, EMBEDDING)
            with_head = False
        wanted = list(self.config.tensors(with_head=with_head or self.config.tied is False))
        names = {tensor.name for tensor in wanted} | ({HEAD} if self.config.tied else set())
        strange = sorted(
            name for name in self._file_of.keys() - names if not name.endswith(_LEFT_OUT)
        )
        if missing := sorted(tensor.name for tensor in wanted if tensor.name not in self._file_of):
            raise ArtifactCorruptError(f"the checkpoint lacks {_some(missing)}; fetch it again")
        if strange:
            raise UnsupportedModelError(
                f"the checkpoint has {_some(strange)}, which no {self.config.architecture.name} "
                "model has and which would be left out; choose another model"
            )
        for tensor in wanted:
            self._check(tensor)
        return wanted

    def _check(self, tensor: NamedTensor) -> None:
        entry = self._entry(tensor.name)
        if entry.shape != tensor.shape:
            raise ArtifactCorruptError(
                f"{tensor.name} has the shape {list(entry.shape)}, config.json says "
                f"{list(tensor.shape)}; the files do not belong together"
            )
        if entry.dtype not in _TYPES:
            raise UnsupportedModelError(
                f"{tensor.name} is of type {entry.dtype}; weights of {', '.join(_TYPES)} are read"
            )

    def _check_equal(self, name: str, other: str) -> None:
        if other not in self._file_of:
            return
        one, two = (self._file_of[each].bytes_of(each) for each in (name, other))
        if not np.array_equal(one, two):
            raise UnsupportedModelError(
                f"the checkpoint has {name}, which differs from {other}, and config.json says that "
                "they are one (tie_word_embeddings); choose another file of the model"
            )


def _open(extents: Sequence[Extent]) -> dict[str, SafetensorsFile]:
    """By name. Raises ArtifactCorruptError for a tensor that two files have."""
    files = dict[str, SafetensorsFile]()
    found = dict[str, str]()
    for extent in extents:
        files[extent.name] = SafetensorsFile(extent)
        for name in files[extent.name].tensors:
            if found.setdefault(name, extent.name) != extent.name:
                raise ArtifactCorruptError(
                    f"{name[:_SHOWN_CHARS]!r} is in {found[name]} and in {extent.name}; fetch the "
                    "model again"
                )
    return files


def _check_index(listed: Mapping[str, str], files: Mapping[str, SafetensorsFile]) -> None:
    """Check that the index and the files agree where each tensor is. Raises
    ArtifactCorruptError."""
    there = {name: file for file, opened in files.items() for name in opened.tensors}
    differing = sorted(
        name for name in listed.keys() | there.keys() if listed.get(name) != there.get(name)
    )
    if differing:
        name = differing[0]
        raise ArtifactCorruptError(
            f"{CHECKPOINT_INDEX} says that {name[:_SHOWN_CHARS]!r} is in "
            f"{listed.get(name, 'no file')}, and it is in {there.get(name, 'none')}; fetch the "
            "model again"
        )


def _add_fields(writer: GGUFWriter, config: CheckpointConfig) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_context_tokens)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.inner)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.epsilon)
    writer.add_rope_freq_base(config.base)
    writer.add_tokenizer_model(NO_TOKENIZER)
    writer.add_token_list([f"t{index}" for index in range(config.vocabulary_size)])


def _add_gemma(writer: GGUFWriter, gemma: GemmaConfig, embedding_scale: float) -> None:
    writer.add_sliding_window(gemma.window)
    writer.add_sliding_window_pattern(list(gemma.has_window))
    writer.add_rope_freq_base_swa(gemma.window_base)
    writer.add_attention_scale(gemma.attention_scale)
    writer.add_embedding_scale(embedding_scale)
    if gemma.factor != 1:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(gemma.factor)


def _interleaved(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """[rows, ...] with row i of a head's second half behind row i of its first."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _some(names: Sequence[str]) -> str:
    left = len(names) - 3
    shown = ", ".join(repr(name[:_SHOWN_CHARS]) for name in names[:3])
    return shown + (f" and {left} more" if left > 0 else "")
