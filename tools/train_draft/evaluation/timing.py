"""What one drafted token costs beside one of the target's, on the same engine."""

from __future__ import annotations

import statistics
import time

import numpy as np

from outrider.engines.base import Engine, Round

_CONTEXT_TOKENS = 128
_STEPS = 120
_SEQUENCE = 1


def step_ms(engines: dict[str, Engine], rows: int = 1) -> dict[str, float]:
    """Median time of a step of `rows` rows behind 128 tokens of context, by engine. The engines
    take turns, so that whatever else the machine does weighs on all of them."""
    seen: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        ids = np.arange(100, 100 + _CONTEXT_TOKENS, dtype=np.int32)
        engine.open(_SEQUENCE, ids)
        _step(engine, ids, 0)
    for _ in range(_STEPS):
        for name, engine in engines.items():
            begin = time.perf_counter()
            _step(engine, np.full(rows, 300, np.int32), _CONTEXT_TOKENS)
            seen[name].append((time.perf_counter() - begin) * 1e3)
    for engine in engines.values():
        engine.close_sequence(_SEQUENCE)
    return {name: statistics.median(times) for name, times in seen.items()}


def _step(engine: Engine, tokens: np.ndarray, past: int) -> None:
    info = engine.info
    num_blocks = -(-(past + len(tokens) + info.scratch_tokens) // info.block_tokens)
    blocks = np.arange(num_blocks, dtype=np.int32)
    engine.step([Round(_SEQUENCE, tokens.astype(np.int32), past, blocks, 1)])
