"""Where words end in a text of any script (pure).

A word is a run of letters, digits, the marks on them, underscores and apostrophes. In scripts that
put no spaces between words, every character with its marks counts as one.
"""

from __future__ import annotations

import unicodedata

_SPACELESS = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x10FFFF))
"""Thai, Lao, Burmese, Khmer, and from the CJK radicals on."""
JOINERS = "\u200d\ufe0e\ufe0f"
"""Zero-width joiner and variation selectors: they belong to the character before them."""


def first_word_end(text: str, *, is_whole: bool) -> int | None:
    """Index behind the first word of `text`; None if the word may still grow.

    Anything in front of the word (blanks, quotation marks, bullets, Markdown) is part of it, so
    "**Rome**" has its first word once "**Rome" has arrived. With `is_whole` nothing follows `text`:
    its end is the end of a word, and a text without letters is one word up to its trailing blanks.
    """
    begin = next((at for at, char in enumerate(text) if char.isalnum()), None)
    if begin is None:
        return (len(text.rstrip()) or None) if is_whole else None
    end = begin + 1
    while end < len(text) and is_joined(text[end - 1], text[end]):
        end += 1
    may_grow = end == len(text) and (in_word(text[-1]) or text[-1] in JOINERS)
    return None if may_grow and not is_whole else end


def is_joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word, or to one character with its
    marks."""
    if _is_mark(right) or right in JOINERS or left == JOINERS[0]:
        return True
    return in_word(left) and in_word(right)


def in_word(char: str) -> bool:
    """Whether a character is part of a word that more letters may continue."""
    if not (char.isalnum() or _is_mark(char) or char in "_'\u2019"):
        return False
    return not any(low <= ord(char) <= high for low, high in _SPACELESS)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")
