"""Reports of the runtime: statistics of iterations, and KV events as prefix events (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from outrider.engines.turn.base import BlocksRemoved, BlocksStored, PrefixEvent
from outrider.lru_map import LruMap

_NAME_BYTES: Final = 8
_MAX_PROMPTS: Final = 4096
"""First blocks whose trust groups are remembered."""
_MAX_GROUPS: Final = 2
"""More groups with one first block are not told from each other, nor are two."""


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """The state after one iteration; 0 for what a version does not report."""

    num_queued: int = 0
    free_blocks: int = 0
    max_blocks: int = 0
    """Blocks of the pool on the GPU."""


def stats_of(report: Mapping[str, Any]) -> RuntimeStats:
    """From a report of LLM.get_stats_async."""
    cache = report.get("kvCacheStats") or {}
    return RuntimeStats(
        int(report.get("numQueuedRequests") or 0),
        int(cache.get("freeNumBlocks") or 0),
        int(cache.get("maxNumBlocks") or 0),
    )


def pool_blocks(event: Mapping[str, Any]) -> int:
    """Blocks of the pool on the GPU, from the event of its creation; else 0."""
    data = event["data"]
    return int(data["num_blocks_per_cache_level"][0]) if data["type"] == "created" else 0


class BlockTranslator:
    """From the runtime's events to the seam's.

    They do not say whose a block is. A first block is taken for one of the trust group whose
    request began with its ids. If two groups sent the same ids, whose block it is cannot be told:
    it and what follows it are left out, and routers expect less than there is.
    """

    def __init__(self, block_tokens: int, max_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._groups: LruMap[bytes, frozenset[bytes]] = LruMap(_MAX_PROMPTS)
        """Salts by digest of a first block's ids."""
        self._salts: LruMap[bytes, tuple[bytes]] = LruMap(max_blocks)
        """By name of a stored block."""

    def sent(self, ids: Sequence[int], salt: bytes) -> None:
        """A request was sent."""
        key = _digest(ids[: self._block_tokens])
        known = self._groups.get(key) or frozenset()
        if len(known) < _MAX_GROUPS:
            self._groups.put(key, known | {salt})

    def translate(self, event: Mapping[str, Any]) -> Iterator[PrefixEvent]:
        """An event of LLM.get_kv_cache_events_async."""
        data = event["data"]
        if data["type"] == "stored":
            yield from self._stored(data)
        elif data["type"] == "removed":
            names = tuple(_name(it) for it in data["block_hashes"])
            told = tuple(name for name in names if self._salts.pop(name) is not None)
            if told:
                yield BlocksRemoved(told)

    def _stored(self, data: Mapping[str, Any]) -> Iterator[BlocksStored]:
        parent = data.get("parent_hash")
        before = b"" if parent is None else _name(parent)
        names: list[bytes] = []
        ids: list[int] = []
        for block in data["blocks"]:
            block_ids = [int(it["token_id"]) for it in block["tokens"]]
            if len(block_ids) != self._block_tokens:
                break  # one that is not full yet
            names.append(_name(block["block_hash"]))
            ids += block_ids
        if not names:
            return
        salt = self._salts.get(before) if before else self._salt_of(ids)
        if salt is None:
            return
        for name in names:
            self._salts.put(name, salt)
        yield BlocksStored(salt[0], before, tuple(names), tuple(ids))

    def _salt_of(self, ids: Sequence[int]) -> tuple[bytes] | None:
        groups = self._groups.get(_digest(ids[: self._block_tokens])) or frozenset()
        return (next(iter(groups)),) if len(groups) == 1 else None


def _digest(ids: Sequence[int]) -> bytes:
    return blake2b(np.array(ids, np.int64).tobytes(), digest_size=16).digest()


def _name(block_hash: int) -> bytes:
    return (int(block_hash) % (1 << 8 * _NAME_BYTES)).to_bytes(_NAME_BYTES, "big")
