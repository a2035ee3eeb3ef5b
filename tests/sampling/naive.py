"""The sampling definition in plain Python: slow, short, and written apart from the real one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from outrider.sampling.gumbel import Noise, group_size_of
from outrider.sampling.params import SamplingParams


def adjusted(
    logits: dict[int, float], params: SamplingParams, prompt: Sequence[int], reply: Sequence[int]
) -> dict[int, float]:
    """Penalties, then bias."""
    counts = Counter(reply)
    scores = dict(logits)
    for token in scores:
        if token in counts or token in prompt:
            factor = params.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        if token in counts:
            penalty = params.presence_penalty + params.frequency_penalty * counts[token]
            scores[token] -= penalty
        scores[token] += params.logit_bias.get(token, 0.0)
    return scores


def distribution(scores: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """Temperature, min_p, top_k, top_p; probabilities of the ids kept."""
    temperature = params.temperature or 1.0
    top = max(scores.values())
    mass = {token: math.exp((score - top) / temperature) for token, score in scores.items()}
    ranked = sorted(mass, key=lambda token: (-scores[token], token))
    ranked = [token for token in ranked if mass[token] >= params.min_p]
    if params.top_k:
        ranked = ranked[: params.top_k]
    total, reached, nucleus = math.fsum(mass[token] for token in ranked), 0.0, []
    for token in ranked:
        if params.top_p < 1.0 and reached >= params.top_p * total:
            break
        nucleus.append(token)
        reached += mass[token]
    return {token: mass[token] / reached for token in nucleus}


def choose(
    scores: dict[int, float], params: SamplingParams, position: int, vocabulary_size: int
) -> int:
    """argmax of scaled score + noise over the ids kept, ties to the lowest."""
    if params.temperature == 0.0:
        return min(scores, key=lambda token: (-scores[token], token))
    top = max(scores.values())
    noise = Noise(params.seed, position, group_size_of(vocabulary_size))
    noises = noise.of(np.arange(vocabulary_size, dtype=np.int32)).tolist()
    totals = {
        token: (scores[token] - top) / params.temperature + noises[token]
        for token in distribution(scores, params)
    }
    return min(totals, key=lambda token: (-totals[token], token))
