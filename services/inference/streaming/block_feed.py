"""The prefix cache's events, sent to the routers that watch them (WatchKv)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress

from outrider.v1 import inference_pb2
from services.inference.kv.events import BlockEvent, BlockLedger, Snapshot, Stored

_MAX_EVENTS = 64
"""Most events of one response, each of up to kv.events.MAX_EVENT_BLOCKS blocks: far below gRPC's
limit."""
_INTERVAL_S = 0.5
"""Time between two responses with events: a message costs its reader as much as ten commits. A
router already expects the prompts that it sent here to be cached, and the tokens of a reply are
needed only with the chat's next turn."""
_PART_BLOCKS = 8192
"""A part of a snapshot ends with the chain that brings it to at least this many blocks."""


class BlockFeed:
    """One ledger, any number of watchers with a cursor each. Nothing is queued per watcher: one
    that does not read costs no memory and delays no other."""

    def __init__(self, block_tokens: int, *, max_blocks: int = 8192) -> None:
        """Events of up to `max_blocks` blocks are kept for watchers that lag behind."""
        self._block_tokens = block_tokens
        self._ledger = BlockLedger(max_blocks)
        self._log = secrets.randbits(64) | 1
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def num_stored(self) -> int:
        """Blocks that can be reused now."""
        return self._ledger.num_stored

    def take(self, events: Sequence[BlockEvent]) -> None:
        """Add a tick's events."""
        if events:
            self._ledger.add(events)
            self._wake()

    def close(self) -> None:
        """End every watch."""
        self._ended.set()
        self._wake()

    async def watch(
        self, request: inference_pb2.WatchKvRequest
    ) -> AsyncGenerator[inference_pb2.WatchKvResponse, None]:
        """Events that the watcher has not seen, until it closes the stream."""
        wanted = request.next_sequence if request.log == self._log else 0
        while not self._ended.is_set():
            changed = self._changed
            events = self._ledger.since(wanted, _MAX_EVENTS)
            if events is None:
                snapshot = self._ledger.snapshot()
                wanted = snapshot.next_number
                for part in self._parts(snapshot):
                    yield part
            elif events:
                response = inference_pb2.WatchKvResponse(log=self._log, sequence=wanted)
                response.events.extend(map(self._event, events))
                wanted += len(events)
                yield response
                if len(events) < _MAX_EVENTS:
                    await self._pause()
            else:
                await changed.wait()

    async def _pause(self) -> None:
        """Let more events gather; returns at once when the feed is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_INTERVAL_S):
                await self._ended.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _parts(self, snapshot: Snapshot) -> Iterator[inference_pb2.WatchKvResponse]:
        """A snapshot in parts of bounded size, made one by one as the watcher reads them."""
        chains = list(reversed(snapshot.chains))
        first = True
        while chains or first:
            part, num_blocks = inference_pb2.KvSnapshot(first=first), 0
            while chains and num_blocks < _PART_BLOCKS:
                chain = chains.pop()
                num_blocks += len(chain.hashes)
                part.chains.append(self._stored(chain))
            first, part.last = False, not chains
            yield inference_pb2.WatchKvResponse(
                log=self._log, sequence=snapshot.next_number, snapshot=part
            )

    def _event(self, event: BlockEvent) -> inference_pb2.KvEvent:
        if isinstance(event, Stored):
            return inference_pb2.KvEvent(stored=self._stored(event))
        return inference_pb2.KvEvent(removed=inference_pb2.KvRemoved(block_hashes=event.hashes))

    def _stored(self, chain: Stored) -> inference_pb2.KvStored:
        return inference_pb2.KvStored(
            parent_hash=chain.parent,
            block_hashes=chain.hashes,
            num_tokens=len(chain.hashes) * self._block_tokens,
        )
