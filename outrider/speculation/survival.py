"""How likely a copied token is right, learned from the text itself."""

from __future__ import annotations

_BIN_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)
_PRIOR_RATES = (0.20, 0.48, 0.62, 0.74, 0.77, 0.80, 0.86, 0.91, 0.97)
"""By bin: matches of 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16 and more tokens. Measured on 27,500 reply
tokens of a 135M chat model to varied prompts, greedy and T=0.8 mixed."""
_MEMORY = 32
"""Observations per bin after which old ones count little."""


class HitRates:
    """Share of right copies by match length, an exponential average per bin of lengths."""

    def __init__(self) -> None:
        self._rates = list(_PRIOR_RATES)

    def observe(self, match_length: int, hit: bool) -> None:
        """Count one token that a copy after a match of this length got right or wrong."""
        which = _bin(match_length)
        self._rates[which] += (hit - self._rates[which]) / _MEMORY

    def survival(self, match_length: int, count: int) -> tuple[float, ...]:
        """For each of `count` copied tokens, the chance that it and all before are right.

        A right token makes the match one longer, so the same rates serve all positions.
        """
        chances, chance = [], 1.0
        for step in range(count):
            chance *= self._rates[_bin(match_length + step)]
            chances.append(chance)
        return tuple(chances)


def _bin(match_length: int) -> int:
    if match_length < len(_BIN_OF_LENGTH):
        return _BIN_OF_LENGTH[match_length]
    return len(_PRIOR_RATES) - 1
