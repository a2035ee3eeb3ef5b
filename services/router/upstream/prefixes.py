"""What a replica says of its prefix cache, read into the prefix index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, TypeVar

import grpc.aio
import structlog

from outrider.codec.shipped import shipped_table
from outrider.errors import MalformedFrameError
from outrider.v1 import inference_pb2, inference_pb2_grpc
from services.router.fleet.load import Model
from services.router.prefixes.follower import BlockEvent, Follower, Part, Removed, Stored
from services.router.prefixes.ids import IdReader
from services.router.prefixes.index import PrefixIndex

_MAX_TURN_BLOCKS: Final = 512
"""Blocks taken in one turn of the event loop: about a millisecond."""
_RETRY_S: Final = 1.0

EventT = TypeVar("EventT", Stored, BlockEvent)

_log = structlog.get_logger()


class PrefixWatch:
    """One replica's cache events. Where they stand outlives a connection: after a short loss they
    go on where they stopped."""

    def __init__(self, index: PrefixIndex, ids: IdReader, owner: Callable[[str], int]) -> None:
        """`owner` is asked for a replica's number in the index."""
        self._index = index
        self._ids = ids
        self._owner = owner
        self._follower: Follower | None = None
        self._followed = (-1, 0)

    async def run(self, channel: grpc.aio.Channel, name: str, model: Model) -> None:
        """Follow a replica of the fleet until it stops. One that does not tell of its cache, or
        not rightly, gets its sessions without that."""
        self._ids.learn(await asyncio.to_thread(shipped_table, model.vocabulary_digest))
        if not model.block_tokens:
            return
        follower = self._follow(self._owner(name), model.block_tokens)
        try:
            while True:
                try:
                    if await self._read(channel, follower):
                        return
                except grpc.aio.AioRpcError as error:
                    # If the replica is lost its session stream says so, and ends this watch.
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return
                    _log.info("prefix_watch_broke", replica=name, code=error.code().name)
                    await asyncio.sleep(_RETRY_S)
        except MalformedFrameError as error:
            _log.warning("prefix_watch_refused", replica=name, why=error.message)
            follower.reset()
        finally:
            follower.interrupted()

    def _follow(self, owner: int, block_tokens: int) -> Follower:
        if self._follower is None or self._followed != (owner, block_tokens):
            self._index.forget(owner)
            self._follower = Follower(self._index, owner, block_tokens)
            self._followed = owner, block_tokens
        return self._follower

    async def _read(self, channel: grpc.aio.Channel, follower: Follower) -> bool:
        """One watch from where events stand. True: the replica ended it. False: something is
        missing, and a snapshot is to be asked for. Raises MalformedFrameError, AioRpcError."""
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        asked_anew = follower.log == 0
        request = inference_pb2.WatchKvRequest(
            log=follower.log, next_sequence=follower.next_sequence
        )
        async for response in stub.WatchKv(request):
            if not await _take(follower, response):
                if asked_anew:
                    raise MalformedFrameError("Its events do not begin with a snapshot.")
                follower.reset()
                return False
            asked_anew = False
        return True


async def _take(follower: Follower, response: inference_pb2.WatchKvResponse) -> bool:
    """Take a response in turns of the event loop; as Follower's verbs."""
    if response.HasField("snapshot"):
        async for part in _parts(response.snapshot):
            if not follower.snapshot(response.log, response.sequence, part):
                return False
        return True
    sequence = response.sequence
    async for events in _turns([_event(event) for event in response.events]):
        if not follower.events(response.log, sequence, events):
            return False
        sequence += len(events)
    return True


async def _parts(snapshot: inference_pb2.KvSnapshot) -> AsyncIterator[Part]:
    chains = [_stored(chain) for chain in snapshot.chains]
    batches = list(_batches(chains)) or [[]]
    for number, batch in enumerate(batches):
        is_last = snapshot.last and number == len(batches) - 1
        yield Part(batch, snapshot.first and number == 0, is_last)
        await asyncio.sleep(0)


async def _turns(events: list[BlockEvent]) -> AsyncIterator[list[BlockEvent]]:
    for batch in _batches(events):
        yield batch
        await asyncio.sleep(0)


def _batches(events: Sequence[EventT]) -> Iterator[list[EventT]]:
    """Of at least a turn's blocks, but for the last."""
    batch: list[EventT] = []
    num_blocks = 0
    for event in events:
        batch.append(event)
        num_blocks += len(event.blocks)
        if num_blocks >= _MAX_TURN_BLOCKS:
            yield batch
            batch, num_blocks = [], 0
    if batch:
        yield batch


def _event(event: inference_pb2.KvEvent) -> BlockEvent:
    if event.WhichOneof("kind") == "removed":
        return Removed(event.removed.block_hashes)
    return _stored(event.stored)


def _stored(chain: inference_pb2.KvStored) -> Stored:
    return Stored(chain.parent_hash, chain.block_hashes, chain.num_tokens)
