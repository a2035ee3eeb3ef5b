"""The settings of KV that is kept in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvSwapConfig:
    """KV of preempted sessions: table `[inference.kv_swap]`."""

    max_bytes: int = 0
    """Memory for the KV that sessions lose to others in the middle of their replies, packed; they
    get it back instead of computing it again, where that is sooner. Besides, up to 32 blocks of
    each instance wait to be packed. 0: none is kept. An engine whose KV is its own, or that is not
    exact, keeps none."""

    def __post_init__(self) -> None:
        if self.max_bytes < 0:
            raise ConfigError(f"kv_swap.max_bytes is {self.max_bytes}: it cannot be negative")
