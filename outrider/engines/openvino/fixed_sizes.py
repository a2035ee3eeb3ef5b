"""Chooses the numbers of rows for which a model is compiled once more (pure; decision 0004)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engines.footprint import compiled_bytes, fixed_budget


def choose_sizes(
    sizes: Sequence[int],
    weights_bytes: int,
    free_bytes: int | None,
    kv_bytes: int,
    asked_bytes: int = 0,
) -> tuple[int, ...]:
    """The sizes, of ascending `sizes`, that get a model of their own.

    Each holds the weights again. So their number follows from the size of the converted weights,
    the memory free once the model is loaded (None: unknown), the part of it that the KV pool takes,
    and `asked_bytes`, their configured limit. The smallest come first: calls of few rows are the
    most frequent and gain most from a model of their own.
    """
    most = fixed_budget(free_bytes, kv_bytes, asked_bytes) // compiled_bytes(weights_bytes)
    return tuple(sorted(sizes)[:most])
