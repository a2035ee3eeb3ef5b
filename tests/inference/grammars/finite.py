"""Grammars of few replies, all of them known, over a tiny vocabulary: masks by definition."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from outrider.sampling.constraint import Mask
from outrider.sampling.grammar import Grammar, GrammarKind
from services.inference.grammars.token_table import TokenTable

ENDS = (2, 3)
SPACED = b" "


class Pieces:
    """Ids 0 and 1 are control tokens, 2 and 3 end a reply; the pieces overlap in many ways, some
    characters need several, one piece is there twice, and one stands for no bytes. Bytes that have
    no piece of their own come last."""

    def __init__(self, *, strips_space: bool = False, writes_all: bool = True) -> None:
        pieces = 'a b c ab bc abc aab { } " : , {" ": ", "} 1 2 12 -1 0 1, nul null true false'
        words = [piece.encode() for piece in pieces.split()] + [b" ", b" a", b" {", b" ab", b", "]
        words += [b'": "', b'": ', b"\xc3", b"\xa4", b"\xc3\xa4", b"ab", b"", b"\xff", b"\n"]
        self.words = [b"<pad>", b"<s>", b"<e>", b"</s>", *words]
        if writes_all:
            rest = (bytes([byte]) for byte in range(256))
            self.words += [byte for byte in rest if byte not in words]
        self.strips_space = strips_space

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def stop_ids(self) -> Set[int]:
        return frozenset(ENDS)

    @property
    def usual_stop_id(self) -> int | None:
        return ENDS[1]

    def is_special(self, token_id: int) -> bool:
        return token_id < 3

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id]

    def encode_reply(self, text: str) -> list[int]:
        """The longest pieces; a character without one is dropped, as by many encoders."""
        rest = (SPACED if self.strips_space else b"") + text.encode()
        found: list[int] = []
        while rest:
            fits = [
                i for i in range(4, self.size) if self.words[i] and rest.startswith(self.words[i])
            ]
            if fits:
                found.append(max(fits, key=lambda i: len(self.words[i])))
            rest = rest[len(self.words[found[-1]]) if fits else 1 :]
        return found


PIECES = Pieces()
TABLE = TokenTable(PIECES)
SPACED_PIECES = Pieces(strips_space=True)
SPACED_TABLE = TokenTable(SPACED_PIECES)
POOR_PIECES = Pieces(writes_all=False)
"""That cannot write every text."""
POOR_TABLE = TokenTable(POOR_PIECES)

LANGUAGES: dict[Grammar, frozenset[bytes]] = {
    Grammar(GrammarKind.REGEX, "(ab|abc|aab){1,2}"): frozenset(
        (one + two).encode() for one in ("ab", "abc", "aab") for two in ("", "ab", "abc", "aab")
    ),
    Grammar(GrammarKind.REGEX, "abcabc"): frozenset({b"abcabc"}),
    Grammar(GrammarKind.REGEX, " {0,2}a|ä"): frozenset({b"a", b" a", b"  a", "ä".encode()}),
    Grammar(GrammarKind.LARK, 'start: "{" item ("," item)? "}"\nitem: "ab" | "12"'): frozenset(
        f"{{{items}}}".encode() for items in ("ab", "12", "ab,ab", "ab,12", "12,ab", "12,12")
    ),
    Grammar(
        GrammarKind.JSON_SCHEMA,
        '{"type": "object", "properties": {"ab": {"enum": [1, 12, null]}, "c": {"const": "a"}},'
        ' "required": ["ab"], "additionalProperties": false}',
    ): frozenset(
        f'{{"ab": {value}{rest}}}'.encode()
        for value in ("1", "12", "null")
        for rest in ("", ', "c": "a"')
    ),
    Grammar(GrammarKind.JSON_SCHEMA, '{"enum": [-1, 0, 12, true, "ab"]}'): frozenset(
        {b"-1", b"0", b"12", b"true", b'"ab"'}
    ),
}


def mask_of(pieces: Pieces, language: Set[bytes], said: bytes) -> Mask:
    """Ids that some reply goes on with, by definition."""
    rest = {reply[len(said) :] for reply in language if reply.startswith(said)}
    assert rest, "not the beginning of any reply"
    mask = np.zeros(pieces.size, dtype=np.bool_)
    for token in range(4, pieces.size):
        word = pieces.words[token]
        mask[token] = bool(word) and any(one.startswith(word) for one in rest)
    mask[list(ENDS)] = b"" in rest
    return mask


def is_forced(language: Set[bytes], said: bytes) -> bool:
    """Whether only one byte can follow."""
    rest = {reply[len(said) :] for reply in language if reply.startswith(said)}
    return b"" not in rest and len({one[0] for one in rest}) == 1
