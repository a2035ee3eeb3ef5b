"""Calls an engine makes before it serves, so that no user waits for what happens only once.

The first call packs weights, and the first call of each number of rows builds its kernels: half
a second and tens of milliseconds that would otherwise be somebody's time to the first token.
"""

from __future__ import annotations

import numpy as np

from outrider.engines.base import Engine, SequenceSlice
from outrider.engines.sizing import NO_SIZING, SizingRule

_SEQUENCE = 0


def warm_up(engine: Engine, max_rows: int) -> None:
    """Run a call of every size up to max_rows rows that the engine tells apart. It must have no
    open sequence; its KV is then garbage, as it was before. Raises EngineError."""
    info = engine.info
    room = info.num_blocks * info.block_tokens - info.scratch_tokens
    most = min(max_rows, room, info.max_context_tokens - info.scratch_tokens)
    tokens = np.zeros(most, np.int32)
    engine.open(_SEQUENCE, tokens[:1])
    try:
        for num_rows in _sizes(info.sizing, info.min_rows, most):
            num_blocks = -(-(num_rows + info.scratch_tokens) // info.block_tokens)
            blocks = np.arange(num_blocks, dtype=np.int32)
            engine.step([SequenceSlice(_SEQUENCE, tokens[:num_rows], 0, blocks, num_rows)])
    finally:
        engine.close_sequence(_SEQUENCE)


def _sizes(sizing: SizingRule, least: int, most: int) -> list[int]:
    """Numbers of rows, each the largest of a size; one if the engine tells no sizes apart."""
    if sizing == NO_SIZING:
        return [least][: most - least + 1]
    largest = {sizing.padded(rows): rows for rows in range(least, most + 1)}
    return list(largest.values())
