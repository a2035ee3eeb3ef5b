"""The settings of the prefix store."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.bounds import PositiveFloat, PositiveInt
from outrider.redis_settings import SealedRedisConfig


@dataclass(frozen=True, slots=True)
class PrefixStoreConfig(SealedRedisConfig):
    """The Redis that keeps KV of prompts' beginnings: table `[inference.prefix_store]`."""

    TABLE = "prefix_store"

    url: str = ""
    """redis://HOST:PORT/DATABASE, or rediss:// over TLS; empty: none. It may be slow, full or gone
    at any time: then prompts are computed, as without it."""
    cluster: bool = False
    """`url` is one node of a Redis Cluster, which names the others."""
    timeout_ms: PositiveFloat = 1000.0
    """Longest round trip of up to four blocks. No session waits for one."""
    ttl_s: PositiveInt = 86_400
    """Seconds after which an entry expires if nobody asks for it."""
    min_tokens: PositiveInt = 256
    """Prompts with fewer tokens are computed sooner than it pays to look for them."""
    max_tokens: PositiveInt = 8192
    """Most tokens kept of a prompt."""
