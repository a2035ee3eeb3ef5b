"""Which GGUF files the converter turns into a graph that computes what the file describes.

The converter reads the names it knows and silently ignores the rest, so a file is served only if
everything in it is known here. It does not know Gemma 3, whose graphs gemma_graph builds.
tests/engines/openvino/test_formats.py compares each of these architectures with the numpy
reference.
"""

from __future__ import annotations

from typing import Any, Final

from gguf import GGUFReader

from outrider.engines.openvino.gemma_file import GEMMA3, read_gemma
from outrider.engines.openvino.metadata import count_of
from outrider.engines.openvino.rotary import FACTORS, head_size_of
from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of

_PRODUCTS: Final = (
    *("attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_gate", "ffn_up", "ffn_down"),
)
_NORMS: Final = ("attn_norm", "ffn_norm")
_OF_MODEL: Final = ("token_embd.weight", "output_norm.weight", "output.weight")
_OF_LAYER: Final = tuple(f"{name}.weight" for name in (*_PRODUCTS, *_NORMS))
_BEYOND: Final[dict[str, tuple[str, ...]]] = {
    "llama": (),
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
    GEMMA3: (
        *("attn_q_norm.weight", "attn_k_norm.weight"),
        *("post_attention_norm.weight", "post_ffw_norm.weight"),
    ),
}
"""Architectures, and what each has in a layer besides what all have."""
ARCHITECTURES: Final = tuple(_BEYOND)
BLOCK_VALUES: Final = 32
"""Rows of matrices are made of blocks of so many values."""


def check_architecture(reader: GGUFReader) -> None:
    """Raises UnsupportedModelError, naming what can be served, for a file of another architecture,
    or one with a part that would be left out."""
    name = str(content_of(reader, "general.architecture"))
    if name not in _BEYOND:
        raise UnsupportedModelError(
            f"models of the architecture {name!r} cannot be served; choose one of "
            f"{', '.join(ARCHITECTURES)} as a GGUF file or safetensors, or a folder of OpenVINO's"
        )
    _check_fields(reader, name)
    _check_tensors(reader, name)


def _check_fields(reader: GGUFReader, name: str) -> None:
    def of(field: str, default: Any) -> Any:
        value = content_of(reader, f"{name}.{field}")
        return default if value is None else value

    if name != GEMMA3:
        for field in ("rope.scaling.type", "rope.scale_linear", "rope.scaling.factor"):
            if of(field, "none") not in ("none", 1.0):
                _refuse(name, f"positions are scaled ({name}.{field})")
    head_size = head_size_of(reader, name)
    if count_of(reader, f"{name}.rope.dimension_count", head_size) != head_size:
        _refuse(name, f"only part of a head's values turns with the position ({name}.rope)")
    for field in ("expert_count", "attention.sliding_window", "attention.clamp_kqv"):
        if of(field, 0) and (name, field) != (GEMMA3, "attention.sliding_window"):
            _refuse(name, f"it has {name}.{field}")
    if name == GEMMA3:
        read_gemma(reader)


def _check_tensors(reader: GGUFReader, name: str) -> None:
    count = content_of(reader, f"{name}.block_count")
    if type(count) is not int or not 0 < count < 1 << 12:
        _refuse(name, f"it lacks {name}.block_count")
    known = {*_OF_MODEL} if name == GEMMA3 else {*_OF_MODEL, FACTORS}
    known |= {f"blk.{n}.{part}" for n in range(count) for part in (*_OF_LAYER, *_BEYOND[name])}
    needed = known - {"output.weight", FACTORS}
    found = {tensor.name: tensor for tensor in reader.tensors}
    if strange := sorted(found.keys() - known):
        _refuse(name, f"it has {strange[0]}, which the converter would leave out")
    if lacking := sorted(needed - found.keys()):
        _refuse(name, f"it lacks {lacking[0]}")
    for tensor in found.values():
        if len(tensor.shape) == 2 and int(tensor.shape[0]) % BLOCK_VALUES:
            _refuse(name, f"rows of {tensor.name} have {tensor.shape[0]} values, no multiple of 32")


def _refuse(name: str, why: str) -> None:
    raise UnsupportedModelError(
        f"this {name} model cannot be served as its file says: {why}; choose another file of it, "
        "or a folder of OpenVINO's"
    )
