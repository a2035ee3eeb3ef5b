"""For which numbers of rows a model is compiled once more (pure; decision 0004)."""

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
    """Those of `sizes`, ascending, that get a model of their own.

    Each holds the weights again, so their number follows from the size of the weights in the
    converted file, from the memory that is free once the model is loaded (None: unknown), and from
    what the KV pool will take of that, or from the `asked_bytes` that they may take. The smallest
    come first: calls of few rows are the most frequent, and what a model of their own saves is the
    largest part of them.
    """
    most = fixed_budget(free_bytes, kv_bytes, asked_bytes) // compiled_bytes(weights_bytes)
    return tuple(sorted(sizes)[:most])
