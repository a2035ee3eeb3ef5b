"""The model described by a checkpoint's config.json: architecture, sizes, and the tensors required.
Pure.

Only keys known to mean the same as in a GGUF file are read. A key that changes the computation in
another way is refused by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import UnsupportedModelError

Config: TypeAlias = Mapping[str, Any]
Factors: TypeAlias = npt.NDArray[np.float64]

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_NORM: Final = "model.norm.weight"
_NORMS: Final = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"))
_GEMMA_NORMS: Final = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
)
_DEFAULT_BASE: Final = 10_000.0
_WHOLE: Final = "full_attention"
_WINDOWED: Final = "sliding_attention"
_SCALAR: Final = "query_pre_attn_scalar"
_RULE_KEYS: Final = frozenset({"rope_theta", "rope_type", "type", "factor"})
_READ_KEYS: Final = frozenset(
    {"architectures", "attention_bias", "head_dim", "hidden_act", "hidden_activation"}
    | {"hidden_size", "intermediate_size", "layer_types", "max_position_embeddings"}
    | {"num_attention_heads", "num_hidden_layers", "num_key_value_heads", "partial_rotary_factor"}
    | {"quantization_config", "compression_config", "rms_norm_eps", "rope_parameters"}
    | {"rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "use_sliding_window"}
    | {"vocab_size"}
)
"""Keys that are computed with, or whose tensors are looked at."""
_READ_OF_GEMMA: Final = frozenset(
    {"attn_logit_softcapping", "final_logit_softcapping", _SCALAR, "rope_local_base_freq"}
    | {"sliding_window_pattern", "_sliding_window_pattern", "use_bidirectional_attention"}
)
_SAYS_NOTHING: Final = frozenset(
    # How a model was, or is to be, trained, run and named.
    {"model_type", "torch_dtype", "dtype", "use_cache", "initializer_range", "auto_map"}
    | {"task_specific_params", "id2label", "label2id", "problem_type", "finetuning_task"}
    | {"return_dict", "output_attentions", "output_hidden_states", "torchscript", "is_decoder"}
    | {"use_bfloat16", "pruned_heads", "tokenizer_class", "model_max_length", "num_labels"}
    | {"rope_original_max_position_embeddings", "max_window_layers", "cache_implementation"}
    | {"attn_implementation", "transformers.js_config", "gradient_checkpointing", "architecture"}
    | {"use_flash_attn", "use_flash_attention_2", "attn_bias", "mlp_bias", "qkv_bias"}
    | {"pretraining_tp", "max_sequence_length", "original_max_position_embeddings"}
    # How replies are sampled, which requests and generation_config.json say.
    | {"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "temperature"}
    | {"num_beam_groups", "diversity_penalty", "top_k", "top_p", "typical_p", "bad_words_ids"}
    | {"repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_return_sequences"}
    | {"encoder_no_repeat_ngram_size", "output_scores", "return_dict_in_generate", "prefix"}
    | {"remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"}
    | {"begin_suppress_tokens", "chat_template"}
)
_SAYS_NOTHING_ENDS: Final = ("_token_id", "_token_ids", "_token", "_dropout", "_version")
_SAYS_NOTHING_BEGINS: Final = ("unsloth_", "_", "quantization_info", "transformers_")
_GEMMA_BASE: Final = 1_000_000.0
_GEMMA_WINDOW: Final = 4096
_GEMMA_PERIOD: Final = 6
"""Every so many layers of Gemma 3, the last one sees all."""
_MAX_LAYERS: Final = 1 << 12
_MAX_COUNT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Architecture:
    """One that is served."""

    name: str
    """The name used in GGUF files."""
    biased: bool = False
    """Queries, keys and values have a bias."""
    normed_heads: bool = False
    """Each head of queries and keys is normed."""
    interleaved: bool = False
    """A GGUF file has the rows of queries and keys in another order: pairs that turn together are
    neighbours there, and halves of a head here."""
    is_gemma: bool = False
    """Gemma: also normed behind attention and feed-forward part; gains are 1 + weight, and GGUF
    files store the sum. Further differences are in GemmaConfig."""


ARCHITECTURES: Final = {
    "LlamaForCausalLM": Architecture("llama", interleaved=True),
    "MistralForCausalLM": Architecture("llama", interleaved=True),
    "Qwen2ForCausalLM": Architecture("qwen2", biased=True),
    "Qwen3ForCausalLM": Architecture("qwen3", normed_heads=True),
    "Gemma3ForCausalLM": Architecture("gemma3", normed_heads=True, is_gemma=True),
}
_WITH_IMAGES: Final = "Gemma3ForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that belongs to the model."""

    name: str
    """In the checkpoint."""
    gguf_name: str
    shape: tuple[int, ...]
    heads: int = 0
    """Number of heads whose rows a GGUF file stores in another order; 0: same order."""
    plus_one: bool = False
    """A GGUF file has 1 + these values, in F32."""


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """Values of Gemma 3 besides sizes."""

    window: int
    """A token sees so many, itself among them, in layers with a window."""
    has_window: tuple[bool, ...]
    """By layer."""
    base: float
    """Base of rotary frequencies in layers with full attention."""
    factor: float
    """Positions are divided by this in layers with full attention."""
    window_base: float
    """Base of rotary frequencies in layers with a window."""
    attention_scale: float
    """Scores of attention are multiplied by it."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """A model's sizes."""

    architecture: Architecture
    vocabulary_size: int
    max_context_tokens: int
    width: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    epsilon: float
    base: float
    """Base of rotary frequencies."""
    factors: Factors | None
    """Divisors of the rotary frequencies, [head_size / 2]; None: not divided."""
    tied: bool | None
    """Whether the embedding is also the output head; None: the file does not say."""
    gemma: GemmaConfig | None = None
    """Further values of a Gemma 3 model; None for other architectures."""

    def tensors(self, *, with_head: bool) -> Iterator[NamedTensor]:
        """All tensors of the model; `with_head` adds an output head of its own."""
        width, inner, kind = self.width, self.inner, self.architecture
        yield NamedTensor(EMBEDDING, "token_embd.weight", (self.vocabulary_size, width))
        for layer in range(self.num_layers):
            yield from self._of_layer(f"model.layers.{layer}.", f"blk.{layer}.", kind, inner)
        yield NamedTensor(_NORM, "output_norm.weight", (width,), plus_one=kind.is_gemma)
        if with_head:
            yield NamedTensor(HEAD, "output.weight", (self.vocabulary_size, width))

    def _of_layer(
        self, here: str, there: str, kind: Architecture, inner: int
    ) -> Iterator[NamedTensor]:
        width, size = self.width, self.head_size
        for letter, heads in (("q", self.num_heads), ("k", self.num_kv_heads)):
            turned = heads if kind.interleaved else 0
            name, gguf = f"{here}self_attn.{letter}_proj", f"{there}attn_{letter}"
            yield NamedTensor(f"{name}.weight", f"{gguf}.weight", (heads * size, width), turned)
            if kind.biased:
                yield NamedTensor(f"{name}.bias", f"{gguf}.bias", (heads * size,), turned)
            if kind.normed_heads:
                name = f"{here}self_attn.{letter}_norm.weight"
                yield NamedTensor(name, f"{gguf}_norm.weight", (size,), plus_one=kind.is_gemma)
        values = self.num_kv_heads * size
        if kind.biased:
            yield NamedTensor(f"{here}self_attn.v_proj.bias", f"{there}attn_v.bias", (values,))
        for name, gguf, shape in (
            ("self_attn.v_proj", "attn_v", (values, width)),
            ("self_attn.o_proj", "attn_output", (width, self.num_heads * size)),
            ("mlp.gate_proj", "ffn_gate", (inner, width)),
            ("mlp.up_proj", "ffn_up", (inner, width)),
            ("mlp.down_proj", "ffn_down", (width, inner)),
        ):
            yield NamedTensor(f"{here}{name}.weight", f"{there}{gguf}.weight", shape)
        for name, gguf in _GEMMA_NORMS if kind.is_gemma else _NORMS:
            name, gguf = f"{here}{name}.weight", f"{there}{gguf}.weight"
            yield NamedTensor(name, gguf, (width,), plus_one=kind.is_gemma)


