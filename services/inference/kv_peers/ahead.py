"""Copies KV of sessions that other replicas serve, so that they go on here without recomputing it.

A router names the replica to which a session would move. That replica asks the serving one for the
blocks it lacks, the first ones first, a few at a time, and keeps them in its pool as cached blocks
of the session's trust group. Nothing waits for it, and it gives way: one prefix at a time is
copied, and none while sessions wait here or room is scarce.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import structlog

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.codec.kv import Payload
from outrider.lru_map import LruMap
from outrider.telemetry.metrics import Metrics
from services.inference.kv_peers.telemetry import KEPT_BLOCKS
from services.inference.kv_tiers.blocks import BlockLoader
from services.inference.kv_tiers.tiers import KeepRequest
from services.inference.scheduler.types import KvHolder

MAX_WAITING: Final = 64
"""Sessions whose KV waits to be copied; of more, those of the trust group that has most are
dropped."""
_TURN_BLOCKS: Final = 4
"""Blocks fetched and handed over at once: at most so many are held in memory."""
_MAX_GROUPS: Final = 1024
"""Trust groups whose last turn is remembered."""

FramesOf: TypeAlias = Callable[[KvHolder, Sequence[bytes]], AsyncGenerator[tuple[int, bytes], None]]
"""KvPeers.frames."""

_log = structlog.get_logger()


class KvAhead:
    """The sessions whose KV this replica is to have ahead of need. Used in the event loop."""

    def __init__(
        self,
        loader: BlockLoader,
        frames: FramesOf,
        lied: Callable[[KvHolder], None],
        metrics: Metrics,
    ) -> None:
        """`lied` is told of a replica that sent another block than it was asked for."""
        self._loader = loader
        self._block_tokens = loader.identity.layout.block_tokens
        self._frames = frames
        self._lied = lied
        self._blocks = metrics.counter(KEPT_BLOCKS)
        self._waiting: dict[tuple[bytes, int], KeepRequest] = {}
        """By trust group and session, in the order in which they came."""
        self._turns: LruMap[bytes, int] = LruMap(_MAX_GROUPS)
        """By trust group, the number of its last turn."""
        self._num_turns = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: KeepRequest) -> None:
        """Copy what is lacking of this session, in turn; a newer request takes the place of the
        session's earlier one."""
        key = request.cache_salt, request.session
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self._drop_one()
        self._waiting[key] = request
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Copy nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _drop_one(self) -> None:
        salts = Counter(salt for salt, _ in self._waiting)
        most = max(salts.values())
        first = next(key for key in self._waiting if salts[key[0]] == most)
        self._count("dropped", len(self._waiting.pop(first).ids) // self._block_tokens)

    def _next(self) -> KeepRequest:
        """The oldest request of the trust group that has waited longest for a turn."""
        key = min(self._waiting, key=lambda key: self._turns.peek(key[0]) or 0)
        self._num_turns += 1
        self._turns.put(key[0], self._num_turns)
        return self._waiting.pop(key)

    async def _work(self) -> None:
        while self._waiting:
            try:
                await self._keep(self._next())
            except Exception:
                # A defect costs a copy, and is logged.
                _log.exception("kv_not_kept")

    async def _keep(self, request: KeepRequest) -> None:
        ids, model = request.ids, self._loader.model
        hashes = list(block_hashes(ids, self._block_tokens, request.cache_salt))
        # The engine always computes the last token itself, so no block ends with it.
        num_blocks = min(len(hashes), (len(ids) - 1) // self._block_tokens)
        done = await model.keep_blocks(request.cache_salt, ids)
        if done is None:
            self._count("dropped", num_blocks)
            return
        while done < num_blocks:
            wanted = range(done, min(done + _TURN_BLOCKS, num_blocks))
            blocks = await self._fetch(request, hashes, wanted)
            if not blocks:
                self._count("missing", num_blocks - done)
                return
            kept = await model.keep_blocks(request.cache_salt, ids, blocks)
            if kept is None or kept <= done:
                self._count("dropped", num_blocks - done)
                return
            self._count("kept", kept - done)
            done = kept

    async def _fetch(
        self, request: KeepRequest, hashes: Sequence[bytes], wanted: range
    ) -> tuple[tuple[int, bytes], ...]:
        """Those of the wanted blocks that come, in order."""
        found: dict[int, bytes] = {}
        asked = wanted[::-1]
        frames = self._frames(request.holder, [hashes[index] for index in asked])
        async with aclosing(frames) as coming:
            async for place, frame in coming:
                index = asked[place]
                parent = hashes[index - 1] if index else root_hash(request.cache_salt)
                begin = index * self._block_tokens
                ids = request.ids[begin : begin + self._block_tokens]
                block = await self._loader.in_thread(
                    self._loader.identity.unpack, frame, parent, ids, Payload.EXACT
                )
                if block is None:
                    self._count("refused", 1)
                    self._lied(request.holder)
                    break
                found[index] = block
        return tuple(sorted(found.items()))

    def _count(self, what: str, num_blocks: int) -> None:
        if num_blocks:
            self._blocks.add(num_blocks, {"result": what})
