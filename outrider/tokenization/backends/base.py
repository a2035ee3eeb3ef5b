"""What every backend does, and the reference: Hugging Face `tokenizers`."""

from __future__ import annotations

from array import array
from typing import Final, Protocol

from outrider.models.vocabulary import Vocabulary

REFERENCE: Final = "tokenizers"


class Backend(Protocol):
    """Plain text to ids. Thread-safe, frozen once made, releases the GIL while it works.

    Text that names a control token stays text: no backend here ever yields a control token.
    """

    @property
    def name(self) -> str:
        """The package it comes from."""

    def encode(self, text: str) -> array[int]:
        """The ids ('I') of `text`, which `check_text` passed; nothing is added."""


class Reference:
    """The backend that decides what is right, and what everything falls back to."""

    name = REFERENCE

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> array[int]:
        """As `Vocabulary.encode`."""
        return array("I", self._vocabulary.encode(text))
