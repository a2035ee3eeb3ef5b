"""A router follows its replicas' caches over real gRPC, and explains what it decides."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.codec.tokens import TokenCodec, TokenCoder
from outrider.v1 import inference_pb2, router_pb2
from outrider.wire import token_block_to_proto
from services.router.fleet.replica import ServedModel
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits
from services.router.prefix_index.prompt import TokenIdReader
from services.router.upstream.kv_events import KvEventSubscriber
from tests.router.relay.mesh import opening
from tests.router.replica import DIGEST, Context, Replica, routed, running_replicas

BLOCK = 16
IDS = [token % 900 for token in range(40 * BLOCK)]
BLOCKS = list(block_hashes(IDS, BLOCK, b""))
CODER = TokenCoder(DIGEST, 1000)


class CachingReplica(Replica):
    """One that answers every watch with the next of its scripts."""

    def __init__(self, name: str, *scripts: list[inference_pb2.WatchKvResponse]) -> None:
        super().__init__(name)
        self.scripts = list(scripts)
        self.watches: list[tuple[int, int]] = []
        self.ending: asyncio.Queue[None] = asyncio.Queue()

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        self.watches.append((request.log, request.next_sequence))
        for response in self.scripts.pop(0) if self.scripts else []:
            yield response
        await self.ending.get()

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        said = await super().GetModel(request, context)
        said.block_tokens = BLOCK
        return said


def stored(first: int, last: int) -> inference_pb2.KvStored:
    parent = BLOCKS[first - 1] if first else root_hash(b"")
    return inference_pb2.KvStored(
        parent_hash=parent, block_hashes=BLOCKS[first:last], num_tokens=(last - first) * BLOCK
    )


def snapshot(log: int, sequence: int, *chains: inference_pb2.KvStored) -> list[
    inference_pb2.WatchKvResponse
]:  # fmt: skip
    part = inference_pb2.KvSnapshot(chains=chains, first=True, last=True)
    return [inference_pb2.WatchKvResponse(log=log, sequence=sequence, snapshot=part)]


def events(
    log: int, sequence: int, *chains: inference_pb2.KvStored
) -> inference_pb2.WatchKvResponse:
    made = [inference_pb2.KvEvent(stored=chain) for chain in chains]
    return inference_pb2.WatchKvResponse(log=log, sequence=sequence, events=made)


class Watched:
    """A watch of one replica, and what it knows."""

    def __init__(self, replica: CachingReplica) -> None:
        self.replica = replica
        self.index = PrefixIndex(PrefixIndexLimits())
        self.watch = KvEventSubscriber(self.index, TokenIdReader(), lambda name: 0)

    def num_known(self) -> int:
        prompt = self.index.prompt(struct.pack(f"<{len(IDS)}I", *IDS), b"")
        steps = self.index.match(prompt, BLOCK, 1)
        return steps[0].num_blocks if steps else 0

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Run the watch until something is so."""
        async with grpc.aio.insecure_channel(self.replica.address) as channel:
            running = asyncio.create_task(
                self.watch.run(channel, "a", ServedModel("m", DIGEST, block_tokens=BLOCK))
            )
            async with asyncio.timeout(60):
                while not is_so():
                    await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_events_are_followed_and_go_on_after_a_lost_connection() -> None:
    replica = CachingReplica(
        "a", [*snapshot(7, 3, stored(0, 10)), events(7, 3, stored(10, 20))],
        [events(7, 4, stored(20, 30))],
    )  # fmt: skip
    async with running_replicas(replica):
        watched = Watched(replica)
        await watched.until(lambda: watched.num_known() == 20)
        await watched.until(lambda: watched.num_known() == 30)
    assert replica.watches == [(0, 0), (7, 4)]


async def test_a_gap_brings_a_snapshot() -> None:
    replica = CachingReplica(
        "a", [*snapshot(7, 3, stored(0, 10)), events(7, 9, stored(10, 20))],
        snapshot(7, 10, stored(0, 25)),
    )  # fmt: skip
    async with running_replicas(replica):
        watched = Watched(replica)
        await watched.until(lambda: watched.num_known() == 25)
    assert replica.watches == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    "script", [[events(7, 1, stored(0, 1))], snapshot(7, 1, inference_pb2.KvStored(num_tokens=5))]
)
async def test_a_replica_that_tells_nonsense_is_not_asked_again(
    script: list[inference_pb2.WatchKvResponse],
) -> None:
    replica = CachingReplica("a", script, script)
    async with running_replicas(replica):
        watched = Watched(replica)
        async with grpc.aio.insecure_channel(replica.address) as channel:
            await watched.watch.run(channel, "a", ServedModel("m", DIGEST, block_tokens=BLOCK))
    assert len(replica.watches) == 1
    assert watched.num_known() == 0


