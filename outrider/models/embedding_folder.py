"""A model that embeds, out of its folder in the store: its facts, its weights, its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from outrider.errors import (
    ArtifactCorruptError,
    InvalidRequestError,
    PromptTooLongError,
    UnsupportedModelError,
)
from outrider.models.chat import check_text
from outrider.models.embedding import EmbeddingFacts, read_embedding_facts
from outrider.models.folder import checkpoint_extents, is_archive, unpacked
from outrider.models.normalizer_table import check_tables
from outrider.models.safetensors_file import SafetensorsFile
from outrider.models.sources.members import CONFIG, MODULES, POOLING, SEQUENCE, TOKENIZER
from outrider.models.store import Artifact, ModelStore

Weights = npt.NDArray[np.float32]

_MAX_JSON_BYTES: Final = 1 << 20
_DTYPES: Final = {"F32": np.float32, "F16": np.float16}
_PREFIXES: Final = ("", "bert.", "roberta.", "model.")
"""Prefixes of tensor names, which depend on the program that saved them."""


class EmbeddingFolder:
    """The files of one model."""

    def __init__(self, artifact: Artifact, store: ModelStore) -> None:
        """Raises UnsupportedModelError for anything but an encoder's folder, ArtifactCorruptError,
        and ModelStoreError."""
        if not is_archive(artifact.path):
            raise UnsupportedModelError(
                "a model that embeds is a folder with config.json, tokenizer.json and "
                "model.safetensors, not a single file"
            )
        self._folder = unpacked(artifact, store)
        self.facts: EmbeddingFacts = read_embedding_facts(
            self._json(CONFIG) or {}, self._json(MODULES), self._json(POOLING), self._json(SEQUENCE)
        )
        files = [SafetensorsFile(extent) for extent in checkpoint_extents(artifact.path)]
        self._files = {name: file for file in files for name in file.tensors}

    def weights(self, name: str, shape: tuple[int, ...]) -> Weights:
        """A tensor in float32, mapped or converted. Raises UnsupportedModelError for one that is
        not there, or not of this shape."""
        found = next((it for p in _PREFIXES if (it := p + name) in self._files), None)
        if found is None:
            raise UnsupportedModelError(f"the model's weights lack {name}")
        entry = self._files[found].tensors[found]
        if entry.shape != shape:
            raise UnsupportedModelError(f"{name} has the shape {entry.shape}, not {shape}")
        data = self._files[found].bytes_of(found)
        if entry.dtype == "BF16":
            wide = data.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(shape)
        if entry.dtype not in _DTYPES:
            raise UnsupportedModelError(f"{name} is of type {entry.dtype}, no floating point")
        return data.view(_DTYPES[entry.dtype]).astype(np.float32, copy=False).reshape(shape)

    def has(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the model has a tensor of this name and shape."""
        found = [
            self._files[p + name].tensors[p + name] for p in _PREFIXES if p + name in self._files
        ]
        return bool(found) and found[0].shape == shape

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer for texts to embed. Raises ArtifactCorruptError."""
        try:
            text = (self._folder / TOKENIZER).read_text("utf-8")
            return TextTokenizer(text, self.facts)
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactCorruptError(f"{TOKENIZER} cannot be read: {error}") from error

    def _json(self, name: str) -> Any:
        path: Path = self._folder / name
        if not path.exists():
            return None
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ArtifactCorruptError(f"{name} has more than {_MAX_JSON_BYTES} bytes")
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ArtifactCorruptError(f"{name} is no JSON: {error}") from error


class TextTokenizer:
    """Texts to ids with the model's own tokenizer, as sentence-transformers does: the tokens that
    begin and end a text are put around it, and texts of control tokens become these tokens.
    Thread-safe; releases the GIL while it works."""

    def __init__(self, tokenizer_json: str, facts: EmbeddingFacts) -> None:
        """Raises ArtifactCorruptError for a file that is no tokenizer."""
        try:
            # Of a wrong table the library panics, at any text.
            check_tables(json.loads(tokenizer_json).get("normalizer"))
            tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactCorruptError(f"{TOKENIZER} is damaged: {error}") from error
        # What the file says of batches is for those that pad themselves.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # Of an id that it lacks the engine makes zeros, without a word.
        if max(tokenizer.get_vocab().values(), default=0) >= facts.shape.vocabulary_size:
            raise ArtifactCorruptError(f"{TOKENIZER} has more ids than the model; fetch it again")
        self._tokenizer = tokenizer
        self.definition = tokenizer_json
        """tokenizer.json."""
        self._max_tokens = facts.max_tokens
        self._vocabulary_size = facts.shape.vocabulary_size
        self._num_around = tokenizer.num_special_tokens_to_add(False)

    @property
    def max_tokens(self) -> int:
        """Most tokens of one text."""
        return self._max_tokens

    def encode(self, text: str, *, truncate: bool = False) -> npt.NDArray[np.int32]:
        """[n] the ids of one text. Longer ones than the model takes lose their end with `truncate`.
        Raises PromptTooLongError, InvalidRequestError for a lone surrogate, and for a text without
        a token, of a tokenizer that adds none of its own."""
        check_text(text)
        # The batch call releases the GIL, where `encode` would not.
        ids = self._tokenizer.encode_batch_fast([text])[0].ids
        if not ids:
            raise InvalidRequestError("an input has no token; leave it out")
        if len(ids) > self._max_tokens:
            self._check_truncated(len(ids), truncate)
            # The tokens that end a text stay.
            body = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
            body.truncate(max(1, self._max_tokens - self._num_around))
            ids = self._tokenizer.post_process(body).ids[: self._max_tokens]
        return np.array(ids, np.int32)

    def checked(self, ids: npt.NDArray[np.int32], *, truncate: bool) -> npt.NDArray[np.int32]:
        """[n] ids that a client brings, which are taken as they are. Raises InvalidRequestError for
        ids outside the vocabulary, PromptTooLongError."""
        if not len(ids):
            raise InvalidRequestError("an input has no token; leave it out")
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocabulary_size:
            raise InvalidRequestError(
                f"an input has an id outside the vocabulary of {self._vocabulary_size} ids"
            )
        if len(ids) > self._max_tokens:
            self._check_truncated(len(ids), truncate)
            ids = ids[: self._max_tokens]
        return ids

    def _check_truncated(self, num_tokens: int, truncate: bool) -> None:
        if not truncate:
            raise PromptTooLongError(
                f"this model's maximum context length is {self._max_tokens} tokens; the input has "
                f"{num_tokens} tokens: shorten it, or send truncate_prompt_tokens: -1 to have its "
                "end left out"
            )
