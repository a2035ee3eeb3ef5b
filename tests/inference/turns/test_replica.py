"""A replica with a turn engine, on real sockets: the protocol that routers speak with any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from outrider.engine_calls import sessions_in_call
from outrider.engines.turn.fake import FakeTurnEngine, FakeTurnOptions
from outrider.errors import EngineError, InvalidSamplingError, OverloadedError, ReplicaLostError
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually, leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from services.inference.config import InferenceConfig
from services.inference.model import TurnModel
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.turn_replica import TurnReplica
from tests.inference.harness import CODER, IDENTITY, Peer, details_of
from tests.inference.letters import DIGEST, STOP_ID, VOCABULARY_SIZE, new_reply

PROMPT = list(range(3, 43))


@dataclass
class Running:
    engine: FakeTurnEngine
    replica: TurnReplica
    stub: inference_pb2_grpc.InferenceServiceAsyncStub

    def peer(self) -> Peer:
        return Peer(self.stub)


@asynccontextmanager
async def running(
    options: FakeTurnOptions | None = None, **settings: Any
) -> AsyncIterator[Running]:
    """Afterwards nothing of it may be left."""
    engine = FakeTurnEngine(options)
    end_ids = frozenset({STOP_ID})
    model = TurnModel(
        "letters", engine, CODER, VOCABULARY_SIZE, DIGEST, b"", new_reply, end_ids, IDENTITY
    )
    config = InferenceConfig(engine="fake-turns", port=0, **{"drain_s": 0.0, **settings})
    metrics = Metrics("inference")
    async with leak_check():
        replica = TurnReplica(config, model, metrics)
        await replica.start()
        try:
            async with make_channel(f"127.0.0.1:{replica.port}") as channel:
                yield Running(engine, replica, inference_pb2_grpc.InferenceServiceStub(channel))
        finally:
            await replica.stop()
            metrics.close()
    assert not engine.running and len(replica.sessions) == 0 and len(replica.table) == 0


def greedy(max_tokens: int = 40) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def expected(engine: FakeTurnEngine, count: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(engine.next_id(ids[-8:], len(ids)))
    return ids[len(PROMPT) :]


async def test_a_reply_over_the_protocol_of_replicas() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy())
        reply = await peer.finish(1)
        assert reply.ids == expected(it.engine, 40)
        assert reply.opened is not None and reply.done is not None
        assert reply.opened.model_identity == IDENTITY and reply.opened.max_drafts == 0
        assert reply.done.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert reply.done.usage.completion_tokens == 40
        await peer.call.done_writing()


async def test_drafts_cost_nothing_and_edges_are_told_to_send_none() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(20), drafts=(1, [5, 6, 7]), epoch=1)
        await peer.draft(1, 2, 0, [8, 9])
        reply = await peer.finish(1)
        assert reply.ids == expected(it.engine, 20) and reply.num_accepted == 0
        pace = details_of(reply.commits[0]).pace
        assert pace.overload_level == 1 and pace.max_lead == 0
        assert reply.done is not None and reply.done.usage.draft_tokens == 0
        await peer.call.done_writing()


async def test_a_reply_goes_on_where_another_replica_left_it() -> None:
    async with running() as it:
        peer, whole = it.peer(), expected(it.engine, 40)
        block = CODER.encode(whole[:15])
        resume = common_pb2.TokenBlock(
            codec=common_pb2.TokenCodec.ValueType(block.codec),
            count=block.count,
            payload=block.payload,
            checksum=block.checksum,
        )
        await peer.open(1, PROMPT, greedy(), resume=resume)
        peer.replies[1].ids += whole[:15]
        assert (await peer.finish(1)).ids == whole
        await peer.call.done_writing()


async def test_a_cancelled_session_ends_in_the_engine() -> None:
    async with running(FakeTurnOptions(token_ms=2)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(1500))
        while not peer.replies[1].commits:
            await peer.next(1)
        assert it.engine.running
        await peer.cancel(1)
        reply = await peer.finish(1)
        assert reply.done is not None
        assert reply.done.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        await eventually(lambda: not it.engine.running)
        await peer.call.done_writing()


async def test_a_peer_that_goes_away_ends_its_sessions_in_the_engine() -> None:
    async with running(FakeTurnOptions(token_ms=2)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(1500))
        while not peer.replies[1].commits:
            await peer.next(1)
        peer.call.cancel()
        await eventually(lambda: not it.engine.running and len(it.replica.sessions) == 0)


async def test_sessions_beyond_the_engines_room_wait_and_beyond_the_queue_are_refused() -> None:
    options = FakeTurnOptions(max_sessions=2, token_ms=1)
    async with running(options, scheduler=SchedulerLimits(max_queue=3)) as it:
        peer = it.peer()
        for number in range(1, 8):
            await peer.open(number, PROMPT, greedy(30))
        replies = [await peer.finish(number) for number in range(1, 8)]
        refused = [reply for reply in replies if reply.error is not None]
        assert len(refused) == 2
        assert all(isinstance(reply.error, OverloadedError) for reply in refused)
        whole = expected(it.engine, 30)
        assert all(reply.ids == whole for reply in replies if reply.error is None)
        await peer.call.done_writing()


async def test_what_the_engine_lacks_is_refused_by_name() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, SamplingParams(frequency_penalty=0.5))
        error = (await peer.finish(1)).error
        assert isinstance(error, InvalidSamplingError)
        assert "frequency_penalty" in error.message and "fake-turns" in error.message
        await peer.call.done_writing()


async def test_a_lost_engine_ends_sessions_so_that_routers_move_them() -> None:
    async with running(FakeTurnOptions(token_ms=2)) as it:
        peer = it.peer()
        for number in (1, 2):
            await peer.open(number, PROMPT, greedy(1500))
        while not (peer.replies[1].commits and peer.replies[2].commits):
            await peer.next(1)
        it.engine.lose()
        for number in (1, 2):
            assert isinstance((await peer.finish(number)).error, ReplicaLostError)
        assert it.replica.broken.is_set() and not it.replica.readiness()[0]
        await peer.open(3, PROMPT, greedy(9))
        assert isinstance((await peer.finish(3)).error, ReplicaLostError), "to be moved too"
        await peer.call.done_writing()


async def test_the_request_that_loses_the_engine_is_reported_and_no_other() -> None:
    options = FakeTurnOptions(token_ms=2, crash_id=50)
    async with running(options) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(1500))
        while not peer.replies[1].commits:
            await peer.next(1)
        await peer.open(2, [*PROMPT, 50], greedy(9))
        assert isinstance((await peer.finish(1)).error, ReplicaLostError)
        error = (await peer.finish(2)).error
        assert isinstance(error, EngineError) and sessions_in_call(error) == 1
        assert it.replica.broken.is_set()
        await peer.call.done_writing()


async def test_a_session_that_goes_alone_begins_behind_the_first_tokens_of_others() -> None:
    async with running(FakeTurnOptions(token_ms=2)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(40))
        await peer.open(2, PROMPT, greedy(40), alone=True)
        await peer.open(3, PROMPT, greedy(40))
        for number in (1, 2, 3):
            assert (await peer.finish(number)).ids == expected(it.engine, 40)
        await peer.call.done_writing()


async def test_cached_prefixes_and_load_are_told() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPT, greedy(4))
        await peer.finish(1)
        await eventually(lambda: it.replica.blocks.num_stored == len(PROMPT) // 16)
        await peer.open(2, PROMPT, greedy(4))
        assert (await peer.finish(2)).cached_tokens == 32
        watching = it.stub.WatchLoad(inference_pb2.WatchLoadRequest())
        load = await watching.read()
        assert isinstance(load, inference_pb2.WatchLoadResponse)
        assert load.max_sessions == 16 and load.kv_blocks_total == 256
        watching.cancel()
        await asyncio.gather(peer.call.done_writing(), return_exceptions=True)
