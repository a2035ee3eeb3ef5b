"""Rotary frequencies of a graph, as the model's file scales them.

The converter leaves `rope_freqs.weight` out: its graph turns every pair by the plain frequencies.
They are one constant of the graph, which is found by its values and divided by the file's factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.gguf_decoder.rotary import RotaryFactors
from outrider.errors import UnsupportedModelError


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
