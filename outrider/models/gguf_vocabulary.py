"""Reads a vocabulary out of a GGUF file's metadata (ggml's docs/gguf.md, section "Tokenizer")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from gguf import TokenType

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.gguf_file import content_of, open_gguf

T = TypeVar("T")

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
    _check_type(path, fields.need("ggml.model", str))
    tokens: list[str] = fields.list_of("ggml.tokens", str)
    types: list[int] = fields.list_of("ggml.token_type", int)
    if len(types) != len(tokens):
        raise ArtifactCorruptError(f"{path.name} has {len(tokens)} tokens and {len(types)} types")
    control = _of_type(types, TokenType.CONTROL, TokenType.UNKNOWN)
    named = [fields.get(f"ggml.{name}", int) for name in _STOP_FIELDS]
    by_text = [i for i in control if tokens[i] in _END_TEXTS]
    return VocabularyDefinition(
        tokens=tokens,
        merges=fields.list_of("ggml.merges", str),
        pre_tokenizer=fields.need("ggml.pre", str),
        control_ids=control,
        user_defined_ids=_of_type(types, TokenType.USER_DEFINED),
        stop_ids=sorted({*by_text, *(i for i in named if i is not None)}),
        bos_token=_text(tokens, fields.get("ggml.bos_token_id", int)),
        eos_token=_text(tokens, fields.get("ggml.eos_token_id", int)),
        chat_template=fields.get("chat_template", str) or "",
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
    """The `tokenizer.` fields of a GGUF file. All raise ArtifactCorruptError for a field of another
    kind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = open_gguf(path)

    def get(self, name: str, kind: type[T]) -> T | None:
        """What it holds; None without it."""
        value = content_of(self._reader, f"tokenizer.{name}")
        if value is not None and not isinstance(value, kind):
            raise self._wrong(name)
        return value

    def need(self, name: str, kind: type[T]) -> T:
        """What it holds, or ArtifactCorruptError without it."""
        value = self.get(name, kind)
        if value is None:
            raise ArtifactCorruptError(f"{self._path.name} lacks the field tokenizer.{name}")
        return value

    def list_of(self, name: str, kind: type[T]) -> list[T]:
        """A list that has to be there."""
        values = self.need(name, list)
        if not all(isinstance(value, kind) for value in values):
            raise self._wrong(name)
        return values

    def _wrong(self, name: str) -> ArtifactCorruptError:
        return ArtifactCorruptError(
            f"{self._path.name} has something else in the field tokenizer.{name} than belongs there"
        )
