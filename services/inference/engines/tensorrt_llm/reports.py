"""What the runtime tells of itself: iteration statistics and KV block events (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    reused_blocks: int = 0
    """Blocks taken from the cache since the start."""
    cache_hit_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full or partial block can be reused from now on."""

    event_id: int
    block_hash: int
    parent_hash: int | None
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block is gone."""

    event_id: int
    block_hash: int


def latest_stats(reports: Sequence[Mapping[str, Any]]) -> RuntimeStats | None:
    """The newest of what LLM.get_stats returned; None if there was nothing."""
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


def block_events(events: Sequence[Mapping[str, Any]]) -> list[BlockStored | BlockRemoved]:
    """What LLM.get_kv_cache_events returned, in order; pool sizes and priorities are left out."""
    return [one for event in events for one in _changes(event)]


def _changes(event: Mapping[str, Any]) -> Iterator[BlockStored | BlockRemoved]:
    number, data = int(event["event_id"]), event["data"]
    if data["type"] == "stored":
        parent = data.get("parent_hash")
        for block in data["blocks"]:
            ids = tuple(int(token["token_id"]) for token in block["tokens"])
            yield BlockStored(number, int(block["block_hash"]), parent, ids)
            parent = int(block["block_hash"])
    elif data["type"] == "removed":
        for block_hash in data["block_hashes"]:
            yield BlockRemoved(number, int(block_hash))
