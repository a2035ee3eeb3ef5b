"""How much of a replica's KV may be under way to others at once (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from outrider.errors import OverloadedError
from services.inference.kv_peers.config import KvPeersConfig

_TURN_BLOCKS: Final = 4
"""Blocks copied in a row for one request: the tree is walked once for them."""
_RETRY_MS: Final = 200


class ServingLimits:
    """Counts requests being served, in all and by host."""

    def __init__(self, config: KvPeersConfig, block_bytes: int) -> None:
        self._config = config
        self._streams: Counter[str] = Counter()
        of_each = config.max_held_bytes // (config.max_streams_per_peer * max(1, block_bytes))
        # One more is held as the frame that is being sent.
        self.turn_blocks = max(1, min(_TURN_BLOCKS, of_each - 1))
        """Blocks that may be copied in a row for one request."""

    @property
    def num_streams(self) -> int:
        """Requests that are being answered."""
        return self._streams.total()

    @contextmanager
    def serving(self, host: str) -> Iterator[None]:
        """One request, from its admission to its end. Raises OverloadedError."""
        config = self._config
        if self.num_streams >= config.max_streams:
            raise OverloadedError(
                f"{self.num_streams} requests for KV are being answered; compute it, or ask later",
                retry_delay_ms=_RETRY_MS,
            )
        if self._streams[host] >= config.max_streams_per_peer:
            raise OverloadedError(
                f"{self._streams[host]} requests of this host for KV are being answered; compute "
                "it, or ask later",
                retry_delay_ms=_RETRY_MS,
            )
        self._streams[host] += 1
        try:
            yield
        finally:
            self._streams[host] -= 1
            if not self._streams[host]:
                del self._streams[host]