async def test_sessions_follow_their_prefix_and_can_be_explained() -> None:
    one = CachingReplica("one", snapshot(5, 1))
    two = CachingReplica("two", snapshot(6, 1, stored(0, 40)))
    open_session = opening(1, request_id="r").open
    block = token_block_to_proto(CODER.encode(IDS, TokenCodec.VARINT))
    open_session.ids.tail.CopyFrom(block)
    asked = router_pb2.ExplainRequest(what_if=open_session)
    async with routed(one, two) as router:
        async with asyncio.timeout(60):
            while not (await router.stub.Explain(asked)).placements[0].chosen.cached_tokens:
                await asyncio.sleep(0.02)
        edge = router.edge()
        await edge.send(inference_pb2.SessionUp(session=1, open=open_session))
        await two.hear("open")
        told = await router.stub.Explain(router_pb2.ExplainRequest(request_id="r"))
        (why,) = told.placements
        assert (why.chosen.replica, why.chosen.cached_tokens) == ("two", 40 * BLOCK)
        assert (why.runner_up.replica, why.runner_up.cached_tokens) == ("one", 0)
        assert why.prompt_tokens == len(IDS)
        assert why.margin_ms == pytest.approx(why.runner_up.wait_ms - why.chosen.wait_ms, abs=0.01)
        terms = why.chosen
        assert terms.wait_ms == pytest.approx(
            terms.rtt_ms + terms.slot_ms + terms.queue_ms + terms.transfer_ms + terms.prefill_ms
        )
        assert not (await router.stub.Explain(router_pb2.ExplainRequest(request_id="x"))).placements


async def test_explaining_a_session_that_cannot_be_placed_says_why() -> None:
    one = Replica("one")
    async with routed(one) as router:
        for open_session in (opening(1, model="x").open, inference_pb2.OpenSession()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await router.stub.Explain(router_pb2.ExplainRequest(what_if=open_session))
            assert caught.value.code() in (
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.INVALID_ARGUMENT,
            )


async def test_a_replica_is_told_who_has_the_prompt() -> None:
    """Also one that is being drained; what an edge says of it counts for nothing."""
    one = CachingReplica("one", snapshot(5, 1))
    two = CachingReplica("two", snapshot(6, 1, stored(0, 40)))
    open_session = opening(1, request_id="r").open
    open_session.ids.tail.CopyFrom(token_block_to_proto(CODER.encode(IDS, TokenCodec.VARINT)))
    asked = router_pb2.ExplainRequest(what_if=open_session)
    open_session.kv_holder.address = "198.51.100.1:80"
    open_session.kv_holder.num_tokens = 1 << 20
    async with routed(one, two) as router:

        async def goes_to(name: str) -> bool:
            (told,) = (await router.stub.Explain(asked)).placements
            return told.chosen.replica == name and told.chosen.cached_tokens == 640 * (
                name == "two"
            )

        async with asyncio.timeout(20):
            while not await goes_to("two"):
                pass
            drain = router_pb2.DrainReplicaRequest(replica="two", move=True)
            await router.stub.DrainReplica(drain)
            assert two.drains[-1].move
            while not await goes_to("one"):
                pass
        edge = router.edge()
        await edge.send(inference_pb2.SessionUp(session=1, open=open_session))
        told = (await one.hear("open")).open.kv_holder
        assert (told.replica, told.region, told.address) == ("two", "us", two.address)
        assert told.num_tokens == 40 * BLOCK
        other = inference_pb2.OpenSession()
        other.CopyFrom(open_session)
        other.request_id, other.cache_salt = "s", b"another group"
        await edge.send(inference_pb2.SessionUp(session=2, open=other))
        assert not (await one.hear("open")).open.HasField("kv_holder")