def read_checkpoint_config(config: Config) -> CheckpointConfig:
    """Raises UnsupportedModelError, naming the key, for a model that cannot be served exactly."""
    architecture = _architecture(config)
    _check_nothing_else_is_computed(config, architecture)
    heads, width = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    # Gemma's code has other defaults than the rest, and its files name both.
    named = architecture.is_gemma
    kv_heads = _count(config, "num_key_value_heads", None if named else heads)
    if heads % kv_heads:
        _refuse(f"{heads} heads cannot share {kv_heads} of keys and values")
    if config.get("head_dim") is None and width % heads and not named:
        _refuse(f"a width of {width} is no multiple of its {heads} heads")
    size = _count(config, "head_dim", None if named else width // heads)
    if size % 2:
        _refuse(f"heads of {size} values cannot turn in pairs")
    layers = _count(config, "num_hidden_layers")
    if layers > _MAX_LAYERS:
        _refuse(f"it has {layers} layers; at most {_MAX_LAYERS} are read")
    gemma = _gemma(config, layers) if architecture.is_gemma else None
    base, factors = _rotary(config, size) if gemma is None else (gemma.base, None)
    tied = config.get("tie_word_embeddings", True if architecture.is_gemma else None)
    if tied is not None and type(tied) is not bool:
        _refuse("tie_word_embeddings is neither true nor false")
    return CheckpointConfig(
        architecture=architecture,
        vocabulary_size=_count(config, "vocab_size"),
        max_context_tokens=_count(config, "max_position_embeddings"),
        width=width,
        inner=_count(config, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        epsilon=_number(config, "rms_norm_eps"),
        base=base,
        factors=factors,
        tied=tied,
        gemma=gemma,
    )


def _refuse(why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"this checkpoint cannot be served as its config.json says: {why}; choose a model of "
        f"{', '.join(ARCHITECTURES)}, as GGUF file or as safetensors of F32, F16 or BF16"
    )


def _architecture(config: Config) -> Architecture:
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else named
    if name == _WITH_IMAGES:
        _refuse(
            f"{name} sees images too, and only the text of a Gemma 3 is served from a GGUF file"
        )
    if not isinstance(name, str) or name not in ARCHITECTURES:
        _refuse(f"the architecture {str(name)[:64]!r} is not known here")
    return ARCHITECTURES[name]


def _check_nothing_else_is_computed(config: Config, architecture: Architecture) -> None:
    if not architecture.is_gemma:
        _check_activation(config, "hidden_act", ("silu", "swish"))
        _check_no_window(config)
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            _refuse(f"its weights are quantised ({key})")
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        _refuse("only part of a head's values turns with the position (partial_rotary_factor)")
    read = _READ_KEYS | (_READ_OF_GEMMA if architecture.is_gemma else frozenset())
    for key in sorted(config.keys() - read):
        if config[key] and not _says_nothing(key):
            _refuse(f"{key[:64]} is {str(config[key])[:32]!r}, and what that changes is not known")


def _says_nothing(key: str) -> bool:
    """Whether a key of that name changes no result."""
    is_known = key in _SAYS_NOTHING or key.endswith(_SAYS_NOTHING_ENDS)
    return is_known or key.startswith(_SAYS_NOTHING_BEGINS)


def _check_activation(config: Config, key: str, known: Sequence[str]) -> None:
    activation = config.get(key, known[0])
    if activation not in known:
        _refuse(f"{key} is {str(activation)[:32]!r}")


def _check_no_window(config: Config) -> None:
    kinds = config.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)
    ):
        _refuse("some layers see less than all that came before (layer_types)")
    window = config.get("sliding_window")
    # Qwen's files name a window and do not use it; Mistral's have no such switch.
    has_window = bool(window) and config.get("use_sliding_window", True)
    if has_window and _count(config, "sliding_window") < _count(config, "max_position_embeddings"):
        _refuse("tokens see only a window of what came before (sliding_window)")


