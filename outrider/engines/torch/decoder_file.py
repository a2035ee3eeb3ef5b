"""A decoder in a GGUF file: what it says of sizes and rules, and its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from torch import Tensor

from outrider.engines.gguf_decoder.architectures import check_architecture
from outrider.engines.gguf_decoder.gemma import GEMMA3, GemmaLayer, read_gemma
from outrider.engines.gguf_decoder.gpt_oss import GPT_OSS, GptOssFile, read_gpt_oss
from outrider.engines.gguf_decoder.metadata import count_of, number_of
from outrider.engines.gguf_decoder.rotary import head_size_of, read_factors
from outrider.engines.torch.decoder_shape import DecoderShape, LayerRule
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of, open_gguf

_DEFAULT_BASE: Final = 10_000.0
_DEFAULT_EPSILON: Final = 1e-6
_INTERLEAVED: Final = frozenset({"llama"})
"""Architectures whose rotation turns neighbours (2i, 2i + 1); of others, halves of a head."""
_Q8_0_BYTES: Final = 2 + 32
"""Of a block: an f16, and 32 values."""
_MXFP4_BYTES: Final = 1 + 16
"""Of a block: an exponent, and 32 values, the first 16 in the low halves of bytes (OCP Microscaling
Formats 1.0)."""
_MXFP4_ONE: Final = 127
"""The exponent of a scale of 1."""
_MXFP4_DOUBLED: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the number that each 4 bits stand for."""


class DecoderFile:
    """A GGUF file of one of the architectures that are served; implements decoder.Weights."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactCorruptError for a file that is no GGUF, UnsupportedModelError for one of
        another architecture, or with a part that would be left out."""
        self._reader = open_gguf(path)
        check_architecture(self._reader)
        name = content_of(self._reader, "general.architecture")
        self._gpt_oss = read_gpt_oss(self._reader) if name == GPT_OSS else None
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.shape = _read_shape(self._reader, self._gpt_oss)

    @property
    def num_values(self) -> dict[str, int]:
        """By a tensor's name, how many numbers it has."""
        return {name: int(tensor.n_elements) for name, tensor in self._tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """[rows, columns] of a matrix, [experts, rows, columns] of several, [n] of a vector, as
        numbers of 32 bits. Raises UnsupportedModelError for a type that cannot be read, and values
        that are no numbers."""
        tensor = self._tensors[name]
        try:
            values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{name} is stored as {tensor.tensor_type.name}, which cannot be read; use a file "
                "of another quantisation"
            ) from error
        if not np.isfinite(values).all():
            raise UnsupportedModelError(f"{name} has values that are no numbers; fetch it again")
        return torch.from_numpy(values)

    def grouped(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Values [..., rows, columns], int8, and the scales of each 32, f16, of a tensor that is
        stored so (Q8_0), or whose numbers of 4 bits are such values and powers of two (MXFP4); None
        for others. Raises UnsupportedModelError for scales that are no numbers."""
        tensor = self._tensors[name]
        if tensor.tensor_type == GGMLQuantizationType.Q8_0:
            blocks = tensor.data.reshape(*tensor.data.shape[:-1], -1, _Q8_0_BYTES)
            scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
            values = blocks[..., 2:].view(np.int8)
        elif tensor.tensor_type == GGMLQuantizationType.MXFP4:
            blocks = tensor.data.reshape(*tensor.data.shape[:-1], -1, _MXFP4_BYTES)
            # Values are halves: twice as much is whole.
            powers = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - _MXFP4_ONE - 1)
            scales = powers.astype(np.float16)
            halves = np.concatenate([blocks[..., 1:] & 0xF, blocks[..., 1:] >> 4], -1)
            values = _MXFP4_DOUBLED[halves]
            if ((scales != powers) & values.any(-1)).any():
                return None
        else:
            return None
        if not np.isfinite(scales).all():
            raise UnsupportedModelError(f"{name} has values that are no numbers; fetch it again")
        shape = (*tensor.data.shape[:-1], -1)
        return torch.from_numpy(values.reshape(shape).copy()), torch.from_numpy(scales.copy())

    def frequencies(self, rule: LayerRule) -> npt.NDArray[np.float64]:
        """[pairs] radians a position by which each pair of a head's values turns."""
        if self._gpt_oss is not None:
            return self._gpt_oss.frequencies
        size = self.shape.head_size
        plain = rule.base ** -(np.arange(0, size, 2) / size) / rule.factor
        factors = read_factors(self._reader)
        return plain if factors is None else plain / factors.factors


def _read_shape(reader: GGUFReader, gpt_oss: GptOssFile | None) -> DecoderShape:
    name = str(content_of(reader, "general.architecture"))
    if name == GEMMA3:
        gemma = read_gemma(reader)
        head_size, scale = gemma.head_size, gemma.attention_scale
        epsilon, embedding_scale = gemma.epsilon, gemma.embedding_scale
        layers = tuple(map(_of_gemma, gemma.layers))
    else:
        head_size = head_size_of(reader, name)
        scale, embedding_scale = head_size**-0.5, 1.0
        epsilon = number_of(reader, f"{name}.attention.layer_norm_rms_epsilon", _DEFAULT_EPSILON)
        base = number_of(reader, f"{name}.rope.freq_base", _DEFAULT_BASE)
        windows = (0,) * count_of(reader, f"{name}.block_count")
        if gpt_oss is not None:
            windows, epsilon = gpt_oss.windows, gpt_oss.epsilon
        layers = tuple(LayerRule(window, base, 1.0) for window in windows)
    heads = count_of(reader, f"{name}.attention.head_count")
    return DecoderShape(
        vocabulary_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        max_context_tokens=count_of(reader, f"{name}.context_length"),
        width=count_of(reader, f"{name}.embedding_length"),
        num_heads=heads,
        num_kv_heads=count_of(reader, f"{name}.attention.head_count_kv", heads),
        head_size=head_size,
        epsilon=epsilon,
        embedding_scale=embedding_scale,
        attention_scale=scale,
        has_gelu=name == GEMMA3,
        is_interleaved=name in _INTERLEAVED,
        layers=layers,
        num_chosen_experts=gpt_oss.chosen if gpt_oss is not None else 0,
        rotary_amplitude=gpt_oss.amplitude if gpt_oss is not None else 1.0,
    )


def _of_gemma(layer: GemmaLayer) -> LayerRule:
    return LayerRule(layer.window, layer.base, layer.factor)
