"""Reads a vocabulary out of a GGUF file's metadata (ggml's docs/gguf.md, section "Tokenizer")."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from gguf import TokenType

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.bpe import VocabularyDefinition
from outrider.models.gguf_file import content_of, open_gguf
from outrider.models.pre_tokenizers import Pipeline, pre_tokenizer_of
from outrider.models.sentencepiece_bpe import (
    BYTE_TOKEN,
    SpacePipeline,
    SpacePrefix,
    lacking_byte,
    merges_of_scores,
)
from outrider.models.stop_tokens import stop_ids_of
from outrider.models.suggested_sampling import (
    GGUF_FIELDS,
    SuggestedSampling,
    of_generation_config,
)

T = TypeVar("T")

_GGML: Final = "tokenizer.ggml."
_Parts: TypeAlias = tuple[list[str], Pipeline | SpacePipeline, bool]
"""Merges, pipeline, and whether prompts begin with the begin token where the file does not say."""
_Read: TypeAlias = "Callable[[_Fields, Path, Sequence[str], Sequence[int]], _Parts]"
_DEFAULT_IDS: Final = {("llama", "bos"): 1, ("llama", "eos"): 2}
"""Where the file names none, as llama.cpp has it."""
_KNOWN_FIELDS: Final = frozenset(
    {"model", "pre", "tokens", "token_type", "token_type_count", "scores", "merges"}
    | {"add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix"}
    | {"remove_extra_whitespaces", "precompiled_charsmap"}
)
_TOKEN_NAMES: Final = ("_token_id", "_token_ids")
"""Ends of fields that name a token for some purpose, and change no ids of texts."""
_STOP_FIELDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_definition(path: Path) -> VocabularyDefinition:
    """The vocabulary of the GGUF file at `path`; takes seconds, so callers keep the result.

    Raises ArtifactCorruptError for a file that is no whole GGUF, ConfigError for a tokenizer
    that cannot be built exactly.
    """
    fields = _Fields(path)
    model = fields.need("ggml.model", str)
    if model == "t5":
        raise ConfigError(
            f"{path.name} has a Unigram tokenizer ('t5'): its scores do not say which of several "
            "splits of one sum is meant, and programs differ; choose the model's folder (dir:, "
            "hf:REPO) with its tokenizer.json"
        )
    if model not in _MODELS:
        raise ConfigError(
            f"{path.name} has a tokenizer of type {model!r}; choose a model with byte-level BPE "
            "('gpt2') or SentencePiece BPE ('llama', 'gemma4')"
        )
    fields.check_known()
    tokens: list[str] = fields.list_of("ggml.tokens", str)
    types: list[int] = fields.list_of("ggml.token_type", int)
    if len(types) != len(tokens):
        raise ArtifactCorruptError(f"{path.name} has {len(tokens)} tokens and {len(types)} types")
    merges, pipeline, adds_bos = _MODELS[model](fields, path, tokens, types)
    control = _of_type(types, TokenType.CONTROL, TokenType.UNKNOWN)
    named = [fields.get(f"ggml.{name}", int) for name in _STOP_FIELDS]
    bos, eos = (_text(tokens, fields.token_id(model, name)) for name in ("bos", "eos"))
    said = fields.get("ggml.add_bos_token", bool)
    return VocabularyDefinition(
        tokens=tokens,
        merges=merges,
        pipeline=pipeline,
        control_ids=control,
        user_defined_ids=_of_type(types, TokenType.USER_DEFINED),
        stop_ids=stop_ids_of(tokens, control, [i for i in named if i is not None]),
        bos_token=bos,
        eos_token=eos,
        chat_template=fields.get("chat_template", str) or "",
        adds_bos=adds_bos and bos in [tokens[i] for i in control] if said is None else said,
        adds_eos=bool(fields.get("ggml.add_eos_token", bool)),
        sampling=fields.sampling(),
    )


def _byte_level(fields: _Fields, path: Path, tokens: Sequence[str], types: Sequence[int]) -> _Parts:
    name = fields.get("ggml.pre", str) or "default"
    if name in _SPACES_WITH_MERGES:
        return _merged_spaces(fields, path, tokens, types)
    known = pre_tokenizer_of(name)
    return fields.list_of("ggml.merges", str), known.pipeline, known.adds_bos


def _merged_spaces(
    fields: _Fields, path: Path, tokens: Sequence[str], types: Sequence[int]
) -> _Parts:
    """Gemma 4: spaces as U+2581 as in SentencePiece, and merges where that has scores."""
    unknown = fields.get("ggml.unknown_token_id", int)
    pipeline = SpacePipeline(
        prefix=SpacePrefix.NONE, strips_space=False, unknown=_text(tokens, unknown)
    )
    return fields.list_of("ggml.merges", str), pipeline, True


def _sentencepiece(
    fields: _Fields, path: Path, tokens: Sequence[str], types: Sequence[int]
) -> _Parts:
    """A SentencePiece vocabulary as llama.cpp reads it, without normalizer. Raises ConfigError for
    a file with one, ArtifactCorruptError for a damaged one."""
    for name in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if fields.get(f"ggml.{name}", object):
            raise ConfigError(
                f"{path.name} changes texts before it tokenizes them (tokenizer.ggml.{name}), "
                "which cannot be done exactly; choose a model without, or one with a tokenizer.json"
            )
    scores: list[float] = fields.list_of("ggml.scores", float)
    if len(scores) != len(tokens) or not all(map(math.isfinite, scores)):
        raise ArtifactCorruptError(f"{path.name} has {len(tokens)} tokens and {len(scores)} scores")
    bytes_there = _of_type(types, TokenType.BYTE)
    named_so = [i for i, text in enumerate(tokens) if BYTE_TOKEN.fullmatch(text)]
    is_whole = not bytes_there or lacking_byte(set(tokens)) is None
    if bytes_there != named_so or not is_whole:
        raise ArtifactCorruptError(
            f"{path.name} has {len(bytes_there)} tokens of a byte, {len(named_so)} named so; all "
            "256 belong there, or none"
        )
    unknown = _of_type(types, TokenType.UNKNOWN)
    if not unknown and not bytes_there:
        raise ArtifactCorruptError(f"{path.name} has no token for characters that it does not know")
    of_text = {tokens[i]: scores[i] for i in _of_type(types, TokenType.NORMAL)}
    unused = [tokens[i] for i in _of_type(types, TokenType.UNUSED)]
    prefixed = fields.get("ggml.add_space_prefix", bool)
    is_prefixed = prefixed is None or prefixed
    matched = [tokens[i] for i in _of_type(types, TokenType.USER_DEFINED)]
    pipeline = SpacePipeline(
        prefix=SpacePrefix.EACH if is_prefixed else SpacePrefix.NONE,
        strips_space=is_prefixed,
        unknown=tokens[unknown[0]] if unknown else "",
        byte_fallback=bool(bytes_there),
        # Then they were added to the model's own pieces: llama.cpp and Hugging Face put a space
        # before every text between them.
        finds_added_as_typed=is_prefixed and bool(matched),
    )
    return merges_of_scores(of_text, unused, matched, name=path.name), pipeline, True


_SPACES_WITH_MERGES: Final = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
_MODELS: Final[dict[str, _Read]] = {
    "gpt2": _byte_level,
    "gemma4": _merged_spaces,
    "llama": _sentencepiece,
}


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
        """The field's value; None if the file does not have it."""
        value = content_of(self._reader, f"tokenizer.{name}")
        if value is not None and not isinstance(value, kind):
            raise self._wrong(name)
        return value

    def check_known(self) -> None:
        """Raises ConfigError, which names it, for a field of the tokenizer that is not known: it
        may change the ids of texts, or what may be sampled."""
        for key in self._reader.fields:
            name = key.removeprefix(_GGML)
            if name == key or name in _KNOWN_FIELDS or name.endswith(_TOKEN_NAMES):
                continue
            if content_of(self._reader, key):
                raise ConfigError(
                    f"{self._path.name} has the field {key[:64]}, and what that changes is not "
                    "known; choose another file, or the model's folder with its tokenizer.json"
                )

    def sampling(self) -> SuggestedSampling | None:
        """Sampling suggested by the fields `general.sampling.*`."""
        values = {name: content_of(self._reader, field) for name, field in GGUF_FIELDS.items()}
        return of_generation_config(values)

    def token_id(self, model: str, name: str) -> int | None:
        """The id of the token of this name (bos, eos); llama.cpp's where the file has none."""
        found = self.get(f"ggml.{name}_token_id", int)
        return _DEFAULT_IDS.get((model, name)) if found is None else found

    def need(self, name: str, kind: type[T]) -> T:
        """The field's value. Raises ArtifactCorruptError if the file does not have it."""
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
