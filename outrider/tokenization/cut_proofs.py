"""Which tokenizers' texts may be cut, at which places, and why that is exact.

*Split by a pattern, then BPE* (GPT-2, SmolLM2, Llama 3, Qwen 2.5). Let the pattern be a list of
alternatives without lookbehind, matched from left to right, and x = uv be cut at a place where (1)
no alternative can match across the two characters around it and (2) the one on the left is not
white space. By (1) the place is a boundary of the whole text's matches. v is then matched as x's
rest is, since a pattern without lookbehind does not depend on what lies left. u is matched as x's
beginning is: taking characters away lets no alternative match that did not, except where a
lookahead meets the end of the text, and the only one, `\\s+(?!\\S)`, does so behind white space,
which (2) excludes. BPE sees one match at a time, so the ids are the same.

The places, for every pattern below: anything but white space before a space or tab; a letter or
number before a line feed, if the engine is sure to classify it as we do, since some patterns let
punctuation include the line feeds behind it; a Latin letter before a digit; an ideograph or kana
before full-width punctuation. Digit splitting (SmolLM2) only adds boundaries. NFC (Qwen 2.5) leaves
both sides alone: the character right of each place is a starter that composes with nothing on its
left (UAX 15).

*No splitting, BPE over all of the text, spaces written U+2581* (Gemma). A merge that spans a place
has a left part that ends, and a right part that begins, with the characters around it. If the list
of merges has none, the sides are independent; only such places are kept.

*Added tokens* are found before all of this, leftmost and longest first: a cut never lies inside the
text of one, so those left and right of it are found alike.

Everything else is refused: a tokenizer that is only nearly one of these may differ on any text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from outrider.tokenization.cuts import CJK, CJK_STOPS, SETTLED_LETTERS, WORD, CutRule

_CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS: Final = frozenset(
    {_CL100K.replace("DIGITS", r"\p{N}{1,3}"), _CL100K.replace("DIGITS", r"\p{N}")}
)
"""Patterns of Llama 3 and of Qwen 2.5; GPT-2's is part of the ByteLevel step."""
_SPLIT_PLACE: Final = "|".join(
    (
        "\\S(?=[ \\t])",
        f"[{SETTLED_LETTERS}](?=\\n)",
        "[A-Za-z](?=[0-9])",
        f"[{CJK}](?=[{CJK_STOPS}])",
    )
)
_SPACE: Final = "\u2581"
_WHOLE_PLACES: Final = (
    (f"[^\\s{_SPACE}]", " ", _SPACE),
    (WORD, " ", _SPACE),
    (WORD, "\n", "\n"),
    *((f"[{CJK}]", stop, stop) for stop in CJK_STOPS),
)
"""Left character, right character, and what the normalizer makes of the right one."""
_BYTE: Final = r"<0x[0-9A-F]{2}>"


class UnprovenError(ValueError):
    """This tokenizer's texts are not proven to have safe places; the message gives the reason."""


def prove(tokenizer_json: str) -> CutRule:
    """The rule of a tokenizer in Hugging Face `tokenizers` JSON, for ids without added specials.

    It holds whether or not special tokens are recognised in text. Raises UnprovenError.
    """
    spec: Mapping[str, Any] = json.loads(tokenizer_json)
    _check_model(spec)
    added = _added_texts(spec)
    steps = _steps(spec.get("pre_tokenizer"))
    if steps:
        _check_steps(steps)
        _require(_kind(spec.get("normalizer")) in (None, "NFC"), "its normalizer is unknown")
        return CutRule.of(_SPLIT_PLACE, added)
    return CutRule.of(_places_between_merges(spec), added)


def rule_of(tokenizer_json: str) -> CutRule | None:
    """The rule of a tokenizer, as `prove` has it; None if none is proven."""
    try:
        return prove(tokenizer_json)
    except UnprovenError:
        return None


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UnprovenError(f"texts of this tokenizer cannot be cut: {otherwise}")


def _kind(step: Mapping[str, Any] | None) -> str | None:
    return None if step is None else step["type"]


def _check_model(spec: Mapping[str, Any]) -> None:
    model = spec["model"]
    _require(model.get("type") == "BPE", "it is no BPE")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        _require(not model.get(option), f"{option} is set")
    for option in ("truncation", "padding"):
        _require(spec.get(option) is None, f"it has {option}")


def _added_texts(spec: Mapping[str, Any]) -> list[str]:
    for token in spec.get("added_tokens") or ():
        # What such a token matches depends on the text around it, on both sides of a cut.
        _require(not (token["rstrip"] or token["single_word"]), "an added token looks around")
        as_is = spec.get("normalizer") is None or not token["normalized"]
        _require(as_is, "an added token is looked for in normalized text")
    return [token["content"] for token in spec.get("added_tokens") or ()]


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return ()
    if pre_tokenizer["type"] == "Sequence":
        return list(pre_tokenizer["pretokenizers"])
    return [pre_tokenizer]


def _check_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    *before, last = steps
    is_bytes = last["type"] == "ByteLevel" and not last["add_prefix_space"]
    _require(is_bytes, "it does not end in bytes, or it adds a space")
    digits = {"type": "Digits", "individual_digits": True}
    if last["use_regex"]:
        _require(before in ([], [digits]), "its splitting is unknown")
        return
    _require(len(before) == 1 and _is_known_split(before[0]), "its splitting is unknown")


def _is_known_split(step: Mapping[str, Any]) -> bool:
    if (step["type"], step.get("behavior"), step.get("invert")) != ("Split", "Isolated", False):
        return False
    return step["pattern"].get("Regex") in _PATTERNS


def _places_between_merges(spec: Mapping[str, Any]) -> str:
    model = spec["model"]
    normalizer = spec.get("normalizer")
    written = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    _require(normalizer == written, "its normalizer is unknown")
    # A whole part that is a token would be taken as it is, and not be built by merges.
    _require(not model.get("ignore_merges"), "it ignores merges")
    merges = [_pair(merge) for merge in model["merges"]]
    places = [
        f"{left}(?={right})"
        for left, right, after in _WHOLE_PLACES
        if after in model["vocab"] and not _is_crossed(merges, left, after)
    ]
    _require(bool(places), "its merges cross every place")
    return "|".join(places)


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _is_crossed(merges: Iterable[tuple[str, str]], left: str, after: str) -> bool:
    """Whether a merge joins a part that ends with `left` to one that begins with `after`.

    A character that is no token is its bytes' tokens, so those count as ending with anything.
    """
    ends = re.compile(f"{left}\\Z|{_BYTE}\\Z")
    return any(b.startswith(after) and ends.search(a) is not None for a, b in merges)
