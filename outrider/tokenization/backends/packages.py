"""The fast backends, each an optional package: `pip install 'outrider[fast-tokenizers]'`.

None is trusted: the test in equivalence.py decides whether one may be used with a vocabulary.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import Backend, Batch, Reference


class Splintr:
    """`splintr-rs`: the fastest for GPT-2's and SmolLM2's pre-tokenizers.

    If the vocabulary has no token for a byte (SmolLM2's has none for 21 bytes), the reference drops
    the byte before merging, so that its neighbours may merge; this package does not merge them.
    Such texts, which are rare, go to the reference.
    """

    name = "splintr-rs"

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises what the package raises for a tokenizer that it cannot build."""
        module: Any = importlib.import_module("splintr")
        # `encode_ordinary` leaves control tokens alone but holds the GIL; the batch call releases
        # it but recognises them. An instance that knows no control token has both.
        self._tokenizer = module.from_json_bytes(without_control_tokens(vocabulary).encode())
        lacking = bytes_without_token(vocabulary)
        self._lacking_ascii = [chr(byte) for byte in lacking if byte < 0x80]
        self._lacking = [bytes([byte]) for byte in lacking if byte >= 0x80]
        self._reference = Reference(vocabulary)

    def encode(self, text: str) -> array[int]:
        if self._lacks_bytes_of(text):
            return self._reference.encode(text)
        ids, _ = self._tokenizer.encode_batch_flat([text])
        return array("I", ids)

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        if any(map(self._lacks_bytes_of, texts)):
            return Batch.of(map(self.encode, texts))
        return Batch(*self._tokenizer.encode_batch_flat(texts))

    def _lacks_bytes_of(self, text: str) -> bool:
        # A loop, and no generator: most texts are short.
        for char in self._lacking_ascii:
            if char in text:
                return True
        if text.isascii() or not self._lacking:
            return False
        data = text.encode()
        return any(byte in data for byte in self._lacking)


class Fastokens:
    """`fastokens`: the fastest for pre-tokenizers of the Llama 3 and Qwen kind."""

    name = "fastokens"

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises what the package raises for a tokenizer that it cannot build."""
        native: Any = importlib.import_module("fastokens")
        self._tokenizer = native.Tokenizer.from_json_str(vocabulary.tokenizer_json)

    def encode(self, text: str) -> array[int]:
        ids, _ = self._tokenizer.encode_batch_flat([text], split_special_tokens=True)
        return array("I", ids)

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        return Batch(*self._tokenizer.encode_batch_flat(texts, split_special_tokens=True))


_UTF8: Final = (*range(0xC0), *range(0xC2, 0xF5))
"""Bytes that occur in UTF-8 (RFC 3629)."""

_MAKERS: Final[dict[str, Callable[[Vocabulary], Backend]]] = {
    Splintr.name: Splintr,
    Fastokens.name: Fastokens,
}
PACKAGES: Final = tuple(_MAKERS)
"""Names of the fast backends."""


def installed_version(package: str) -> str | None:
    """The version of an installed package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def make_backend(package: str, vocabulary: Vocabulary) -> Backend:
    """The backend of `package`, which is installed. Raises what the package raises."""
    return _MAKERS[package](vocabulary)


def bytes_without_token(vocabulary: Vocabulary) -> bytes:
    """The bytes of UTF-8 that are no token by themselves, in order."""
    present = {vocabulary.token_bytes(token) for token in range(vocabulary.size)}
    return bytes(byte for byte in _UTF8 if bytes([byte]) not in present)


def without_control_tokens(vocabulary: Vocabulary) -> str:
    """`tokenizer.json` whose control tokens are no longer recognised in text."""
    definition = json.loads(vocabulary.tokenizer_json)
    definition["added_tokens"] = [t for t in definition["added_tokens"] if not t["special"]]
    return json.dumps(definition)
