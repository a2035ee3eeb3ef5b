"""BPE over whole texts with spaces as U+2581, as SentencePiece has it (Llama 2, Mistral, Gemma).

SentencePiece repeatedly joins the two neighbours whose joint piece has the highest score, the
leftmost of equal ones first. Hugging Face's BPE does the same by ranks of pairs.

*One merge for each piece.* What is joined inside a stretch of text depends on the stretch alone, as
long as nothing is joined across its ends. So two neighbours l and r are met anywhere only if the
text lr, on its own, becomes l and r on the way. It becomes two symbols at most once: just before it
is whole. So each piece has at most one merge, and joining the piece's own text finds it.

*Pieces of one score.* Ranks differ where scores do not, so ranks must give what leftmost first
gives. They do if (1) no such piece is a part of a merge of a higher score, (2) none is the right
part of a merge of their own score, and (3) wherever one of them ends in the symbol x, the merges
that make it rank before every merge of their score with x on the left. For leftmost first then goes
through the symbols once from left to right: it joins the first pair, extends it by the symbols on
its right while that is a piece, and goes on behind it (by 1 and 2 nothing further left changes
again). By ranks, such a chain is whole before a symbol in it can be taken by a merge on its right
(3), and by (2) no other merge takes one. That a merge does not rank before itself is no exception:
of equal ranks the leftmost goes first. Llama 2's runs of spaces, which share one score, are such
pieces. Pure.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, TypeAlias

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.errors import ConfigError

SPACE: Final = "\u2581"
"""SentencePiece's character for a space."""
MAX_PIECE_CHARS: Final = 1024
"""Trainers make pieces of 16 characters, and some files have longer ones for code."""
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")
"""Text of the token of one byte, for characters that are no pieces."""


class SpacePrefix(StrEnum):
    """Whether a space is put in front of a text, so that its first word is like any other."""

    NONE = "none"
    EACH = "each"
    """Every text between control tokens that is not empty."""
    MISSING = "missing"
    """Every such text that does not begin with a space."""


@dataclass(frozen=True, slots=True)
class SpacePipeline:
    """The steps before BPE when encoding, and after it when decoding a reply."""

    prefix: SpacePrefix
    strips_space: bool
    """A reply's text loses the space it begins with."""
    unknown: str
    """Text of the token for characters that are neither pieces nor bytes; empty: they are
    dropped."""
    byte_fallback: bool = True
    """Characters that are no pieces become the tokens of their bytes."""
    fuse_unknown: bool = True
    """Unknown characters in a row become one token."""
    finds_added_as_typed: bool = False
    """User-defined texts are looked for in the text as it was typed, not in the normalized one."""


_Pair: TypeAlias = tuple[str, str]


def merges_of_scores(
    scores: Mapping[str, float],
    unused: Collection[str] = (),
    matched: Collection[str] = (),
    *,
    name: str = "the vocabulary",
) -> list[str]:
    """The merges, "left right" by rank, of the pieces of these `scores`, highest first.

    `unused` are pieces that are joined but never written; `matched` are found in a text before
    others are joined. Raises ConfigError if ranks cannot express the scores: pieces of one score
    that meet in other ways than this module's description has it, a piece with characters that are
    no pieces, an unused piece that would be joined.
    """
    by_score, found_before = dict[float, dict[str, _Pair]](), set(matched)
    for piece, score in scores.items():
        if len(piece) < 2:
            continue
        if len(piece) > MAX_PIECE_CHARS:
            raise ConfigError(
                f"{name} has a piece of {len(piece)} characters; at most {MAX_PIECE_CHARS} are read"
            )
        if lacking := {char for char in piece if char not in scores}:
            if lacking <= found_before:
                continue  # never joined: those characters are taken out before
            raise ConfigError(
                f"{name} has the piece {piece!r} without one for {min(lacking)!r}; choose a file "
                "that was made from tokenizer.model, or a tokenizer.json"
            )
        if pair := _last_join(piece, scores):
            by_score.setdefault(score, {})[piece] = pair
    for piece in unused:
        if len(piece) <= 2 * MAX_PIECE_CHARS and _can_be_joined(piece, scores):
            raise ConfigError(
                f"{name} joins {piece!r}, which it does not use; choose a model with a "
                "tokenizer.json"
            )
    merges, joined_before = list[_Pair](), set[str]()
    for score in sorted(by_score, reverse=True):
        pairs = by_score[score]
        if len(pairs) == 1:
            merges += pairs.values()
        elif joined_before.isdisjoint(pairs) and (ranked := _ranked(pairs)):
            merges += ranked
        else:
            some = " and ".join(map(repr, sorted(pairs)[:2]))
            raise ConfigError(
                f"{name} gives {some} the same score: which is joined first cannot be said by "
                "ranks; choose a model with a tokenizer.json"
            )
        joined_before.update(part for pair in pairs.values() for part in pair)
    return [f"{left} {right}" for left, right in merges]


