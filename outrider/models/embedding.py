"""How a model's files describe the vectors it makes: encoder, length, pooling (pure).

A sentence-transformers folder has, beside the transformer's config.json, modules.json (the steps
after the transformer), 1_Pooling/config.json (how the tokens' vectors become one) and
sentence_bert_config.json (the longest text it was trained for). Without them, the vector is the
mean over tokens, scaled to length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from outrider.errors import UnsupportedModelError

_BERT: Final = "bert"
_ROBERTA: Final = ("roberta", "xlm-roberta")
_QWEN3: Final = "qwen3"
CAN_BE: Final = (
    "models that can embed are encoders of the kinds bert, roberta and xlm-roberta, with absolute "
    "positions, pooled by the first or the last token or by the mean, and decoders of the kind "
    "qwen3, pooled by the last token"
)
_MAX_LAYERS: Final = 256
_MAX_WIDTH: Final = 1 << 16
_MAX_TOKENS: Final = 1 << 20
_MAX_DECODER_TOKENS: Final = 8192
"""Longest text of a decoder model. Attention's scores take memory by the square of it: 4 GiB with
16 heads."""
_USUAL_DECODER_TOKENS: Final = 2048
"""Longest text of a decoder model whose files give none: a sixteenth of that memory."""
_MODULES: Final = ("Transformer", "Pooling", "Normalize")
_POOLING_BEGINS: Final = "pooling_mode_"


class Pooling(Enum):
    """How the vectors of a text's tokens become one."""

    MEAN = "mean_tokens"
    FIRST = "cls_token"
    LAST = "lasttoken"


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The transformer's sizes."""

    vocabulary_size: int
    width: int
    """Values of a token's vector, and of the model's."""
    num_layers: int
    num_heads: int
    inner_width: int
    epsilon: float
    """Epsilon of the layer norms."""
    num_positions: int
    first_position: int
    """Position of a text's first token; RoBERTa starts behind the padding's position."""

    @property
    def head_size(self) -> int:
        """Values of one head."""
        return self.width // self.num_heads


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder that embeds."""

    vocabulary_size: int
    width: int
    num_layers: int
    num_heads: int
    """Heads of queries."""
    num_kv_heads: int
    """Heads of keys and values, each shared by several query heads."""
    head_size: int
    inner_width: int
    epsilon: float
    """Epsilon of the norms."""
    rotary_base: float
    num_positions: int

    @property
    def num_queries(self) -> int:
        """Heads of queries that share one of keys."""
        return self.num_heads // self.num_kv_heads

    @property
    def queries_width(self) -> int:
        """Values of a token's queries."""
        return self.num_heads * self.head_size


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """How an embedding model turns a text's tokens into a vector."""

    shape: EncoderShape | DecoderShape
    pooling: Pooling
    normalizes: bool
    """Whether a vector has length 1."""
    max_tokens: int
    """Most tokens of one text, with those that begin and end it."""
    padding_id: int


def read_embedding_facts(
    config: Mapping[str, Any],
    modules: Sequence[Mapping[str, Any]] | None,
    pooling: Mapping[str, Any] | None,
    sequence: Mapping[str, Any] | None,
) -> EmbeddingFacts:
    """Facts from the parsed config.json, modules.json, 1_Pooling/config.json and
    sentence_bert_config.json; None for a missing file. Raises UnsupportedModelError, which names
    the field that is missing or unsupported."""
    shape: EncoderShape | DecoderShape
    if config.get("model_type") == _QWEN3:
        shape = _decoder_shape(config)
        room = min(shape.num_positions, _MAX_DECODER_TOKENS)
        usual = min(room, _USUAL_DECODER_TOKENS)
    else:
        shape = _shape(config)
        room = usual = shape.num_positions - shape.first_position
    asked = (sequence or {}).get("max_seq_length")
    if asked is not None and (type(asked) is not int or asked < 1):
        _refuse("max_seq_length is no number of tokens")
    padding = config.get("pad_token_id") or 0
    if type(padding) is not int or not 0 <= padding < shape.vocabulary_size:
        _refuse("pad_token_id is no token")
    kinds = _kinds(modules)
    pools_by = _pooling(pooling, Pooling.LAST if isinstance(shape, DecoderShape) else Pooling.MEAN)
    if isinstance(shape, DecoderShape) and pools_by is not Pooling.LAST:
        _refuse(f"it is a decoder that pools by {pools_by.value}")
    return EmbeddingFacts(
        shape=shape,
        pooling=pools_by,
        normalizes="Normalize" in kinds,
        max_tokens=min(asked or usual, room),
        padding_id=padding,
    )


