"""BPE over whole texts with spaces as U+2581, as SentencePiece has it (Llama 2, Mistral, Gemma).

SentencePiece repeatedly joins the two neighbours whose joint piece has the highest score, the
leftmost first. Hugging Face's BPE does the same by ranks of pairs, so each way to split a piece
into two pieces becomes a merge, in the order of the pieces' scores. Pure.

Ways to split one piece have equal scores but different ranks. That matters only if two of them
overlap: x y z with xy = yz = s. Leftmost first then means that the split behind x ranks before the
split behind y. For a piece that is no repetition of a shorter text, exactly one such order of each
pair of splits exists. For a repetition (a run of spaces) both orders are required, but joining the
shorter runs from left to right leaves shorter pieces only on the right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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


def merges_of_scores(
    scores: Mapping[str, float],
    unused: Collection[str] = (),
    matched: Collection[str] = (),
    *,
    name: str = "the vocabulary",
) -> list[str]:
    """The merges, "left right" by rank, of the pieces of these `scores`, highest first.

    `unused` are pieces that are joined but never written; `matched` are found in a text before
    others are joined. Raises ConfigError if ranks cannot express the scores: two pieces of one
    score, a piece with characters that are no pieces, an unused piece that would be joined.
    """
    by_score, found_before = dict[float, str](), set(matched)
    ranked: list[tuple[float, int, str]] = []
    for order, (piece, score) in enumerate(scores.items()):
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
        if by_score.setdefault(score, piece) != piece:
            raise ConfigError(
                f"{name} gives {by_score[score]!r} and {piece!r} the same score: which is joined "
                "first is not known; choose a file that was made from tokenizer.model, or a "
                "tokenizer.json"
            )
        ranked.append((-score, order, piece))
    for piece in unused:
        if len(piece) <= 2 * MAX_PIECE_CHARS and _splits(piece, scores):
            raise ConfigError(
                f"{name} joins {piece!r}, which it does not use; choose a model with a "
                "tokenizer.json"
            )
    ranked.sort()
    return [
        f"{piece[:at]} {piece[at:]}"
        for _, _, piece in ranked
        for at in sorted(_splits(piece, scores), key=lambda at: _split_key(piece, at))
    ]


def _splits(piece: str, scores: Mapping[str, float]) -> list[int]:
    return [at for at in range(1, len(piece)) if piece[:at] in scores and piece[at:] in scores]


def _split_key(piece: str, at: int) -> tuple[int, int]:
    """Orders the splits at `at` and at the length less `at`; others never overlap each other."""
    mirrored = len(piece) - at
    comes_first = piece[at:] == piece[:mirrored]
    if comes_first and piece[mirrored:] == piece[:at]:
        comes_first = at > mirrored  # a repetition: the longer part lies on the left
    return (0 if comes_first else 1), at


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
