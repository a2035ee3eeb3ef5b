"""How many blocks the KV pool has (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.engines.free_memory import FreeMemory
from outrider.errors import ConfigError

DEFAULT_SHARE = 0.3
"""Default share of free memory: two replicas on a machine leave room for other processes."""
FLOOR_BYTES = 64 << 20
"""A measured budget is at least this, as far as so much is free."""
CEILING_BYTES = 16 << 30
"""A measured budget is at most this; a larger pool has to be asked for."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Size of a block, in bytes and tokens."""

    num_bytes: int
    num_tokens: int
    scratch_tokens: int
    """Slots that a sequence needs behind its last token."""

    def blocks_for(self, context_tokens: int) -> int:
        """Blocks of one sequence of so many tokens."""
        return -(-(context_tokens + self.scratch_tokens) // self.num_tokens)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The number of blocks chosen, and the reason for messages."""

    num_blocks: int
    reason: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The size requested: a number of blocks, else bytes, else a share of free memory."""

    num_blocks: int | None = None
    num_bytes: int = 0
    share: float = DEFAULT_SHARE
    context_tokens: int = 0
    """Tokens of the longest sequence that has to fit; 0: none is promised."""

    def decide(self, shape: BlockShape, measure: Callable[[], FreeMemory]) -> PoolSize:
        """The pool's size; measures only if it has to. Raises ConfigError if one sequence of the
        context asked does not fit, or not even one block."""
        least = max(1, shape.blocks_for(self.context_tokens) if self.context_tokens else 1)
        if self.num_blocks is not None:
            size = PoolSize(self.num_blocks, "num_blocks is set")
        elif self.num_bytes:
            size = PoolSize(self.num_bytes // shape.num_bytes, f"kv_bytes is {self.num_bytes}")
        else:
            size = self._of_share(least, shape, measure())
        if size.num_blocks < least:
            raise ConfigError(self._too_small(size, least, shape))
        return size

    def _of_share(self, least: int, shape: BlockShape, free: FreeMemory) -> PoolSize:
        wanted = min(CEILING_BYTES, int(free.num_bytes * self.share))
        floor = max(FLOOR_BYTES, least * shape.num_bytes)
        granted = min(free.num_bytes, max(wanted, floor))
        share = f"{self.share:.0%} of {free.num_bytes // _MIB} MiB that {free.source} leaves"
        if granted > wanted:
            share = f"{granted // _MIB} MiB, more than {share}"
        elif wanted == CEILING_BYTES:
            share = f"{wanted // _MIB} MiB, the most without kv_bytes"
        return PoolSize(granted // shape.num_bytes, share)

    def _too_small(self, size: PoolSize, least: int, shape: BlockShape) -> str:
        what = f"a sequence of {self.context_tokens} tokens" if self.context_tokens else "one block"
        return (
            f"the KV pool would have {size.num_blocks} blocks ({size.reason}); {what} takes "
            f"{least} blocks or {least * shape.num_bytes} bytes: raise kv_bytes or the memory "
            "limit, or lower max_context_tokens"
        )