def _shape(config: Mapping[str, Any]) -> EncoderShape:
    kind = config.get("model_type")
    if kind != _BERT and kind not in _ROBERTA:
        _refuse(f"its model_type is {str(kind)[:32]!r}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        _refuse("its positions are not absolute")
    if config.get("hidden_act") != "gelu":
        _refuse(f"its hidden_act is {str(config.get('hidden_act'))[:32]!r}, not 'gelu'")
    width = _count(config, "hidden_size", _MAX_WIDTH)
    heads = _count(config, "num_attention_heads", width)
    if width % heads:
        _refuse(f"{heads} heads do not share a width of {width}")
    epsilon = config.get("layer_norm_eps", 1e-12)
    if not isinstance(epsilon, float) or not 0.0 < epsilon < 1.0:
        _refuse("layer_norm_eps is no small number")
    first = 0 if kind == _BERT else _count(config, "pad_token_id", _MAX_TOKENS) + 1
    positions = _count(config, "max_position_embeddings", _MAX_TOKENS)
    if positions - first < 1:
        _refuse("it has no positions")
    return EncoderShape(
        vocabulary_size=_count(config, "vocab_size", 1 << 24),
        width=width,
        num_layers=_count(config, "num_hidden_layers", _MAX_LAYERS),
        num_heads=heads,
        inner_width=_count(config, "intermediate_size", 1 << 20),
        epsilon=epsilon,
        num_positions=positions,
        first_position=first,
    )


def _decoder_shape(config: Mapping[str, Any]) -> DecoderShape:
    if config.get("hidden_act") != "silu":
        _refuse(f"its hidden_act is {str(config.get('hidden_act'))[:32]!r}, not 'silu'")
    for name in ("rope_scaling", "attention_bias", "use_sliding_window"):
        if config.get(name):
            _refuse(f"it has {name}")
    heads = _count(config, "num_attention_heads", _MAX_WIDTH)
    kv_heads = _count(config, "num_key_value_heads", heads)
    size = _count(config, "head_dim", _MAX_WIDTH)
    if heads % kv_heads or size % 2:
        _refuse(f"{heads} heads of {size} values do not share {kv_heads}")
    epsilon, base = config.get("rms_norm_eps"), config.get("rope_theta")
    if not isinstance(epsilon, float) or not 0.0 < epsilon < 1.0:
        _refuse("rms_norm_eps is no small number")
    if not isinstance(base, int | float) or not 1.0 < base < 1e12:
        _refuse("rope_theta is no base of angles")
    return DecoderShape(
        vocabulary_size=_count(config, "vocab_size", 1 << 24),
        width=_count(config, "hidden_size", _MAX_WIDTH),
        num_layers=_count(config, "num_hidden_layers", _MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        inner_width=_count(config, "intermediate_size", 1 << 20),
        epsilon=epsilon,
        rotary_base=float(base),
        num_positions=_count(config, "max_position_embeddings", _MAX_TOKENS),
    )


def _count(config: Mapping[str, Any], name: str, most: int) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 < value <= most:
        _refuse(f"config.json has no {name} of 1 to {most}")
    return value


def _kinds(modules: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Kinds of the modules, in order; the usual ones without a list."""
    if modules is None:
        return list(_MODULES)
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    except (TypeError, KeyError):
        _refuse("modules.json is no list of modules")
    if kinds not in (list(_MODULES), list(_MODULES[:2])):
        _refuse(f"its modules are {', '.join(kinds)[:200]}")
    return kinds


def _pooling(pooling: Mapping[str, Any] | None, usual: Pooling) -> Pooling:
    if pooling is None:
        return usual
    chosen = [
        name.removeprefix(_POOLING_BEGINS)
        for name, value in pooling.items()
        if name.startswith(_POOLING_BEGINS) and value
    ]
    if len(chosen) != 1 or chosen[0] not in [kind.value for kind in Pooling]:
        _refuse(f"it pools by {', '.join(chosen)[:100] or 'nothing'}")
    return Pooling(chosen[0])


def _refuse(why: str) -> NoReturn:
    raise UnsupportedModelError(f"this model cannot embed texts here: {why}; {CAN_BE}")
