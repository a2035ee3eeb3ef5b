"""Reports of the runtime: iteration statistics and KV block events (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """The state after one iteration; 0 for what a version does not report."""

    num_active_requests: int = 0
    num_queued_requests: int = 0
    used_blocks: int = 0
    free_blocks: int = 0
    max_blocks: int = 0
    """Blocks of the pool on the GPU."""
    reused_blocks: int = 0
    """Blocks taken from the cache since the start."""
    cache_hit_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """Changes of KV blocks between two reports."""

    blocks_stored: int = 0
    """Blocks that can be reused from then on."""
    blocks_removed: int = 0
    pool_blocks: int = 0
    """Blocks of the pool on the GPU; in the first report only, else 0."""


def latest_stats(reports: Sequence[Mapping[str, Any]]) -> RuntimeStats | None:
    """The newest statistics returned by LLM.get_stats; None if it returned none."""
    if not reports:
        return None
    newest = reports[-1]
    cache = newest.get("kvCacheStats") or {}
    return RuntimeStats(
        num_active_requests=int(newest.get("numActiveRequests", 0)),
        num_queued_requests=int(newest.get("numQueuedRequests", 0)),
        used_blocks=int(cache.get("usedNumBlocks", 0)),
        free_blocks=int(cache.get("freeNumBlocks", 0)),
        max_blocks=int(cache.get("maxNumBlocks", 0)),
        reused_blocks=int(cache.get("reusedBlocks", 0)),
        cache_hit_rate=float(cache.get("cacheHitRate", 0.0)),
    )


def cache_changes(events: Sequence[Mapping[str, Any]]) -> CacheChanges:
    """The sum of the events returned by LLM.get_kv_cache_events, without changes of priority and
    place (GPU or host)."""
    stored = removed = pool = 0
    for data in (event["data"] for event in events):
        if data["type"] == "stored":
            stored += len(data["blocks"])
        elif data["type"] == "removed":
            removed += len(data["block_hashes"])
        elif data["type"] == "created":
            pool = int(data["num_blocks_per_cache_level"][0])
    return CacheChanges(stored, removed, pool)
