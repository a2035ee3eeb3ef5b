"""Text out of a stream of token ids.

A token may hold part of a character, so ids are mapped to bytes and the bytes decoded
incrementally; what an id releases is final. Invalid UTF-8 becomes U+FFFD, one per maximal subpart
(Unicode 16, section 3.9), which is also what Rust's `from_utf8_lossy` does. So the pieces joined
equal the one-shot decoding of all ids.

SentencePiece puts a space in front of a text and takes it away behind: of such a vocabulary's
replies the first space is left out.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterable, Sequence
from typing import Final

from outrider.errors import InvalidRequestError

_SLICE_IDS: Final = 8192
_Decoder = codecs.getincrementaldecoder("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 stands for itself, the other 68 bytes are
    U+0100 and up in order (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(own)]
    stand_ins = {chr(0x100 + n): byte for n, byte in enumerate(others)}
    return {chr(byte): byte for byte in own} | stand_ins


BYTE_ALPHABET: Final = _byte_alphabet()
"""The byte that each character of GPT-2's alphabet stands for."""
_IN_ORDER: Final = "".join(sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__))
_BYTE_OF: Final = codecs.charmap_build(_IN_ORDER)
"""The same, as the codec that maps characters needs it: half the time for a whole vocabulary."""


def token_bytes(text: str) -> bytes:
    """The bytes that a token of this text stands for.

    A text with a character outside the byte alphabet (an added token's) stands for its UTF-8.
    """
    try:
        return codecs.charmap_encode(text, "strict", _BYTE_OF)[0]
    except UnicodeEncodeError:
        return text.encode()


class ByteDecoder:
    """Text out of bytes as they come."""

    def __init__(self, *, strips_space: bool = False) -> None:
        """With `strips_space` a space as the very first byte is left out."""
        self._strips_space = strips_space
        self._is_first = True
        self._utf8 = _Decoder("replace")
        self._has_part = False
        """Whether a character is incomplete."""

    def decode(self, data: bytes) -> str:
        """The text that `data` completes."""
        if self._is_first and data:
            self._is_first = False
            if self._strips_space:
                data = data.removeprefix(b" ")
        if not self._has_part and data.isascii():
            return data.decode("ascii")
        text = self._utf8.decode(data)
        self._has_part = bool(self._utf8.getstate()[0])
        return text

    def finish(self) -> str:
        """Text for an incomplete character at the end; resets the decoder."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        self._is_first = True
        self._has_part = False
        return rest

    def copy(self) -> ByteDecoder:
        """Another one at the same place."""
        other = ByteDecoder(strips_space=self._strips_space)
        other._is_first = self._is_first
        if self._has_part:
            other._has_part = True
            other._utf8.setstate(self._utf8.getstate())
        return other


class Detokenizer:
    """One reply's text so far. `push` each id, then `finish` once."""

    def __init__(self, table: Sequence[bytes], *, strips_space: bool = False) -> None:
        """`table` [vocabulary size]: the bytes of each id; empty for ids that are not shown."""
        self._table = table
        self._decoder = ByteDecoder(strips_space=strips_space)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        if not 0 <= token_id < len(self._table):
            raise self._outside(token_id)
        return self._decoder.decode(self._table[token_id])

    def push_all(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` complete: the pieces of each, joined, in a tenth of the time.

        Raises InvalidRequestError for an id outside the vocabulary; then none was pushed.
        """
        if token_ids and min(token_ids) < 0:
            raise self._outside(min(token_ids))
        try:
            found = b"".join([self._table[token_id] for token_id in token_ids])
        except IndexError:
            raise self._outside(max(token_ids)) from None
        return self._decoder.decode(found)

    def slices(self, token_ids: Sequence[int]) -> Generator[int, None, str]:
        """Like `push_all`, in slices of about a millisecond; yields the ids done."""
        pieces = list[str]()
        for start in range(0, len(token_ids), _SLICE_IDS):
            if start:
                yield start
            pieces.append(self.push_all(token_ids[start : start + _SLICE_IDS]))
        return "".join(pieces)

    def finish(self) -> str:
        """Text for an incomplete character at the end; resets the detokenizer."""
        return self._decoder.finish()

    def _outside(self, token_id: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"token id {token_id} is outside the vocabulary of {len(self._table)} ids"
        )


def decode(table: Sequence[bytes], ids: Iterable[int], *, strips_space: bool = False) -> str:
    """The text of all `ids` at once; equal to a Detokenizer's pieces joined."""
    detokenizer = Detokenizer(table, strips_space=strips_space)
    return detokenizer.push_all(list(ids)) + detokenizer.finish()