def _last_join(piece: str, scores: Mapping[str, float]) -> _Pair | None:
    """The two symbols that the text of a piece is just before it is whole; None if joining the best
    neighbours does not lead to it."""
    symbols = list(piece)
    joint = [scores.get(left + right, -math.inf) for left, right in pairwise(symbols)]
    while len(symbols) > 2:
        best = max(joint)
        if best == -math.inf:
            return None
        at = joint.index(best)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        del joint[at]
        for changed in range(max(0, at - 1), min(at + 1, len(joint))):
            joint[changed] = scores.get(symbols[changed] + symbols[changed + 1], -math.inf)
    left, right = symbols
    return left, right


def _ranked(pairs: Mapping[str, _Pair]) -> list[_Pair]:
    """Merges of one score in an order that joins the leftmost first; empty if none does."""
    if any(right in pairs for _, right in pairs.values()):
        return []
    beginning_with = defaultdict[str, list[str]](list)
    for piece, (left, _) in pairs.items():
        beginning_with[left].append(piece)
    order = TopologicalSorter({piece: set[str]() for piece in pairs})
    for piece, (_, last) in pairs.items():
        for later in beginning_with[last]:
            made = piece
            while made in pairs:
                if made != later:
                    order.add(later, made)
                made = pairs[made][0]
    try:
        return [pairs[piece] for piece in order.static_order()]
    except CycleError:
        return []


def _can_be_joined(piece: str, scores: Mapping[str, float]) -> bool:
    return any(piece[:at] in scores and piece[at:] in scores for at in range(1, len(piece)))


def build_space_tokenizer(
    pipeline: SpacePipeline, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]
) -> Tokenizer:
    """The tokenizer without its added tokens. Raises what the library raises."""
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=list(merges),
            unk_token=pipeline.unknown or None,
            fuse_unk=pipeline.fuse_unknown,
            byte_fallback=pipeline.byte_fallback,
        )
    )
    if pipeline.prefix is SpacePrefix.MISSING:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", split=False)
    else:
        replace = normalizers.Replace(" ", SPACE)
        is_each = pipeline.prefix is SpacePrefix.EACH
        tokenizer.normalizer = (
            normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if is_each else replace
        )
    tokenizer.decoder = decoder_of_pieces(
        byte_fallback=pipeline.byte_fallback, strips_space=pipeline.strips_space
    )
    return tokenizer


def decoder_of_pieces(*, byte_fallback: bool, strips_space: bool) -> decoders.Decoder:
    """Joins SentencePiece's pieces to text. `byte_fallback`: some stand for single bytes;
    `strips_space`: the first one's space is not of the text."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if strips_space:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


_NEVER_IN_UTF8: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


def lacking_byte(tokens: Collection[str]) -> int | None:
    """A byte that some text needs and none of these tokens stands for; None: byte fallback reaches
    every text. Gemma's tab, for one, is a piece in place of a byte."""
    for byte in range(256):
        is_piece = byte < 0x80 and chr(byte) in tokens
        if not (is_piece or byte in _NEVER_IN_UTF8 or f"<0x{byte:02X}>" in tokens):
            return byte
    return None


def piece_bytes(text: str) -> bytes:
    """The bytes that a token of this text stands for."""
    byte = BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()
