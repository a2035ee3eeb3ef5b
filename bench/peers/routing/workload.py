"""The requests to all routers: groups of prompts with a shared prefix."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from bench.harness.load import poisson

NUM_GROUPS: Final = 150
GROUP_SIZE: Final = 5
SHARED_TOKENS: Final = 480
OWN_TOKENS: Final = 32
MAX_TOKENS: Final = 16
FIRST_ID, NUM_IDS = 3, 58
"""Ids of prompts; each stands for a letter in what is asked over HTTP."""
_FIRST_LETTER: Final = ord("A") - FIRST_ID


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt, and when it is due."""

    due_s: float
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """The result of one request."""

    ttft_s: float
    """Seconds from the time it was due to its first token."""
    prompt_tokens: int
    cached_tokens: int


def make_asks(rate: float, num_groups: int, seed: int) -> list[Ask]:
    """Every group's prompts, in random order, `rate` a second."""
    chance = random.Random(seed)
    ids = range(FIRST_ID, FIRST_ID + NUM_IDS)
    prompts = []
    for _ in range(num_groups):
        shared = tuple(chance.choices(ids, k=SHARED_TOKENS))
        prompts += [(*shared, *chance.choices(ids, k=OWN_TOKENS)) for _ in range(GROUP_SIZE)]
    chance.shuffle(prompts)
    due_s = poisson(len(prompts), rate, seed)
    return [Ask(at, tuple(prompt)) for at, prompt in zip(due_s, prompts, strict=True)]


def as_text(ids: tuple[int, ...]) -> str:
    """A letter for each id."""
    return "".join(chr(_FIRST_LETTER + id) for id in ids)


def as_ids(text: str) -> tuple[int, ...]:
    """The ids of such a text."""
    return tuple(ord(letter) - _FIRST_LETTER for letter in text)
