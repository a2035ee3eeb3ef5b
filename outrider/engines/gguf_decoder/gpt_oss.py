"""How a GGUF file of gpt-oss describes its computation, besides its tensors.

Layers see a window of the newest tokens and all tokens in turn, the first one a window. Keys are
those of llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from outrider.engines.gguf_decoder.metadata import count_of, number_of
from outrider.engines.gguf_decoder.rotary import head_size_of
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of

GPT_OSS: Final = "gpt-oss"
_BASE: Final = 150_000.0
_PERIOD: Final = 2
_FAST, _SLOW = 32.0, 1.0
"""Turns within the original context: of more, a pair keeps its frequency; of fewer, it is divided
by the factor."""


@dataclass(frozen=True, slots=True)
class GptOssFile:
    """Sizes and constants."""

    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    windows: tuple[int, ...]
    """By layer: a token sees so many, itself among them; 0: all before."""
    experts: int
    chosen: int
    """Experts that a token goes through."""
    frequencies: npt.NDArray[np.float64]
    """[pairs] radians a position."""
    amplitude: float
    """Turned values are multiplied by it."""


def read_gpt_oss(reader: GGUFReader) -> GptOssFile:
    """Raises UnsupportedModelError, naming the field, for one that is missing or means another
    computation."""
    heads = count_of(reader, f"{GPT_OSS}.attention.head_count")
    kv_heads = count_of(reader, f"{GPT_OSS}.attention.head_count_kv")
    if heads % kv_heads:
        _refuse(f"{heads} heads cannot share {kv_heads} of keys and values")
    size = head_size_of(reader, GPT_OSS)
    if size % 2:
        _refuse(f"heads of {size} values cannot turn in pairs")
    experts = count_of(reader, f"{GPT_OSS}.expert_count")
    chosen = count_of(reader, f"{GPT_OSS}.expert_used_count")
    if chosen > experts:
        _refuse(f"{chosen} of {experts} experts cannot be chosen")
    window = count_of(reader, f"{GPT_OSS}.attention.sliding_window")
    layers = count_of(reader, f"{GPT_OSS}.block_count")
    frequencies, amplitude = _rotary(reader, size)
    return GptOssFile(
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        epsilon=number_of(reader, f"{GPT_OSS}.attention.layer_norm_rms_epsilon", 1e-5),
        windows=tuple(0 if layer % _PERIOD else window for layer in range(layers)),
        experts=experts,
        chosen=chosen,
        frequencies=frequencies,
        amplitude=amplitude,
    )


def _rotary(reader: GGUFReader, size: int) -> tuple[npt.NDArray[np.float64], float]:
    """Frequencies and amplitude, by YaRN (arXiv 2309.00071) as the model was trained with it: the
    bounds between pairs that are scaled and those that are not are not rounded."""
    base = number_of(reader, f"{GPT_OSS}.rope.freq_base", _BASE)
    plain = base ** -(np.arange(0, size, 2) / size)
    kind = content_of(reader, f"{GPT_OSS}.rope.scaling.type")
    if kind in (None, "none"):
        return plain, 1.0
    if kind != "yarn":
        _refuse(f"positions are scaled by the rule {str(kind)[:32]!r}")
    factor = number_of(reader, f"{GPT_OSS}.rope.scaling.factor", 1.0)
    context = count_of(reader, f"{GPT_OSS}.rope.scaling.original_context_length")
    fast = number_of(reader, f"{GPT_OSS}.rope.scaling.yarn_beta_fast", _FAST)
    slow = number_of(reader, f"{GPT_OSS}.rope.scaling.yarn_beta_slow", _SLOW)
    first, last = (
        size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (fast, slow)
    )
    pairs = np.arange(size // 2)
    scaled = np.clip((pairs - first) / max(last - first, 1e-3), 0, 1)
    return plain * (1 - scaled) + plain / factor * scaled, 1 + 0.1 * math.log(max(factor, 1.0))


def _refuse(why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"this {GPT_OSS} model cannot be served as its file says: {why}; choose another file of it"
    )
