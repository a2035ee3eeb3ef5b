"""Packs the KV that preempted sessions lose, and gives it back to them. The event loop's.

The model thread copies a block when another session gets its room (kv_transfer.KvTransfer). It is
packed here as an exact KV frame, by a thread. When its session has room again, the engine computes
from the first token that is missing on, and blocks are unpacked from the last one backwards, until
both meet (prefix_store.planning): no session waits for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import structlog

from outrider.codec.kv import decode_frame, encode_frame
from outrider.errors import MalformedFrameError
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from services.inference.kv.pool import KvSource
from services.inference.kv_swap.pool import SwapPool
from services.inference.kv_transfer import LoadBlocks, SwappedBlock
from services.inference.prefix_store.exchange import KvIdentity
from services.inference.prefix_store.planning import LoadPlanner
from services.inference.runner import ModelTick
from services.inference.scheduler.types import (
    Committed,
    Event,
    Failed,
    Finished,
    Preempted,
    Readmitted,
)

SWAP_BLOCKS: Final = Family(
    "outrider_kv_swap_blocks",
    "Blocks of preempted sessions, by what became of them: saved, dropped (no room, or nobody "
    "wants them any more), loaded, late (the engine was sooner, or too much waited for it), "
    "refused (damaged).",
)
SWAP_BYTES: Final = Family(
    "outrider_kv_swap_bytes", "Memory that KV of preempted sessions takes, packed."
)

_log = structlog.get_logger()


class KvBlocks(Protocol):
    """The model threads, seen from the event loop: a ModelRunner or an InstanceGroup."""

    def load_blocks(self, command: LoadBlocks) -> bool:
        """False: it was dropped."""
        ...


class KvSwap:
    """Between the model threads and the memory of preempted sessions' KV."""

    def __init__(
        self,
        max_bytes: int,
        identity: KvIdentity,
        model: KvBlocks,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._model = model
        self._clock = clock
        self._pool = SwapPool(max_bytes)
        self._planner = LoadPlanner()
        self._returning: dict[int, asyncio.Task[None]] = {}
        """Of sessions that have room again and no token yet, by session id."""
        self._packing: set[asyncio.Task[None]] = set()
        self._blocks = metrics.counter(SWAP_BLOCKS)
        self._gauge = metrics.gauge(SWAP_BYTES)
        self._gauge.set(0)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kv-swap")
        self._is_closed = False

    @property
    def num_transfers(self) -> int:
        """Blocks that are being packed, and sessions that get theirs back."""
        return len(self._packing) + len(self._returning)

    @property
    def num_bytes(self) -> int:
        """That are kept."""
        return self._pool.num_bytes

    @property
    def num_sessions(self) -> int:
        """That may want something."""
        return self._pool.num_sessions

    def on_tick(self, tick: ModelTick) -> None:
        """What the model thread tells of sessions that lose their room, get one, or end."""
        if self._is_closed:
            return
        if self._pool.num_sessions:
            self._take_events(tick.events)  # of the call before that for which room was made
        for swap in tick.swaps:
            if isinstance(swap, Preempted):
                self._stop(swap.session_id)
                self._pool.want(swap.session_id, swap.group, swap.names)
            elif isinstance(swap, SwappedBlock):
                task = self._start(self._save(swap))
                self._packing.add(task)
                task.add_done_callback(self._packing.discard)
            elif self._pool.knows(swap.session_id):
                self._stop(swap.session_id)
                task = self._start(self._give_back(swap, tick.load.row_ms))
                self._returning[swap.session_id] = task

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            is_back = isinstance(event, Committed) and event.session_id in self._returning
            if is_back or isinstance(event, Finished | Failed):
                self._stop(event.session_id)
                self._pool.forget(event.session_id)
                self._gauge.set(self._pool.num_bytes)

    @staticmethod
    def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(_log_failure)
        return task

    async def close(self) -> None:
        """Give up what is under way, and take nothing more."""
        self._is_closed = True
        tasks = [*self._packing, *self._returning.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _stop(self, session: int) -> None:
        task = self._returning.pop(session, None)
        if task is not None:
            task.cancel()

    async def _save(self, block: SwappedBlock) -> None:
        loop = asyncio.get_running_loop()
        try:
            frame = await loop.run_in_executor(self._threads, self._pack, block)
        finally:
            block.packed()
        is_kept = self._pool.put(block.named.name, frame)
        self._blocks.add(1, {"result": "saved" if is_kept else "dropped"})
        self._gauge.set(self._pool.num_bytes)

    def _pack(self, block: SwappedBlock) -> bytes:
        """In the thread."""
        header = self._identity.header(block.named.parent, block.named.ids)
        return encode_frame(header, [block.data])

    async def _give_back(self, session: Readmitted, compute_token_ms: float) -> None:
        """Blocks that it lost, from the last one backwards, as many as come sooner than the engine
        computes them."""
        if self._packing:  # it may have lost these a moment ago
            await asyncio.wait(self._packing)
        block_tokens = self._identity.layout.block_tokens
        first = session.num_cached // block_tokens
        there = [it for it in self._pool.frames(session.session_id) if it[0] >= first]
        num_missing = session.num_tokens // block_tokens - first
        count = self._planner.plan(num_missing, compute_token_ms * block_tokens)
        loop = asyncio.get_running_loop()
        wanted = there[::-1][:count]
        num_loaded = 0
        try:
            for index, frame in wanted:
                began = self._clock()
                block = await loop.run_in_executor(self._threads, _unpack, frame)
                self._planner.observe_load(1, (self._clock() - began) * 1e3)
                if block is None:
                    self._blocks.add(1, {"result": "refused"})
                    return
                loaded = LoadBlocks(session.session_id, ((index, block),), KvSource.SWAP)
                num_loaded += self._model.load_blocks(loaded)
        finally:
            for result, number in (("loaded", num_loaded), ("late", len(wanted) - num_loaded)):
                if number:
                    self._blocks.add(number, {"result": result})


def _unpack(frame: bytes) -> bytes | None:
    """In the thread: the block; None for a frame that is not what was packed."""
    try:
        (block,) = decode_frame(frame).blocks()
        return block
    except MalformedFrameError as error:
        _log.error("kv_swap_damaged", reason=error.message)
        return None


def _log_failure(task: asyncio.Task[None]) -> None:
    """A defect costs a session's KV, and is logged."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("kv_swap_failed", exc_info=error)
