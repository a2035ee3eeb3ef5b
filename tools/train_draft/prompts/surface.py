"""What people do to a prompt as they type it: courtesy, constraints, haste and typos."""

from __future__ import annotations

import random

from tools.train_draft.prompts.expansion import Grammar

_LONGEST_ROUGH = 160
"""Characters; longer prompts are pasted rather than typed."""


def roughened(text: str, grammar: Grammar, rng: random.Random) -> str:
    """`text` as someone might have typed it; most of the time as it is."""
    if len(text) > _LONGEST_ROUGH:
        return text
    luck = rng.random()
    if luck < 0.08:
        return f"{grammar.draw('polite', rng)} {text[:1].lower()}{text[1:]}"
    if luck < 0.16:
        return f"{text} {grammar.draw('constraint', rng)}"
    if luck < 0.23:
        return text.lower().rstrip("?.!")
    if luck < 0.28:
        return _mistyped(text, rng)
    if luck < 0.30:
        return text.upper()
    return text


def _mistyped(text: str, rng: random.Random) -> str:
    """Two letters swapped, one left out or one doubled, once or twice."""
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(max(1, len(text) - 1))
        first, second, rest = text[at : at + 1], text[at + 1 : at + 2], text[at + 2 :]
        middle = rng.choice((second + first, second, first + first + second))
        text = text[:at] + middle + rest
    return text
