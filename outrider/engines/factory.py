"""Makes the engine a configuration asks for, and warms it up before it serves."""

from __future__ import annotations

import numpy as np

from outrider.engines.base import NO_SIZING, Engine, SequenceSlice, SizingRule
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine
from outrider.engines.footprint import MAX_LOGITS_ROWS
from outrider.engines.load_stage import ReportStage, ignore_stage
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root


def create_engine(config: EngineConfig, report: ReportStage = ignore_stage) -> Engine:
    """Load the engine; blocks for seconds, and longer if the model has to be fetched. `report` is
    called with each stage.

    Raises UnknownModelError, ModelStoreError, EngineError, and ConfigError where the engine's
    packages are not installed.
    """
    if config.engine == "fake":
        return FakeEngine(config.fake)
    # Imported here: each engine's packages are installed where it is used.
    store = ModelStore(config.model_store or default_root())
    if config.engine == "torch":
        from outrider.engines.torch import loading as torch

        return torch.load_engine(lookup(config.model), store, config, report)
    from outrider.engines.openvino.loading import load_engine

    return load_engine(lookup(config.model), store, config, report)


_SEQUENCE = 0


def warm_up(engine: Engine, max_rows: int) -> None:
    """Run a call of every size up to max_rows rows that the engine distinguishes, so that no user
    waits for what happens once: the first call packs weights (half a second), and the first call
    of each size builds its kernels (tens of milliseconds). Logits are asked for as many rows as a
    step of replies has, not for a whole prompt: their memory stays taken.

    The engine must have no open sequence; its KV is then garbage, as it was before. Raises
    EngineError."""
    info = engine.info
    room = info.num_blocks * info.block_tokens - info.scratch_tokens
    most = min(max_rows, room, info.max_context_tokens - info.scratch_tokens)
    tokens = np.zeros(most, np.int32)
    engine.open(_SEQUENCE, tokens[:1])
    try:
        for num_rows in _sizes(info.sizing, info.min_rows, most):
            num_blocks = -(-(num_rows + info.scratch_tokens) // info.block_tokens)
            blocks = np.arange(num_blocks, dtype=np.int32)
            num_logits = min(num_rows, MAX_LOGITS_ROWS)
            engine.step([SequenceSlice(_SEQUENCE, tokens[:num_rows], 0, blocks, num_logits)])
    finally:
        engine.close_sequence(_SEQUENCE)


def _sizes(sizing: SizingRule, least: int, most: int) -> list[int]:
    """The largest number of rows of each size; one number if the engine has no sizes."""
    if sizing == NO_SIZING:
        return [least][: most - least + 1]
    largest = {sizing.padded(rows): rows for rows in range(least, most + 1)}
    return list(largest.values())
