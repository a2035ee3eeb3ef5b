"""Beginnings of prompts in a store that outlives the replica and is shared with others.

What more than one prompt had is saved, and found again by whoever has the operator's secret: an
entry is believed only if it opens with it, names this very engine's fingerprint and is of the ids
asked for.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from outrider.lru_map import LruMap
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from services.inference.kv_tiers.blocks import (
    TRANSFER_BOUNDARIES_S,
    TRANSFER_SECONDS,
    TRANSFERRED,
    BlockLoader,
    payload_of,
)
from services.inference.kv_tiers.planning import LoadPlanner
from services.inference.kv_tiers.tiers import KvTier, Prefix
from services.inference.kv_transfer import ExportedBlock
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import RedisStore
from services.inference.scheduler.types import OpenRequest

STORE_FAILURES: Final = Family(
    "outrider_kv_store_failures",
    "Requests to the prefix store that failed: slow, full, gone, or refused.",
)
STORE_BLOCKS: Final = Family(
    "outrider_kv_store_blocks",
    "Blocks of prompts, by what became of them: loaded, missing, refused (damaged, or not this "
    "model's), late (the engine was sooner, or too much waited for it), saved, failed.",
)

_RESULTS: Final = ("loaded", "missing", "refused", "late", "saved", "failed")
_CHUNK_BLOCKS: Final = 4
"""Blocks of one round trip: a few megabytes, so that blocks become useful as soon as they
arrive."""
_MAX_NAMES: Final = 65_536
"""Names that are remembered: as seen once, as stored, and as unusable."""
_MAX_KNOWN_S: Final = 900.0
"""How long a name counts as stored before the store is asked again: a store forgets when it
restarts or is full."""


class Names:
    """The latest names, least recently added forgotten."""

    def __init__(
        self,
        max_names: int = _MAX_NAMES,
        *,
        lasts_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A name is there for `lasts_s` after it was last added."""
        self._lasts_s = lasts_s
        self._clock = clock
        self._names: LruMap[bytes, float] = LruMap(max_names)
        """When each was added last."""

    def __contains__(self, name: bytes) -> bool:
        added_at = self._names.peek(name)
        return added_at is not None and self._clock() - added_at < self._lasts_s

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: bytes) -> bool:
        """Whether it was there already."""
        was_there = name in self
        self._names.put(name, self._clock())
        return was_there

    def discard(self, name: bytes) -> None:
        self._names.pop(name)


