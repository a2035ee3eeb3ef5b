"""Frequencies of rotary positions that a file scales one by one (Llama 3.1 and later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from outrider.engines.gguf_decoder.metadata import count_of, number_of
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of

FACTORS: Final = "rope_freqs.weight"
_DEFAULT_BASE: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class RotaryFactors:
    """A file's rotary frequencies and their divisors."""

    plain: npt.NDArray[np.float64]
    """[pairs] radians a position, without the factors."""
    factors: npt.NDArray[np.float64]
    """[pairs] divisors of the frequencies."""


def head_size_of(reader: GGUFReader, name: str) -> int:
    """Values of an attention head of the architecture `name`. Raises UnsupportedModelError if the
    file does not give it."""
    heads = count_of(reader, f"{name}.attention.head_count")
    width = count_of(reader, f"{name}.embedding_length")
    return count_of(reader, f"{name}.attention.key_length", width // heads)


def read_factors(reader: GGUFReader) -> RotaryFactors | None:
    """The file's; None if it scales nothing. Raises UnsupportedModelError for factors that are
    none, or too few."""
    tensor = next((each for each in reader.tensors if each.name == FACTORS), None)
    if tensor is None:
        return None
    name = str(content_of(reader, "general.architecture"))
    size = head_size_of(reader, name)
    base = number_of(reader, f"{name}.rope.freq_base", _DEFAULT_BASE)
    factors = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float64).ravel()
    if len(factors) != size // 2 or not np.isfinite(factors).all() or factors.min() <= 0:
        raise UnsupportedModelError(
            f"{FACTORS} has {len(factors)} factors for heads of {size} values, or some that are no "
            "positive numbers; fetch the file again"
        )
    return RotaryFactors(base ** -(np.arange(0, size, 2) / size), factors)
