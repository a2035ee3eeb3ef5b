"""Predicts the memory that a replica of a model takes, before it is loaded (pure).

The OpenVINO engine holds the weights once in the model that takes any number of rows, laid out for
its kernels, and once more in each model compiled for one number of rows (decision 0004). The file
they come from is mapped, and its pages are released; those that calls read again do not count, as
the kernel drops them when it needs the room. Sizes are fitted to measurements of models with 0.1 to
1.5 billion weights; true sizes are within a quarter of the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from outrider.engines.free_memory import FreeMemory
from outrider.engines.kv_budget import FLOOR_BYTES
from outrider.errors import InsufficientMemoryError

MIB: Final = 1 << 20
PROCESS_BYTES: Final = 280 * MIB
"""Interpreter, libraries, vocabulary and the scheduler's tables of a replica, in pages of 2 MiB."""
MAX_LOGITS_ROWS: Final = 64
"""Rows of logits of one call for which memory is reserved at the start; calls with more allocate
it."""
RESERVE_BYTES: Final = 512 * MIB
"""Memory kept free, for sessions, buffers and other processes, by anything that only makes calls
faster."""

_GRAPH_BYTES: Final = 32 * MIB
"""Bytes of one compiled model besides weights: nodes, kernels and intermediate results."""
_LAYOUT_PERCENT: Final = 105
"""Weights as kernels want them, of their size in the converted file: the embedding stays there,
scales of groups grow from f16 to f32 and are held twice."""
_ORIGINAL_BYTES: Final = 40 * MIB
"""Bytes of the graph before it is compiled: products that were joined."""
_MODEST_BYTES: Final = 2 << 30
"""Models for certain numbers of rows take so much of any machine that has it."""
_PLENTY: Final = 20
"""They take one part in so many of a machine where that is more."""


def compiled_bytes(weights_bytes: int) -> int:
    """Bytes of one compiled model, whose converted weights have `weights_bytes`."""
    return weights_bytes * _LAYOUT_PERCENT // 100 + _GRAPH_BYTES


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one replica, by purpose."""

    process_bytes: int
    """0 for an engine in a process that is there already."""
    model_bytes: int
    """The model that takes any number of rows."""
    logits_bytes: int
    kv_bytes: int
    fixed_bytes: int = 0
    """All models compiled for one number of rows; none is needed."""

    @property
    def needed_bytes(self) -> int:
        """Bytes without which the replica cannot start."""
        return self.process_bytes + self.model_bytes + self.logits_bytes + self.kv_bytes

    @property
    def total_bytes(self) -> int:
        """With the models that make calls faster, and the KV pool filled."""
        return self.needed_bytes + self.fixed_bytes

    def check(self, free: FreeMemory | None, num_replicas: int = 1, others_bytes: int = 0) -> None:
        """Raises InsufficientMemoryError if so many replicas, beside others, do not fit into what
        is free. Nothing is refused where that is not known."""
        check_together([Group("the model", self, num_replicas)], free, others_bytes)


class Group(NamedTuple):
    """Replicas of one model."""

    model: str
    """For people: its name."""
    replica: Footprint
    num_replicas: int

    def told(self, is_alone: bool) -> str:
        """Text with the memory that one of the replicas needs, by purpose."""
        it = self.replica
        what = "the model" if is_alone else self.model
        if self.num_replicas > 1:
            what = f"each of {self.num_replicas} replicas" + ("" if is_alone else f" of {what}")
        return (
            f"{_mib(it.model_bytes)} for {what}, {_mib(it.kv_bytes)} for its KV pool, "
            f"{_mib(it.logits_bytes + it.process_bytes)} for buffers"
        )


def check_together(groups: Sequence[Group], free: FreeMemory | None, others_bytes: int = 0) -> None:
    """Raises InsufficientMemoryError if the replicas of several models and other processes do not
    fit into the free memory. Refuses nothing if that is unknown."""
    needed = sum(it.num_replicas * it.replica.needed_bytes for it in groups) + others_bytes
    if free is None or needed <= free.num_bytes:
        return
    parts = "; ".join(it.told(len(groups) == 1) for it in groups)
    others = f", {_mib(others_bytes)} for other processes" if others_bytes else ""
    raise InsufficientMemoryError.of(
        needed,
        f"{_mib(needed)} of memory are needed ({parts}{others}), {free.source} leaves "
        f"{_mib(free.num_bytes)}: start fewer models or replicas, lower kv_bytes or "
        "max_context_tokens, choose a smaller model, or raise the memory limit",
    )


def footprint(
    weights_bytes: int,
    vocabulary_size: int,
    kv_bytes: int = 0,
    *,
    process_bytes: int = PROCESS_BYTES,
    num_fixed: int = 0,
) -> Footprint:
    """Footprint of a model whose converted weights have `weights_bytes`, with `num_fixed` models
    for one number of rows. With `kv_bytes` 0 the KV pool is the smallest default one."""
    return Footprint(
        process_bytes=process_bytes,
        model_bytes=compiled_bytes(weights_bytes) + _ORIGINAL_BYTES,
        logits_bytes=MAX_LOGITS_ROWS * vocabulary_size * 4,
        kv_bytes=kv_bytes or FLOOR_BYTES,
        fixed_bytes=num_fixed * compiled_bytes(weights_bytes),
    )


def check_pool(pool_bytes: int, free: FreeMemory | None) -> None:
    """Raises InsufficientMemoryError if a KV pool does not fit into the free memory; never if that
    is unknown."""
    if free is not None and pool_bytes > free.num_bytes:
        raise InsufficientMemoryError.of(
            pool_bytes,
            f"the KV pool takes {_mib(pool_bytes)}, {free.source} leaves {_mib(free.num_bytes)}: "
            "lower num_blocks or kv_bytes, or raise the memory limit",
        )


def fixed_budget(free_bytes: int | None, kv_bytes: int, asked_bytes: int = 0) -> int:
    """Bytes for models compiled for certain numbers of rows. `free_bytes` are free once the model
    is loaded (None: unknown), of which the KV pool takes `kv_bytes`. A nonzero `asked_bytes` is
    granted as far as free memory allows."""
    if free_bytes is None:
        return asked_bytes or _MODEST_BYTES
    spare = max(0, free_bytes - kv_bytes - RESERVE_BYTES)
    if asked_bytes:
        return min(asked_bytes, spare)
    return max(min(_MODEST_BYTES, spare), spare // _PLENTY)


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // MIB)} MiB"
