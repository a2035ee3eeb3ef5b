"""Reads a Hugging Face checkpoint's folder: sizes, and whether its vocabulary is the served one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from outrider.errors import ConfigError
from outrider.models.strict_json import read_object

if TYPE_CHECKING:
    from outrider.models.vocabulary import Vocabulary

_KV_VALUE_BYTES = 2
_CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
_UNUSABLE = (
    *(OSError, ValueError, KeyError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""Exceptions raised by reading a config.json of another form."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoder's properties from config.json, and its number of ids from tokenizer.json."""

    vocabulary_size: int
    """Ids that the model scores: the rows of its embedding. Many models have more of them than
    their tokenizer has ids, up to a multiple of 64 or so."""
    num_tokens: int
    """Ids up to the tokenizer's last; without a tokenizer.json all that the model scores."""
    max_context_tokens: int
    kv_token_bytes: int
    """KV bytes of one token over all layers, in 16-bit floats."""


def read_checkpoint(folder: Path | None, setting: str) -> Checkpoint:
    """Read the folder that `setting` names. Raises ConfigError if it has no usable config.json, or
    an invalid tokenizer.json."""
    if folder is None:
        raise ConfigError(f"{setting} is not set; name a Hugging Face checkpoint's folder")
    try:
        facts = read_object((folder / _CONFIG_FILE).read_bytes())
        if "pretrained_config" in facts or "build_config" in facts:
            raise ValueError("it is that of a built TensorRT engine, which has no checkpoint")
        # Models that also read pictures keep the decoder's facts in a table of their own.
        decoder = facts.get("text_config") or facts
        found = Checkpoint(
            vocabulary_size=int(decoder["vocab_size"]),
            num_tokens=int(decoder["vocab_size"]),
            max_context_tokens=int(decoder["max_position_embeddings"]),
            kv_token_bytes=int(decoder["num_hidden_layers"])
            * _kv_layer_values(decoder)
            * _KV_VALUE_BYTES,
        )
        if min(found.vocabulary_size, found.max_context_tokens, found.kv_token_bytes) < 1:
            raise ValueError("a size in it is not above 0")
    except _UNUSABLE as error:
        raise ConfigError(
            f"{folder} holds no usable config.json ({type(error).__name__}: {error}); name the "
            "folder of a Hugging Face checkpoint"
        ) from error
    tokens = _tokens(folder)
    return found if tokens is None else replace(found, num_tokens=max(tokens, default=-1) + 1)


def _kv_layer_values(decoder: Mapping[str, Any]) -> int:
    """Numbers that one layer keeps of one token."""
    if decoder.get("kv_lora_rank"):  # latent attention: one compressed vector and its rotary part
        return int(decoder["kv_lora_rank"]) + int(decoder["qk_rope_head_dim"])
    heads = int(decoder["num_attention_heads"])
    head_size = int(decoder.get("head_dim") or decoder["hidden_size"] // heads)
    return 2 * int(decoder.get("num_key_value_heads") or heads) * head_size


def check_vocabulary(folder: Path | None, vocabulary: Vocabulary, setting: str) -> None:
    """Compare the checkpoint that `setting` names with the vocabulary that is served. Raises
    ConfigError.

    Each id of the checkpoint's tokenizer must be in the vocabulary and stand for the same bytes
    there. Ids that the checkpoint scores beyond the vocabulary's are then padding. Without a
    tokenizer.json nothing shows that they are, so the sizes must be equal.
    """
    scored = read_checkpoint(folder, setting).vocabulary_size
    assert folder is not None
    tokens = _tokens(folder)
    if vocabulary.size > scored or (tokens is None and vocabulary.size != scored):
        raise ConfigError(
            f"the checkpoint {folder} scores {scored} ids, the vocabulary that is served has "
            f"{vocabulary.size}: set {setting} and model to the same model"
            + ("" if tokens is not None else ", and put its tokenizer.json beside config.json")
        )
    for token_id, text in sorted((tokens or {}).items()):
        if token_id >= vocabulary.size:
            raise ConfigError(
                f"the tokenizer of {folder} has id {token_id} ({text!r:.60}), the vocabulary that "
                f"is served ends at {vocabulary.size - 1}; set {setting} and model to the same "
                "model"
            )
        if (named := vocabulary.bytes_as(token_id, text)) != vocabulary.token_bytes(token_id):
            raise ConfigError(
                f"id {token_id} is {named!r:.60} in the tokenizer of {folder}, but "
                f"{vocabulary.token_bytes(token_id)!r:.60} in the vocabulary that is served; set "
                f"{setting} and model to the same model"
            )


def _tokens(folder: Path) -> dict[int, str] | None:
    """The texts of the tokenizer's ids; None if the checkpoint has no tokenizer.json."""
    path = folder / TOKENIZER_FILE
    if not path.exists():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{path} cannot be read ({error}); fetch the checkpoint again") from error
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return {token_id: text for text, token_id in vocabulary.items()}
