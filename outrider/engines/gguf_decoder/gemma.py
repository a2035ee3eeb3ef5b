"""How a GGUF file of Gemma 3 describes its computation, besides its tensors.

Of six layers in a row, five attend to a window of the newest tokens and have a rotary base of their
own; the sixth attends to all. Keys are those of llama.cpp; for missing keys llama.cpp's rule holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from gguf import GGUFReader

from outrider.engines.gguf_decoder.metadata import count_of, number_of
from outrider.engines.gguf_decoder.rotary import head_size_of
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of

GEMMA3: Final = "gemma3"
_PERIOD: Final = 6
"""Every so many layers, the last one sees all tokens."""
_LOCAL_BASE: Final = 10_000.0
_GLOBAL_BASE: Final = 10_000.0
"""Bases of rotary frequencies where the file names none."""
_WIDE_LAYERS: Final = 62
"""Number of layers of the model (27B) whose scores are scaled by width / number of heads instead of
the head's size; its files do not state this."""


@dataclass(frozen=True, slots=True)
class GemmaLayer:
    """How one layer sees tokens."""

    window: int
    """A token sees so many: itself and those right before; 0: all before."""
    base: float
    """Base of rotary frequencies."""
    factor: float
    """Positions are divided by this."""


@dataclass(frozen=True, slots=True)
class GemmaFile:
    """Sizes and constants."""

    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    embedding_scale: float
    """Embeddings are multiplied by it."""
    attention_scale: float
    """Scores of attention are multiplied by it."""
    layers: tuple[GemmaLayer, ...]


def read_gemma(reader: GGUFReader) -> GemmaFile:
    """Raises UnsupportedModelError, naming the field, for one that is missing or means another
    computation."""
    for field in ("final_logit_softcapping", "attn_logit_softcapping", "expert_count"):
        if content_of(reader, f"{GEMMA3}.{field}"):
            _refuse(f"it has {GEMMA3}.{field}")
    heads = count_of(reader, f"{GEMMA3}.attention.head_count")
    kv_heads = count_of(reader, f"{GEMMA3}.attention.head_count_kv", heads)
    if heads % kv_heads:
        _refuse(f"{heads} heads cannot share {kv_heads} of keys and values")
    width = count_of(reader, f"{GEMMA3}.embedding_length")
    size = head_size_of(reader, GEMMA3)
    if count_of(reader, f"{GEMMA3}.attention.value_length", size) != size or size % 2:
        _refuse(f"heads of {size} values cannot turn in pairs, or those of values differ")
    for field in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if count_of(reader, f"{GEMMA3}.{field}_swa", size) != size:
            _refuse(f"heads of layers with a window have another size ({GEMMA3}.{field}_swa)")
    layers = _layers(reader)
    scaled_by = width // heads if len(layers) == _WIDE_LAYERS else size
    return GemmaFile(
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        epsilon=number_of(reader, f"{GEMMA3}.attention.layer_norm_rms_epsilon", 1e-6),
        embedding_scale=number_of(reader, f"{GEMMA3}.embedding_scale", math.sqrt(width)),
        attention_scale=number_of(reader, f"{GEMMA3}.attention.scale", scaled_by**-0.5),
        layers=layers,
    )


def _layers(reader: GGUFReader) -> tuple[GemmaLayer, ...]:
    count = count_of(reader, f"{GEMMA3}.block_count")
    whole = GemmaLayer(
        0, number_of(reader, f"{GEMMA3}.rope.freq_base", _GLOBAL_BASE), _linear_factor(reader)
    )
    if not content_of(reader, f"{GEMMA3}.attention.sliding_window"):
        return (whole,) * count
    window = count_of(reader, f"{GEMMA3}.attention.sliding_window")
    base = number_of(reader, f"{GEMMA3}.rope.freq_base_swa", _LOCAL_BASE)
    windowed = GemmaLayer(window, base, 1.0)
    pattern: Any = content_of(reader, f"{GEMMA3}.attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = count_of(reader, f"{GEMMA3}.attention.sliding_window_pattern", _PERIOD)
        pattern = [index % period < period - 1 for index in range(count)]
    if len(pattern) != count or any(type(has_window) is not bool for has_window in pattern):
        _refuse(f"{GEMMA3}.attention.sliding_window_pattern does not fit its {count} layers")
    return tuple(windowed if has_window else whole for has_window in pattern)


def _linear_factor(reader: GGUFReader) -> float:
    """Divisor of positions in layers with full attention."""
    kind = content_of(reader, f"{GEMMA3}.rope.scaling.type")
    if kind not in (None, "none", "linear"):
        _refuse(f"positions are scaled by the rule {str(kind)[:32]!r}")
    default = number_of(reader, f"{GEMMA3}.rope.scale_linear", 1.0)
    factor = number_of(reader, f"{GEMMA3}.rope.scaling.factor", default)
    return 1.0 if kind == "none" else factor


def _refuse(why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"this {GEMMA3} model cannot be served as its file says: {why}; choose another file of it"
    )