def _gemma(config: Config, num_layers: int) -> GemmaConfig:
    """Gemma 3's values; names and defaults are those of upstream's Gemma3TextConfig. Newer files
    have rope_parameters by kind of layer, older ones rope_theta and related keys."""
    _check_activation(config, "hidden_activation", ("gelu_pytorch_tanh",))
    _check_activation(config, "hidden_act", ("gelu_pytorch_tanh",))
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "attention_bias"):
        if config.get(key):
            _refuse(f"it has {key}")
    if config.get("use_bidirectional_attention"):
        _refuse("tokens see what comes after them (use_bidirectional_attention)")
    rules = config.get("rope_parameters") or {}
    if not isinstance(rules, Mapping) or not set(rules) <= {_WHOLE, _WINDOWED}:
        _refuse("its rope_parameters are not those of full_attention and sliding_attention")
    bases = dict[str, float]()
    factors = dict[str, float]()
    for kind, key, default in (
        (_WHOLE, "rope_theta", _GEMMA_BASE),
        (_WINDOWED, "rope_local_base_freq", _DEFAULT_BASE),
    ):
        older = {"rope_theta": config.get(key) or default}
        if kind == _WHOLE and config.get("rope_scaling"):
            older |= _object(config, "rope_scaling")
        rule = older | (_object(rules, kind) if kind in rules else {})
        bases[kind], factors[kind] = _number(rule, "rope_theta"), _linear_factor(rule)
    if factors[_WINDOWED] != 1:
        _refuse("positions are scaled in layers that see a window")
    return GemmaConfig(
        window=_count(config, "sliding_window", _GEMMA_WINDOW),
        has_window=_windows(config, num_layers),
        base=bases[_WHOLE],
        factor=factors[_WHOLE],
        window_base=bases[_WINDOWED],
        attention_scale=_number({_SCALAR: 256} | dict(config), _SCALAR) ** -0.5,
    )


