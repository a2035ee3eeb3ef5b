"""A vocabulary as llguidance needs it: the bytes of every id, and which ids are no text."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from llguidance import LLTokenizer

from outrider.errors import InvalidSamplingError

_ANCHOR = "\n"
"""Merges with no text behind it; see `_Tokenizer`."""
_UTF_8 = (*range(0xC0), *range(0xC2, 0xF5))
"""Bytes that a text can have."""
_MAX_TAGS = 64
"""Most tags whose tokens are remembered: a peer may name any."""
MAX_TOKEN_BYTES = 1000
"""llguidance's tree of tokens is at most 1,024 bytes deep."""


UNWRITABLE = "the vocabulary cannot write what the grammar forces"


class GrammarVocabulary(Protocol):
    """The part of a vocabulary that is needed here (outrider.models.vocabulary)."""

    @property
    def size(self) -> int: ...

    @property
    def stop_ids(self) -> Set[int]: ...

    @property
    def usual_stop_id(self) -> int | None: ...

    @property
    def strips_space(self) -> bool: ...

    def encode_reply(self, text: str) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class TokenTable:
    """Made once per vocabulary, in about half a second without releasing Python's lock; shared by
    all threads."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.size = vocabulary.size
        self.ends = vocabulary.stop_ids
        """Ids that end a reply: allowed where the grammar is complete."""
        self.end = vocabulary.usual_stop_id
        """The likeliest of them."""
        self.strips_space = vocabulary.strips_space
        """Whether the reply's text omits a space that its ids begin with."""
        self.bytes_of = vocabulary.token_bytes
        """The bytes of an id; control tokens by their names."""
        self._vocabulary = vocabulary
        self._tokens: dict[str, int | None] = {}
        """Tokens that are tags, by their texts."""
        self.missing_bytes = _missing_bytes(vocabulary)
        """Bytes of UTF-8 without an id of their own: texts that have them may have no ids."""
        self._problem = _problem(vocabulary)
        self._tokenizer = None if self._problem else _ll_tokenizer(vocabulary)

    def text_bytes_of(self, token: int) -> bytes:
        """The bytes that an id adds to a text; a control token adds none."""
        return b"" if self._vocabulary.is_special(token) else self._vocabulary.token_bytes(token)

    def control_id(self, text: str) -> int | None:
        """Id of the control token with this name; None if there is none."""
        found = self._token(text)
        return found if found is not None and self._vocabulary.is_special(found) else None

    def ids_of(self, tag: str) -> tuple[int, ...]:
        """The ids of a tag of reasoning: its own token, if it has one, or those of its text.
        Raises InvalidSamplingError if they do not write it."""
        found = self._token(tag)
        if found is not None:
            return (found,)
        ids = tuple(self._vocabulary.encode_reply(tag))
        if tag.encode() not in b"".join(map(self._vocabulary.token_bytes, ids)):
            raise InvalidSamplingError(UNWRITABLE)
        return ids

    def _token(self, text: str) -> int | None:
        """The token of this text, control tokens first; looked for once, tags are few."""
        if text not in self._tokens:
            wanted = text.encode()
            found = [it for it in range(self.size) if self._vocabulary.token_bytes(it) == wanted]
            found.sort(key=lambda it: not self._vocabulary.is_special(it))
            if len(self._tokens) >= _MAX_TAGS:
                self._tokens.clear()
            self._tokens[text] = found[0] if found else None
        return self._tokens[text]

    @property
    def tokenizer(self) -> LLTokenizer:
        """Raises InvalidSamplingError for a vocabulary that grammars cannot be followed with."""
        if self._tokenizer is None:
            raise InvalidSamplingError(self._problem)
        return self._tokenizer


def _missing_bytes(vocabulary: GrammarVocabulary) -> frozenset[int]:
    alone = {
        vocabulary.token_bytes(token)
        for token in range(vocabulary.size)
        if not vocabulary.is_special(token) and token not in vocabulary.stop_ids
    }
    return frozenset(byte for byte in _UTF_8 if bytes([byte]) not in alone)


def _problem(vocabulary: GrammarVocabulary) -> str:
    if not vocabulary.stop_ids:
        return "this model has no token that ends a reply, so none can follow a grammar"
    longest = max(len(vocabulary.token_bytes(token)) for token in range(vocabulary.size))
    if longest > MAX_TOKEN_BYTES:
        return f"this model has a token of {longest} bytes; grammars need at most {MAX_TOKEN_BYTES}"
    return ""


class _Tokenizer:
    """The vocabulary in the form that LLTokenizer reads (llguidance's TokenizerWrapper), and how it
    tokenizes forced text.

    The ids of a text stand for exactly its bytes, whatever the vocabulary's own way of writing
    them: an encoder may drop, rewrite or add characters. If it does, the longest tokens are taken.
    A text that cannot be written is an error, which ends the reply: llguidance would take its other
    characters for the whole (compiler.definition keeps it from asking).
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.usual_stop_id
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        # An id that ends the reply is no text, whatever its name.
        self.special_token_ids = [
            token
            for token in range(vocabulary.size)
            if vocabulary.is_special(token) or token in vocabulary.stop_ids
        ]
        self.longest_tokens: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        wanted = text.encode()
        # The space that an encoder puts before a text would be in the way: a line's end goes
        # before it, and is taken off.
        before = f" {_ANCHOR}".encode() if self._vocabulary.strips_space else b""
        ids = self._vocabulary.encode_reply(_ANCHOR + text if before else text)
        num_bytes = at = 0
        while at < len(ids) and num_bytes < len(before):
            num_bytes += len(self.tokens[ids[at]])
            at += 1
        if b"".join(self.tokens[token] for token in ids) == before + wanted and (
            num_bytes == len(before)
        ):
            return ids[at:]
        assert self.longest_tokens is not None
        longest = self.longest_tokens.greedy_tokenize(text)
        if b"".join(self.tokens[token] for token in longest) != wanted:
            raise InvalidSamplingError(UNWRITABLE)
        return longest


def _ll_tokenizer(vocabulary: GrammarVocabulary) -> LLTokenizer:
    wrapper = _Tokenizer(vocabulary)
    usual = vocabulary.usual_stop_id
    ends = sorted(vocabulary.stop_ids, key=lambda token: (token != usual, token))
    # Its stub names a class for what it reads by attribute.
    made = LLTokenizer(wrapper, eos_token=ends)  # type: ignore[arg-type]
    wrapper.longest_tokens = made
    return made
