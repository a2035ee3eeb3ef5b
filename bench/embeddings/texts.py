"""Texts of a known number of tokens, made of the words of the prompts of `bench/data/held_out`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from bench.harness.prompts import load_prompts
from outrider.models.embedding_folder import TextTokenizer

SHORT: Final = "50 tokens"
LONG: Final = "512 tokens"
MIXED: Final = "8 to 512 tokens"
TINY: Final = "8 tokens"
KINDS: Final = (SHORT, MIXED, LONG)
_TOKENS: Final = {SHORT: (50, 50), LONG: (512, 512), MIXED: (8, 512), TINY: (8, 8)}
_AROUND: Final = 2
"""Tokens that begin and end a text."""


class Texts:
    """Any number of them, all different, the same ones in every run."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        words = sorted(
            {word for it in load_prompts() for word in it.text.split() if word.isalpha()}
        )
        self._words = [(word, len(tokenizer.encode(word)) - _AROUND) for word in words]
        self._ones = [word for word, count in self._words if count == 1]

    def make(self, kind: str, count: int, seed: int = 0) -> list[str]:
        """So many; the lengths of mixed ones are spread evenly over their logarithm."""
        rng = random.Random(f"{kind} {seed}")
        low, high = _TOKENS[kind]
        made = []
        for _ in range(count):
            size = round(math.exp(rng.uniform(math.log(low), math.log(high))))
            made.append(self._text(rng, size - _AROUND))
        return made

    def _text(self, rng: random.Random, num_tokens: int) -> str:
        found: list[str] = []
        while num_tokens:
            word, count = rng.choice(self._words)
            if count > num_tokens:
                word, count = rng.choice(self._ones), 1
            found.append(word)
            num_tokens -= count
        return " ".join(found)


def mean_tokens(tokenizer: TextTokenizer, texts: Sequence[str]) -> float:
    """Of a text."""
    return sum(len(tokenizer.encode(text)) for text in texts) / len(texts)
