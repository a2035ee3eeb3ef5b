"""Keystrokes of people who type a given message (pure, by a seed).

- Between keys: mean interval over people 239 ms with a standard deviation of 112 ms (Dhakal, Feit,
  Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes", CHI 2018,
  168,000 volunteers). Each person's intervals are log-normal around the own mean.
- Hesitations: a second, slower log-normal is mixed in, most often before words (Roeser, De Maeyer,
  Leijten and Van Waes, "Modelling typing disfluencies as finite mixture process", Reading and
  Writing, 2021). In chats, pauses begin at 500 ms, and those between propositions at 1.2 s
  (Chukharev-Hudilainen, "Pauses in spontaneous written communication", Journal of Writing
  Research 6(1), 2014): hesitations within a sentence have a median of 0.7 s here, those between
  sentences of 1.2 s. How often they come is our choice.
- Slips: one key in fifty is a wrong one, which is seen at once and taken back.
- Before Enter: **an assumption**, log-normal with a median of 0.8 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

_MEAN_S: Final = 0.239
_BETWEEN_PEOPLE_S: Final = 0.112
_FASTEST_S: Final = 0.08
_WITHIN_SIGMA: Final = 0.45
"""Of the logarithm."""
_WORD_HESITATIONS: Final = 0.12
_LETTER_HESITATIONS: Final = 0.01
_HESITATION_S: Final = 0.7
_HESITATION_SIGMA: Final = 0.5
_SENTENCE_S: Final = 1.2
_SENTENCE_SIGMA: Final = 0.6
_SLIPS: Final = 0.02
BEFORE_ENTER_S: Final = 0.8
_BEFORE_ENTER_SIGMA: Final = 0.6
_MOST_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Trace:
    """How one message was typed."""

    keys: tuple[tuple[float, str], ...]
    """(Seconds since the first key, the text after this key)."""
    enter_s: float

    @property
    def text(self) -> str:
        """What is sent."""
        return self.keys[-1][1]

    @property
    def last_pause_s(self) -> float:
        """From the last key to Enter."""
        return self.enter_s - self.keys[-1][0]


def trace_of(text: str, rng: Random, before_enter_s: float = BEFORE_ENTER_S) -> Trace:
    """Somebody types this."""
    spread = math.sqrt(math.log(1 + (_BETWEEN_PEOPLE_S / _MEAN_S) ** 2))
    own_s = max(_FASTEST_S, rng.lognormvariate(math.log(_MEAN_S) - spread**2 / 2, spread))
    keys: list[tuple[float, str]] = []
    now, shown = 0.0, ""
    for char in text:
        if keys:
            now += _interval_s(shown, own_s, rng)
        if char.isalpha() and rng.random() < _SLIPS:
            keys.append((now, shown + rng.choice("etaoinsr")))
            now += 2 * _fluent_s(own_s, rng)
            keys.append((now, shown))
            now += _fluent_s(own_s, rng)
        shown += char
        keys.append((now, shown))
    pause_s = rng.lognormvariate(math.log(before_enter_s), _BEFORE_ENTER_SIGMA)
    return Trace(tuple(keys), now + min(_MOST_S, pause_s))


def _interval_s(before: str, own_s: float, rng: Random) -> float:
    fluent_s = _fluent_s(own_s, rng)
    if before.endswith((". ", "? ", "! ", "\n")):
        longer_s = rng.lognormvariate(math.log(_SENTENCE_S), _SENTENCE_SIGMA)
    elif rng.random() < (_WORD_HESITATIONS if before.endswith(" ") else _LETTER_HESITATIONS):
        longer_s = rng.lognormvariate(math.log(_HESITATION_S), _HESITATION_SIGMA)
    else:
        return fluent_s
    return min(_MOST_S, max(fluent_s, longer_s))


def _fluent_s(own_s: float, rng: Random) -> float:
    return rng.lognormvariate(math.log(own_s) - _WITHIN_SIGMA**2 / 2, _WITHIN_SIGMA)
