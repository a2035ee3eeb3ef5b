"""Which GGUF files engines compute as the file describes.

OpenVINO's converter reads the names it knows and silently ignores the rest, and so would any
reader: a file is served only if everything in it is known here. The converter does not know
Gemma 3 and gpt-oss, whose graphs openvino/gemma_graph and gpt_oss_graph build. Each of these
architectures is compared with the numpy reference in tests/engines/openvino/test_formats.py and
tests/engines/torch/test_engine.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from gguf import GGUFReader

from outrider.engines.gguf_decoder.gemma import GEMMA3, read_gemma
from outrider.engines.gguf_decoder.gpt_oss import GPT_OSS, read_gpt_oss
from outrider.engines.gguf_decoder.metadata import count_of
from outrider.engines.gguf_decoder.rotary import FACTORS, head_size_of
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
_LINEAR: Final = (
    *("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"),
    *("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
)
_OF_GPT_OSS: Final = (
    *(f"{name}.{part}" for name in _LINEAR for part in ("weight", "bias")),
    *("attn_norm.weight", "post_attention_norm.weight", "attn_sinks.weight"),
)
"""All that it has in a layer."""
ARCHITECTURES: Final = (*_BEYOND, GPT_OSS)
_READ_FIELDS: Final = frozenset(
    {"vocab_size", "context_length", "embedding_length", "feed_forward_length", "block_count"}
    | {"attention.head_count", "attention.head_count_kv", "attention.key_length"}
    | {"attention.value_length", "attention.layer_norm_rms_epsilon", "rope.freq_base"}
    | {"rope.dimension_count"}
    # These change no logits of the architectures here.
    | {"attention.layer_norm_epsilon", "pooling_type", "tensor_data_layout"}
    | {"rope.scaling.finetuned", "rope.scaling.original_context_length"}
)
"""Fields of an architecture that are computed with, without the architecture's name in front."""
_READ_OF_GEMMA: Final = frozenset(
    {"attention.scale", "attention.sliding_window", "attention.sliding_window_pattern"}
    | {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}
    | {"rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor"}
    | {"embedding_scale", "attn_logit_softcapping", "final_logit_softcapping"}
)
_READ_OF_GPT_OSS: Final = frozenset(
    {"attention.sliding_window", "expert_count", "expert_used_count", "expert_feed_forward_length"}
    | {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.yarn_beta_fast"}
    | {"rope.scaling.yarn_beta_slow"}
)
_READ_OF: Final = {GEMMA3: _READ_OF_GEMMA, GPT_OSS: _READ_OF_GPT_OSS}
"""Fields that are computed with besides, by architecture."""
_NONE: Final = (0, False)
_ONE: Final = (0, 1)  # llama.cpp takes 0 for a factor that is not there
_WITHOUT_EFFECT: Final[dict[str, tuple[object, ...]]] = {
    "attention.causal": (True,),
    "rope.scaling.type": ("none",),
    **dict.fromkeys(("rope.scale_linear", "rope.scaling.factor"), _ONE),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.alpha"), _ONE),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), _ONE),
    **dict.fromkeys(("attention.output_scale", "attention.value_scale"), _ONE),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _NONE),
    **dict.fromkeys(("attention.sliding_window", "attention.sliding_window_pattern"), _NONE),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias"), _NONE),
    **dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count"), _NONE),
    **dict.fromkeys(("expert_feed_forward_length", "leading_dense_block_count"), _NONE),
    **dict.fromkeys(("nextn_predict_layers", "use_parallel_residual"), _NONE),
}
"""Values with which a field leaves the result as it is. Every other value of it, and every other
field, is refused: what it would change is not known."""
_QUANTIZATION_VERSION: Final = 2
BLOCK_VALUES: Final = 32
"""Rows of matrices are made of blocks of so many values."""


def check_architecture(reader: GGUFReader) -> None:
    """Raises UnsupportedModelError, naming what can be served, for a file of another architecture,
    or one with a part that would be left out."""
    name = str(content_of(reader, "general.architecture"))
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"models of the architecture {name!r} cannot be served; choose one of "
            f"{', '.join(ARCHITECTURES)} as a GGUF file or safetensors, or a folder of OpenVINO's"
        )
    _check_fields(reader, name)
    _check_tensors(reader, name)


def _check_fields(reader: GGUFReader, name: str) -> None:
    version = content_of(reader, "general.quantization_version")
    if version not in (None, _QUANTIZATION_VERSION):
        _refuse(name, f"its weights are quantised by version {version!r:.20} of the format")
    head_size = head_size_of(reader, name)
    if count_of(reader, f"{name}.rope.dimension_count", head_size) != head_size:
        _refuse(name, f"only part of a head's values turns with the position ({name}.rope)")
    if count_of(reader, f"{name}.attention.value_length", head_size) != head_size:
        _refuse(name, f"heads of values have another size ({name}.attention.value_length)")
    read = _READ_FIELDS | _READ_OF.get(name, frozenset())
    for key in reader.fields:
        field = key.removeprefix(f"{name}.")
        if field == key or field in read:
            continue
        value = content_of(reader, key)
        if value not in (*_WITHOUT_EFFECT.get(field, ()), *_usual_values(field, head_size)):
            _refuse(name, f"{key} is {value!r:.60}, which changes the result in a way not known")
    if name == GEMMA3:
        read_gemma(reader)
    if name == GPT_OSS:
        read_gpt_oss(reader)


def _usual_values(field: str, head_size: int) -> tuple[float, ...]:
    """Values that are computed with when a field is not there, as files have them: in 32 bits."""
    return (0.0, float(np.float32(head_size**-0.5))) if field == "attention.scale" else ()


def _check_tensors(reader: GGUFReader, name: str) -> None:
    count = content_of(reader, f"{name}.block_count")
    if type(count) is not int or not 0 < count < 1 << 12:
        _refuse(name, f"it lacks {name}.block_count")
    known = {*_OF_MODEL} if name in _READ_OF else {*_OF_MODEL, FACTORS}
    of_layer = _OF_GPT_OSS if name == GPT_OSS else (*_OF_LAYER, *_BEYOND[name])
    known |= {f"blk.{n}.{part}" for n in range(count) for part in of_layer}
    needed = known - {"output.weight", FACTORS}
    found = {tensor.name: tensor for tensor in reader.tensors}
    if strange := sorted(found.keys() - known):
        _refuse(name, f"it has {strange[0]}, which the converter would leave out")
    if lacking := sorted(needed - found.keys()):
        _refuse(name, f"it lacks {lacking[0]}")
    for tensor in found.values():
        is_matrix = len(tensor.shape) > 1 and not tensor.name.endswith(".bias")
        if is_matrix and int(tensor.shape[0]) % BLOCK_VALUES:
            _refuse(name, f"rows of {tensor.name} have {tensor.shape[0]} values, no multiple of 32")


def _refuse(name: str, why: str) -> None:
    raise UnsupportedModelError(
        f"this {name} model cannot be served as its file says: {why}; choose another file of it, "
        "or a folder of OpenVINO's"
    )
