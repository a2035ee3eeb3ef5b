"""Reads a vocabulary out of a GGUF file's metadata (ggml's docs/gguf.md, section "Tokenizer")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gguf import GGUFReader, TokenType

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.tokenization.definition import VocabularyDefinition

_STOP_FIELDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_TEXTS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<end_of_utterance>",
    }
)
"""Control tokens that end a turn whatever the metadata says; llama.cpp has the same rule."""


def read_definition(path: Path) -> VocabularyDefinition:
    """The vocabulary of the GGUF file at `path`; takes seconds, so callers keep the result.

    Raises ArtifactCorruptError for a file that is no whole GGUF, ConfigError for a tokenizer
    that is not byte-level BPE.
    """
    fields = _Fields(path)
    _check_type(path, fields.need("ggml.model"))
    tokens: list[str] = fields.need("ggml.tokens")
    types: list[int] = fields.need("ggml.token_type")
    if len(types) != len(tokens):
        raise ArtifactCorruptError(f"{path.name} has {len(tokens)} tokens and {len(types)} types")
    control = _of_type(types, TokenType.CONTROL, TokenType.UNKNOWN)
    named = [fields.get(f"ggml.{name}") for name in _STOP_FIELDS]
    by_text = [i for i in control if tokens[i] in _END_TEXTS]
    return VocabularyDefinition(
        tokens=tokens,
        merges=fields.need("ggml.merges"),
        pre_tokenizer=fields.need("ggml.pre"),
        control_ids=control,
        user_defined_ids=_of_type(types, TokenType.USER_DEFINED),
        stop_ids=sorted({*by_text, *(i for i in named if i is not None)}),
        bos_token=_text(tokens, fields.get("ggml.bos_token_id")),
        eos_token=_text(tokens, fields.get("ggml.eos_token_id")),
        chat_template=fields.get("chat_template") or "",
    )


def _check_type(path: Path, model: str) -> None:
    if model != "gpt2":
        raise ConfigError(
            f"{path.name} has a tokenizer of type {model!r}; choose a model with byte-level BPE "
            "('gpt2')"
        )


def _of_type(types: Sequence[int], *wanted: int) -> list[int]:
    return [i for i, kind in enumerate(types) if kind in wanted]


def _text(tokens: Sequence[str], index: int | None) -> str:
    return tokens[index] if index is not None and 0 <= index < len(tokens) else ""


class _Fields:
    """The `tokenizer.` fields of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fields = GGUFReader(path).fields
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ArtifactCorruptError(
                f"{path.name} is not a whole GGUF file ({error}); fetch it again"
            ) from error

    def get(self, name: str) -> Any:
        field = self._fields.get(f"tokenizer.{name}")
        return None if field is None else field.contents()

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ArtifactCorruptError(f"{self._path.name} lacks the field tokenizer.{name}")
        return value
