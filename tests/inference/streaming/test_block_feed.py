"""Watching a replica's prefix cache: the wire's promises, at any pace of the watcher."""

from __future__ import annotations

from typing import Any

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.inference.kv.events import Removed, Stored
from services.inference.streaming.block_feed import BlockFeed
from tests.inference.harness import SALT, Running, running

BLOCK = 16
SAMPLING = SamplingParams(max_tokens=BLOCK, ignore_eos=True)


class Follower:
    """What a router makes of the responses: each block's parent. Checks the numbering."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes] = {}
        self.log = self.next_sequence = 0
        self.num_snapshots = 0
        self._in_snapshot = False

    def take(self, response: Any) -> None:
        assert isinstance(response, inference_pb2.WatchKvResponse), "the watch is over"
        if response.HasField("snapshot"):
            self._snapshot(response)
        else:
            assert not self._in_snapshot, "something came between the parts of a snapshot"
            assert (response.log, response.sequence) == (self.log, self.next_sequence)
            assert response.events
            self.next_sequence += len(response.events)
        for event in response.events:
            if event.WhichOneof("kind") == "stored":
                self._store(event.stored)
            else:
                for block in event.removed.block_hashes:
                    del self.parents[block]

    def _snapshot(self, response: inference_pb2.WatchKvResponse) -> None:
        assert response.snapshot.first == (not self._in_snapshot)
        assert not response.events
        if response.snapshot.first:
            self.parents.clear()
            self.num_snapshots += 1
        self._in_snapshot = not response.snapshot.last
        self.log, self.next_sequence = response.log, response.sequence
        for chain in response.snapshot.chains:
            self._store(chain)

    def _store(self, chain: inference_pb2.KvStored) -> None:
        assert chain.num_tokens == BLOCK * len(chain.block_hashes) > 0
        parent = chain.parent_hash
        for block in chain.block_hashes:
            assert block not in self.parents
            self.parents[block] = parent
            parent = block


async def finished(it: Running, number: int, prompt: list[int], salt: bytes = SALT) -> list[int]:
    """All tokens of a session that is over, but for the last: its KV is never computed."""
    peer = it.peer()
    await peer.open(number, prompt, SAMPLING, cache_salt=salt)
    return [*prompt, *(await peer.finish(number)).ids[:-1]]


def prompt_of(number: int) -> list[int]:
    return [4 + number % 50] * BLOCK + [5] * (BLOCK + 3)


async def test_a_subscriber_learns_what_is_cached_and_under_which_names() -> None:
    async with running() as it:
        watch = it.stub.WatchKv(inference_pb2.WatchKvRequest())
        follower = Follower()
        follower.take(await watch.read())
        assert (follower.num_snapshots, follower.parents) == (1, {})
        ids = await finished(it, 1, prompt_of(1))
        other = await finished(it, 2, prompt_of(1), b"salt")
        names = list(block_hashes(ids, BLOCK, SALT))
        salted = list(block_hashes(other, BLOCK, b"salt"))
        while len(follower.parents) < len(names) + len(salted):
            follower.take(await watch.read())
        expected = dict(zip(names, [root_hash(SALT), *names], strict=False))
        expected |= dict(zip(salted, [root_hash(b"salt"), *salted], strict=False))
        assert follower.parents == expected
        assert follower.num_snapshots == 1
        watch.cancel()


async def test_a_watch_goes_on_where_the_last_one_ended() -> None:
    async with running() as it:
        first = it.stub.WatchKv(inference_pb2.WatchKvRequest())
        follower = Follower()
        follower.take(await first.read())
        first.cancel()
        ids = await finished(it, 1, prompt_of(1))
        await eventually(lambda: it.replica.blocks.num_stored == len(ids) // BLOCK)
        restarted = Follower()
        for known, log in ((follower, follower.log), (restarted, follower.log ^ 1)):
            request = inference_pb2.WatchKvRequest(log=log, next_sequence=follower.next_sequence)
            watch = it.stub.WatchKv(request)
            while len(known.parents) < len(ids) // BLOCK:
                known.take(await watch.read())
            watch.cancel()
        assert (follower.num_snapshots, restarted.num_snapshots) == (1, 1)
        assert follower.parents == restarted.parents


async def test_evicted_blocks_are_reported() -> None:
    engine = FakeEngine(FakeOptions(num_blocks=8))
    async with running(engine) as it:
        watch = it.stub.WatchKv(inference_pb2.WatchKvRequest())
        follower = Follower()
        ids = [await finished(it, number, prompt_of(number)) for number in range(1, 8)]
        latest = list(block_hashes(ids[-1], BLOCK, SALT))
        while not set(latest) <= follower.parents.keys():
            follower.take(await watch.read())
        await eventually(lambda: it.replica.blocks.num_stored == len(follower.parents))
        assert len(follower.parents) <= 8
        watch.cancel()


async def test_a_replica_that_stops_ends_its_watches() -> None:
    async with running() as it:
        watch = it.stub.WatchKv(inference_pb2.WatchKvRequest())
        await watch.read()
        await it.replica.service.close()
        assert not isinstance(await watch.read(), inference_pb2.WatchKvResponse)


def block(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_who_reads_slowly_gets_a_snapshot_instead_of_what_it_missed() -> None:
    feed = BlockFeed(BLOCK, max_blocks=4)
    follower = Follower()
    watch = feed.watch(inference_pb2.WatchKvRequest())
    follower.take(await anext(watch))
    feed.take([Stored(block(0), (block(1),))])
    follower.take(await anext(watch))
    for number in range(1, 20):
        feed.take([Stored(block(number), (block(number + 1),))])
    feed.take([Removed((block(20), block(19)))])
    follower.take(await anext(watch))
    assert follower.num_snapshots == 2
    feed.take([Stored(block(18), (block(99),))])
    follower.take(await anext(watch))
    assert follower.num_snapshots == 2
    expected = {block(n): block(n - 1) for n in range(1, 19)} | {block(99): block(18)}
    assert follower.parents == expected
    feed.close()
    assert [response async for response in watch] == []


async def test_a_long_snapshot_comes_in_parts() -> None:
    feed = BlockFeed(BLOCK)
    for number in range(100):
        start = 1000 * number
        chain = tuple(block(start + place) for place in range(1, 201))
        feed.take([Stored(block(0), chain)])
    watch = feed.watch(inference_pb2.WatchKvRequest())
    follower = Follower()
    responses: list[inference_pb2.WatchKvResponse] = []
    while not responses or not responses[-1].snapshot.last:
        responses.append(await anext(watch))
        follower.take(responses[-1])
    assert len(follower.parents) == 20_000
    assert len(responses) == 3
    assert max(response.ByteSize() for response in responses) < 1 << 20
    await watch.aclose()


async def test_what_comes_soon_after_a_response_goes_as_one() -> None:
    feed = BlockFeed(BLOCK)
    watch = feed.watch(inference_pb2.WatchKvRequest())
    follower, salt = Follower(), root_hash(SALT)
    blocks = [bytes((number,)) * len(salt) for number in range(8)]
    follower.take(await anext(watch))
    feed.take([Stored(salt, (blocks[0],))])
    follower.take(await anext(watch))
    for block in blocks[1:]:
        feed.take([Stored(salt, (block,))])
    follower.take(await anext(watch))
    assert follower.parents.keys() == set(blocks)


async def test_nobody_waits_for_a_feed_that_is_closed() -> None:
    feed = BlockFeed(BLOCK)
    watch = feed.watch(inference_pb2.WatchKvRequest())
    await anext(watch)
    feed.take([Stored(root_hash(SALT), (b"b" * 16,))])
    await anext(watch)
    feed.close()
    assert [response async for response in watch] == []
