"""Unigram tokenizers in `tokenizer.json`: a text becomes the pieces whose scores have the largest
sum. Pure.

Programs agree on that sum but not on the choice among several splits with the same sum: the
`sentencepiece` package adds in 32 bits, `tokenizers` in 64, and runs of a character (aaaa, blank
lines) have many such splits. Only a tokenizer.json in the library it was written for is exact; that
library computes here, and files with scores but no tokenizer.json are refused.

The library matches every piece, including control tokens, when it splits a text into pieces. So a
text with the name of a control token is split behind the name's first character.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
)

from outrider.models.sentencepiece_bpe import SPACE, SpacePrefix, decoder_of_pieces

RUNS_OF_SPACES: Final = " {2,}"
"""The one pattern that files replace."""
FORMS: Final = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
}
"""Unicode's normalization forms."""


@dataclass(frozen=True, slots=True)
class NormalizerStep:
    """One change of a text before it is split."""

    kind: str
    """precompiled, prepend, replace, replace-runs, strip-left, strip-right, or one of FORMS."""
    old: str = ""
    """Text to replace (replace, replace-runs)."""
    new: str = ""
    """The replacement; the text to put in front (prepend); the table in base64 (precompiled)."""


@dataclass(frozen=True, slots=True)
class UnigramPipeline:
    """Scores, and what happens to a text before and after them."""

    scores: Sequence[float]
    """[pieces] of the first ids; those behind them are found as they are written."""
    normalizers: tuple[NormalizerStep, ...]
    splits_whitespace: bool
    """Texts are cut at white space, which is dropped, before spaces are written."""
    writes_spaces: bool
    """Spaces become U+2581 behind the normalizers, not by one of them."""
    prefix: SpacePrefix
    """Places at which a space is inserted."""
    splits_words: bool
    """No piece has a U+2581 but at its beginning."""
    strips_space: bool
    """A reply's text loses the space it begins with."""
    unknown: str
    """Text of the piece for characters that are neither pieces nor bytes."""
    byte_fallback: bool


def build_unigram_tokenizer(
    pipeline: UnigramPipeline,
    tokens: Sequence[str],
    control: Collection[int],
    user_defined: Collection[int],
) -> Tokenizer:
    """The tokenizer with its added tokens. Raises what the library raises, and ValueError for added
    tokens whose ids the library would change."""
    pieces = list(zip(tokens, pipeline.scores, strict=False))
    unknown = tokens.index(pipeline.unknown)
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, pipeline.byte_fallback))
    if pipeline.normalizers:
        tokenizer.normalizer = normalizers.Sequence(list(map(_normalizer, pipeline.normalizers)))
    steps = _pre_tokenizers(pipeline, [tokens[i] for i in control])
    if steps:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoder_of_pieces(
        byte_fallback=pipeline.byte_fallback, strips_space=pipeline.strips_space
    )
    for index in sorted({*control, *user_defined}):
        token = AddedToken(tokens[index], special=index in control, normalized=False)
        add = tokenizer.add_special_tokens if index in control else tokenizer.add_tokens
        add([token])
        if tokenizer.token_to_id(tokens[index]) != index:
            raise ValueError(f"{tokens[index]!r} would have another id")
    return tokenizer


def _normalizer(step: NormalizerStep) -> normalizers.Normalizer:
    match step.kind:
        case "precompiled":
            return normalizers.Precompiled(base64.b64decode(step.new, validate=True))
        case "replace":
            return normalizers.Replace(step.old, step.new)
        case "replace-runs":
            return normalizers.Replace(Regex(step.old), step.new)
        case "prepend":
            return normalizers.Prepend(step.new)
        case "strip-left" | "strip-right":
            return normalizers.Strip(step.kind == "strip-left", step.kind == "strip-right")
    return FORMS[step.kind]()


def _pre_tokenizers(
    pipeline: UnigramPipeline, control: Sequence[str]
) -> list[pre_tokenizers.PreTokenizer]:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pipeline.splits_whitespace:
        steps.append(pre_tokenizers.WhitespaceSplit())
    if pipeline.writes_spaces:
        scheme = "always" if pipeline.prefix is SpacePrefix.MISSING else "never"
        steps.append(pre_tokenizers.Metaspace(SPACE, scheme, split=pipeline.splits_words))
    names = [name.replace(" ", SPACE) for name in control if len(name) > 1]
    if names:
        places = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
        steps.append(pre_tokenizers.Split(Regex(places), behavior="isolated"))
    return steps
