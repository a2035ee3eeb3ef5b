"""A replica's KV cache events, read into the prefix index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, TypeVar

import grpc.aio
import structlog

from outrider.codec.shipped import shipped_table
from outrider.errors import MalformedFrameError
from outrider.v1 import inference_pb2, inference_pb2_grpc
from services.router.fleet.replica import ServedModel
from services.router.prefix_index.index import PrefixIndex
from services.router.prefix_index.kv_events import (
    BlocksRemoved,
    BlocksStored,
    KvEvent,
    KvEventFollower,
    SnapshotPart,
)
from services.router.prefix_index.prompt import TokenIdReader

_MAX_BATCH_BLOCKS: Final = 512
"""Blocks applied before other tasks of the event loop run: about a millisecond."""
_RETRY_S: Final = 1.0

EventT = TypeVar("EventT", BlocksStored, KvEvent)

_log = structlog.get_logger()


class KvEventSubscriber:
    """Reads one replica's KV cache events. Their position outlives a connection: after a short loss
    they continue where they stopped."""

    def __init__(self, index: PrefixIndex, ids: TokenIdReader, owner: Callable[[str], int]) -> None:
        """`owner` is asked for a replica's number in the index."""
        self._index = index
        self._ids = ids
        self._owner = owner
        self._follower: KvEventFollower | None = None
        self._followed = (-1, 0, "", b"", b"")

    async def run(self, channel: grpc.aio.Channel, name: str, model: ServedModel) -> None:
        """Follow a replica's events until it stops. For a replica without events, or with malformed
        ones, sessions are placed without knowledge of its cache."""
        table = await asyncio.to_thread(shipped_table, model.tokens_digest)
        self._ids.add_table(model.vocabulary_digest, table)
        if not model.block_tokens:
            return
        follower = self._follow(self._owner(name), model)
        try:
            while True:
                try:
                    if await self._read(channel, follower):
                        return
                except grpc.aio.AioRpcError as error:
                    # If the replica is lost its session stream says so, and ends this subscription.
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return
                    _log.info("kv_events_broke", replica=name, code=error.code().name)
                    await asyncio.sleep(_RETRY_S)
        except MalformedFrameError as error:
            _log.warning("kv_events_refused", replica=name, why=error.message)
            follower.reset()
        finally:
            follower.interrupted()

    def _follow(self, owner: int, model: ServedModel) -> KvEventFollower:
        """The follower of a replica's events; a new one, with an empty view of its cache, if the
        replica now computes something else."""
        contract = (model.name, model.vocabulary_digest, model.identity)
        followed = (owner, model.block_tokens, *contract)
        if self._follower is None or self._followed != followed:
            # What was sent to another model there is not expected in this one's cache either.
            self._index.retire(owner)
            self._follower = KvEventFollower(self._index, owner, model.block_tokens)
            self._followed = followed
        return self._follower

    async def _read(self, channel: grpc.aio.Channel, follower: KvEventFollower) -> bool:
        """Read events from the current position. Returns True if the replica ended the stream,
        False if events are missing and a snapshot has to be requested. Raises MalformedFrameError,
        AioRpcError."""
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        asked_anew = follower.log == 0
        request = inference_pb2.WatchKvRequest(
            log=follower.log, next_sequence=follower.next_sequence
        )
        async for response in stub.WatchKv(request):
            if not await _take(follower, response):
                if asked_anew:
                    raise MalformedFrameError("its events do not begin with a snapshot")
                follower.reset()
                return False
            asked_anew = False
        return True


async def _take(follower: KvEventFollower, response: inference_pb2.WatchKvResponse) -> bool:
    """Apply a response in batches; other tasks run in between. False where events are missing."""
    if response.HasField("snapshot"):
        async for part in _parts(response.snapshot):
            if not follower.apply_snapshot(response.log, response.sequence, part):
                return False
        return True
    sequence = response.sequence
    async for events in _event_batches([_event(event) for event in response.events]):
        if not follower.apply(response.log, sequence, events):
            return False
        sequence += len(events)
    return True


async def _parts(snapshot: inference_pb2.KvSnapshot) -> AsyncIterator[SnapshotPart]:
    chains = [_stored(chain) for chain in snapshot.chains]
    batches = list(_batches(chains)) or [[]]
    for number, batch in enumerate(batches):
        is_last = snapshot.last and number == len(batches) - 1
        yield SnapshotPart(batch, snapshot.first and number == 0, is_last)
        await asyncio.sleep(0)


async def _event_batches(events: list[KvEvent]) -> AsyncIterator[list[KvEvent]]:
    for batch in _batches(events):
        yield batch
        await asyncio.sleep(0)


def _batches(events: Sequence[EventT]) -> Iterator[list[EventT]]:
    """Split events into batches of at least `_MAX_BATCH_BLOCKS` blocks, except for the last."""
    batch: list[EventT] = []
    num_blocks = 0
    for event in events:
        batch.append(event)
        num_blocks += len(event.blocks)
        if num_blocks >= _MAX_BATCH_BLOCKS:
            yield batch
            batch, num_blocks = [], 0
    if batch:
        yield batch


def _event(event: inference_pb2.KvEvent) -> KvEvent:
    if event.WhichOneof("kind") == "removed":
        return BlocksRemoved(event.removed.block_hashes)
    return _stored(event.stored)


def _stored(chain: inference_pb2.KvStored) -> BlocksStored:
    return BlocksStored(chain.parent_hash, chain.block_hashes, chain.num_tokens)
