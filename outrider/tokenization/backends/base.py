"""The interface of all backends, and the reference: Hugging Face `tokenizers`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from outrider.models.vocabulary import Vocabulary

REFERENCE: Final = "tokenizers"


@dataclass(frozen=True, slots=True)
class Batch:
    """The ids of several texts, one text's after another's."""

    ids: bytes
    """Native uint32 [ids of all texts]."""
    offsets: bytes
    """Native uint64 [texts + 1]: text i has the ids from `offsets[i]` up to `offsets[i + 1]`."""

    @classmethod
    def of(cls, texts_ids: Iterable[array[int]]) -> Batch:
        """A batch from the ids ('I') of each text."""
        ids, offsets = array("I"), array("Q", [0])
        for text_ids in texts_ids:
            ids += text_ids
            offsets.append(len(ids))
        return cls(ids.tobytes(), offsets.tobytes())

    def ids_of(self, index: int) -> array[int]:
        """The ids ('I') of one text."""
        begin, end = memoryview(self.offsets).cast("Q")[index : index + 2].tolist()
        return array("I", memoryview(self.ids).cast("I")[begin:end].tobytes())


class Backend(Protocol):
    """Plain text to ids. Thread-safe, frozen once made, releases the GIL while it works.

    Text that names a control token stays text: no backend here ever yields a control token.
    """

    @property
    def name(self) -> str:
        """The package it comes from."""

    def encode(self, text: str) -> array[int]:
        """The ids ('I') of `text`, which `check_text` passed; nothing is added."""

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        """Like `encode`, for several texts in one call."""


class Reference:
    """The backend that defines the right ids, and the fallback of all others."""

    name = REFERENCE

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> array[int]:
        """Ids of a text, as of `Vocabulary.encode`."""
        return array("I", self._vocabulary.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        """Ids of several texts, as of `Vocabulary.encode_batch`."""
        return Batch.of(array("I", ids) for ids in self._vocabulary.encode_batch(texts))