def _windows(config: Config, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether its attention has a window."""
    kinds = config.get("layer_types")
    if kinds is None:
        key = "_sliding_window_pattern"
        key = "sliding_window_pattern" if key not in config else key
        period = _count(config, key, _GEMMA_PERIOD)
        return tuple((index + 1) % period != 0 for index in range(num_layers))
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in (_WHOLE, _WINDOWED) for kind in kinds)
    ):
        _refuse(f"layer_types does not say of {num_layers} layers what each of them sees")
    return tuple(kind == _WINDOWED for kind in kinds)


def _linear_factor(rule: Config) -> float:
    if strange := sorted(str(key) for key in rule.keys() - _RULE_KEYS):
        _refuse(f"positions are scaled by a rule with {strange[0][:32]!r}")
    kind = rule.get("rope_type", rule.get("type", "default"))
    if kind == "default" and "factor" not in rule:
        return 1.0
    if kind == "linear":
        return _number(rule, "factor")
    _refuse(f"positions are scaled by the rule {str(kind)[:32]!r}; default and linear are known")


def _object(config: Config, key: str) -> dict[str, Any]:
    value = config.get(key)
    if not isinstance(value, Mapping):
        _refuse(f"its {key} is no object")
    return dict(value)


def _rotary(config: Config, head_size: int) -> tuple[float, Factors | None]:
    """Base, and the factors that frequencies are divided by."""
    rules = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rules, Mapping):
        _refuse("its rope_scaling is no object")
    base = _number({"rope_theta": _DEFAULT_BASE} | dict(config) | dict(rules), "rope_theta")
    kind = rules.get("rope_type", rules.get("type"))
    if kind is None:
        if "factor" in rules:
            _refuse("positions are scaled by a rule without a name")
        kind = "default"
    if rules.get("partial_rotary_factor") not in (None, 1, 1.0):
        _refuse("only part of a head's values turns with the position (partial_rotary_factor)")
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, np.full(head_size // 2, _number(rules, "factor"))
    if kind == "llama3":
        return base, _llama3_factors(rules, base ** -(np.arange(0, head_size, 2) / head_size))
    _refuse(f"positions are scaled by the rule {str(kind)[:32]!r}; default, linear and llama3 are")


def _llama3_factors(rules: Config, frequencies: Factors) -> Factors:
    """Long wavelengths are divided by `factor`, short ones by nothing, those between by something
    between."""
    factor = _number(rules, "factor")
    low, high = _number(rules, "low_freq_factor"), _number(rules, "high_freq_factor")
    context = _number(rules, "original_max_position_embeddings")
    if high <= low:
        _refuse("high_freq_factor is not above low_freq_factor")
    wavelengths = 2 * math.pi / frequencies
    share = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - share) / factor + share), np.float64)


def _count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < _MAX_COUNT:
        _refuse(f"{key} is {str(value)[:32]!r}, not a positive whole number")
    return value


def _number(config: Config, key: str) -> float:
    value: Any = config.get(key)
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        _refuse(f"{key} is {str(value)[:32]!r}, not a positive number")
    return float(value)