class PrefixStoreTier(KvTier):
    """The prefix store: asked for the blocks of a prompt, and given those that came more than
    once."""

    name = "redis"

    def __init__(
        self,
        store: RedisStore,
        sealer: Sealer,
        inexact_sealer: Sealer,
        loader: BlockLoader,
        metrics: Metrics,
        *,
        min_tokens: int,
        max_tokens: int,
        ttl_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prompts with at least `min_tokens` tokens in full blocks have their first `max_tokens`
        loaded from the store and saved there, sealed by the first of the sealers, or by the other
        one if KV is inexact. Entries expire `ttl_s` seconds after they were last
        asked for."""
        super().__init__()
        self._store = store
        self._sealers = {False: sealer, True: inexact_sealer}
        """By whether KV is inexact."""
        self._loader = loader
        self._block_tokens = loader.identity.layout.block_tokens
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._clock = clock
        self._planners = {False: LoadPlanner(), True: LoadPlanner()}
        """By whether KV is inexact: it has fewer bytes."""
        self._seen = Names()
        """Names of blocks that one prompt had. A second prompt with the same block makes it worth
        saving."""
        self._stored = Names(lasts_s=min(ttl_s / 2, _MAX_KNOWN_S), clock=clock)
        self._unusable = Names()
        """Names of entries that existed but were refused, or empty, when they were fetched. They
        are written again even if the store says that it has them."""
        self._saving = asyncio.Lock()
        self._blocks = metrics.counter(STORE_BLOCKS)
        self._bytes = metrics.counter(TRANSFERRED)
        for direction in ("save", "load"):
            self._bytes.add(0, {"direction": direction})
        self._seconds = metrics.histogram(TRANSFER_SECONDS, TRANSFER_BOUNDARIES_S)
        self._failures = metrics.counter(STORE_FAILURES)
        metrics.from_zero(STORE_FAILURES)
        metrics.from_zero(STORE_BLOCKS, "result", _RESULTS)

    def num_blocks(self, request: OpenRequest) -> int:
        # Nothing of a group would be found again whose name is another one after a restart.
        if not (request.group_lasts or request.warms_up):
            return 0
        num_blocks = min(len(request.prompt), self._max_tokens) // self._block_tokens
        return num_blocks if num_blocks * self._block_tokens >= self._min_tokens else 0

    def pays(self, prefix: Prefix, missing: range, block_ms: float) -> bool:
        return self._planner(prefix).pays(len(missing), block_ms)

    async def fetch(self, prefix: Prefix, missing: range, block_ms: float) -> None:
        names = self._names(prefix)[missing.start : missing.stop]
        began = self._clock()
        present = await self._store.present(names)
        self._count_failures()
        if present is None:
            self._count("missing", len(missing))
            return
        self._planner(prefix).observe_round_trip((self._clock() - began) * 1e3)
        self._note_stored(names, present)
        there = [index for index, is_there in zip(missing, present, strict=True) if is_there]
        self._count("missing", len(missing) - len(there))
        count = max(1, self._planner(prefix).num_to_load(len(missing), block_ms))
        wanted = iter([index for index in there if index not in prefix.fetched][: -count - 1 : -1])
        while chunk := list(islice(wanted, _CHUNK_BLOCKS)):
            if prefix.is_computed:
                self._count("late", len(chunk))
            else:
                with self._loader.claim(prefix, chunk) as indices:
                    if indices:
                        await self._fetch(prefix, indices)

    def wants(self, prefix: Prefix) -> Sequence[int]:
        """Blocks that another prompt had before, as far as they are not stored. A static prefix
        comes again with every start, and what a router says that others share came to another
        replica before."""
        request, names = prefix.request, self._names(prefix)
        num_shared = request.shared_prefix_tokens // self._block_tokens
        for name in names if request.warms_up else names[:num_shared]:
            self._seen.add(name)
        again = [self._seen.add(name) for name in names]
        # A block is of use behind those before it alone, so those that came before are the first.
        return [
            index
            for index, was_there in enumerate(again)
            if was_there and names[index] not in self._stored
        ]

    async def save(self, prefix: Prefix, wanted: Sequence[int]) -> None:
        """Save blocks from the first one on, one prompt at a time."""
        async with self._saving:
            names = [prefix.store_names[index] for index in wanted]
            present = await self._store.present(names)
            if present is None:
                self._count_failures()
                self._count("failed", len(names))
                return
            self._note_stored(names, present)
            left = iter([i for i in wanted if prefix.store_names[i] not in self._stored])
            while chunk := list(islice(left, _CHUNK_BLOCKS)):
                await self._save(prefix, chunk)

    async def close(self) -> None:
        await self._store.close()
        self._loader.close()

    def _names(self, prefix: Prefix) -> list[bytes]:
        """Names of the blocks that may be stored; empty for a prefix that only other tiers have."""
        if not prefix.store_names:
            num_blocks = self.num_blocks(prefix.request)
            prefix.store_names = self._sealer(prefix).names(prefix.hashes[:num_blocks])
        return prefix.store_names

    def _planner(self, prefix: Prefix) -> LoadPlanner:
        return self._planners[prefix.request.takes_inexact_kv]

    def _sealer(self, prefix: Prefix) -> Sealer:
        return self._sealers[prefix.request.takes_inexact_kv]

    async def _fetch(self, prefix: Prefix, indices: Sequence[int]) -> None:
        names = [prefix.store_names[index] for index in indices]
        began = self._clock()
        answer = await self._store.fetch(names)
        values = [None] * len(names) if answer is None else answer
        blocks = await self._loader.in_thread(self._unpack, prefix, indices, values)
        took_s = self._clock() - began
        self._planner(prefix).observe_load(len(names), took_s * 1e3)
        self._seconds.record(took_s, {"direction": "load"})
        self._moved("load", sum(len(value or b"") for value in values))
        usable = {index for index, _ in blocks}
        for index, name in zip(indices, names, strict=True):
            if index in usable:
                self._unusable.discard(name)
                continue
            self._stored.discard(name)
            if answer is not None:
                self._unusable.add(name)
        num_found = sum(value is not None for value in values)
        self._count("missing", len(values) - num_found)
        self._count("refused", num_found - len(blocks))
        if blocks:
            is_loaded = self._loader.load(prefix, blocks, self.name)
            self._count("loaded" if is_loaded else "late", len(blocks))

    def _unpack(
        self, prefix: Prefix, indices: Sequence[int], values: Sequence[bytes | None]
    ) -> tuple[tuple[int, bytes], ...]:
        """Called in the thread: the blocks whose values are valid."""
        blocks, sealer = [], self._sealer(prefix)
        for index, value in zip(indices, values, strict=True):
            frame = None if value is None else sealer.open(prefix.store_names[index], value)
            block = None if frame is None else self._loader.unpack(prefix, index, frame)
            if block is not None:
                blocks.append((index, block))
        return tuple(blocks)

    def _note_stored(self, names: Sequence[bytes], present: Sequence[bool]) -> None:
        """Record which entries the store has; others, and unusable ones, no longer count as
        stored."""
        for name, is_there in zip(names, present, strict=True):
            if is_there and name not in self._unusable:
                self._stored.add(name)
            else:
                self._stored.discard(name)

    async def _save(self, prefix: Prefix, chunk: Sequence[int]) -> None:
        names = {prefix.hashes[index]: prefix.store_names[index] for index in chunk}
        is_inexact = prefix.request.takes_inexact_kv
        blocks = await self._loader.model.export_blocks(
            tuple(names)[::-1], takes_inexact=is_inexact
        )
        if not blocks:
            return
        began = self._clock()
        entries = await self._loader.in_thread(self._pack, names, blocks, is_inexact=is_inexact)
        is_stored = await self._store.put(entries)
        self._seconds.record(self._clock() - began, {"direction": "save"})
        self._count("saved" if is_stored else "failed", len(entries))
        self._count_failures()
        if is_stored:
            self._moved("save", sum(len(value) for _, value in entries))
            for name, _ in entries:
                self._stored.add(name)
                self._unusable.discard(name)

    def _pack(
        self, names: Mapping[bytes, bytes], blocks: Sequence[ExportedBlock], *, is_inexact: bool
    ) -> list[tuple[bytes, bytes]]:
        """In the thread: names and values."""
        entries, payload = [], payload_of(is_inexact=is_inexact)
        for block in reversed(blocks):  # the first one first, as it is of most use
            name, frame = names[block.named.name], self._loader.identity.pack(block, payload)
            entries.append((name, self._sealers[is_inexact].seal(name, frame)))
        return entries

    def _moved(self, direction: str, num_bytes: int) -> None:
        self.counts.num_bytes += num_bytes
        self._bytes.add(num_bytes, {"direction": direction})
        self._count_failures()

    def _count_failures(self) -> None:
        new = self._store.num_failures - self.counts.num_failures
        if new:
            self.counts.num_failures += new
            self._failures.add(new)

    def _count(self, what: str, num_blocks: int) -> None:
        if num_blocks:
            self._blocks.add(num_blocks, {"result": what})
