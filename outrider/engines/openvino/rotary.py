"""Frequencies of rotary positions that a file scales one by one (Llama 3.1 and later).

The converter leaves `rope_freqs.weight` out: its graph turns every pair by the plain frequencies.
They are one constant of the graph, which is found by its values and divided by the file's factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
from gguf import GGUFReader, dequantize

from outrider.engines.openvino.metadata import count_of, number_of
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


def scale_frequencies(model: Any, rotary: RotaryFactors) -> None:
    """Make the graph use the file's scaled frequencies. Raises UnsupportedModelError unless the
    graph has exactly one constant of the plain ones."""
    found = [node for node in model.get_ops() if _are_frequencies(node, rotary.plain)]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"the converter's graph has {len(found)} constants of rotary frequencies where one is "
            "to be scaled; choose a model without scaled positions"
        )
    shape = list(found[0].get_output_shape(0))
    scaled = (rotary.plain / rotary.factors).astype(np.float32).reshape(shape)
    constant = ops.constant(scaled)
    for consumer in list(found[0].output(0).get_target_inputs()):
        consumer.replace_source_output(constant.output(0))


def _are_frequencies(node: Any, plain: npt.NDArray[np.float64]) -> bool:
    if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
        return False
    if int(np.prod(node.get_output_shape(0))) != len(plain):
        return False
    return bool(np.allclose(node.get_data().ravel(), plain, rtol=1e-4, atol=0))
