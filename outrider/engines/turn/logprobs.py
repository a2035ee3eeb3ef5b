"""Log probabilities as vLLM and TensorRT-LLM give them (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from outrider.session.types import MIN_LOGPROB, ScoredToken, TokenLogprobs


class Scored(Protocol):
    """Logprob of either package."""

    @property
    def logprob(self) -> float: ...


def logprobs_of(
    ids: Sequence[int], places: Sequence[Mapping[int, Scored]], count: int
) -> tuple[TokenLogprobs, ...]:
    """One for each id, from mappings that hold the likeliest ids and the chosen one: at most
    `count` of them, the likeliest first. Raises KeyError and ValueError if one is missing."""
    return tuple(_place(token, place, count) for token, place in zip(ids, places, strict=True))


def _place(token: int, place: Mapping[int, Scored], count: int) -> TokenLogprobs:
    scored = [ScoredToken(it, _single(one.logprob)) for it, one in place.items()]
    likeliest = sorted(scored, key=lambda it: (-it.logprob, it.id))[:count]
    return TokenLogprobs(ScoredToken(token, _single(place[token].logprob)), tuple(likeliest))


def _single(logprob: float) -> float:
    return float(np.float32(min(0.0, max(MIN_LOGPROB, logprob))))
