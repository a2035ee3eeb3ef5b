"""Several instances behind one service, over real gRPC: they are one replica to whoever asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outrider import errors
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.catalog import DEFAULT_MODEL
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually, leak_check
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from services.inference import app
from services.inference.config import InferenceConfig
from services.inference.instances.group import InstanceGroup
from services.inference.runner import MAX_FAILURES, ModelRunner
from services.inference.scheduler.limits import SchedulerLimits
from tests.inference.harness import GatedEngine, Peer, Running, loaded, reference, running
from tests.inference.streaming.test_block_feed import Follower
from tests.inference.streaming.test_failures import Breaking

LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(max_tokens=30, ignore_eos=True)


def placed(it: Running) -> list[int]:
    """Sessions handed to each instance so far."""
    value = it.metrics.registry.get_sample_value
    name = "outrider_instance_sessions_total"
    labels = [{"outrider_instance": str(number)} for number in range(len(it.engines))]
    return [int(value(name, label) or 0) for label in labels]


def watched(report: Any) -> inference_pb2.WatchLoadResponse:
    assert isinstance(report, inference_pb2.WatchLoadResponse)
    return report


async def test_one_instance_has_no_fleet_in_its_way() -> None:
    async with running() as it:
        assert type(it.replica.runner) is ModelRunner
    async with running(FakeEngine(), FakeEngine()) as it:
        assert type(it.replica.runner) is InstanceGroup


def test_every_instance_gets_an_engine_and_its_part_of_the_memory() -> None:
    config = InferenceConfig(engine="fake", instances=3, num_blocks=100, warm_up_rows=4)
    engines = app._load_engines(config, 64, DEFAULT_MODEL)
    assert [engine.info.num_blocks for engine in engines] == [33, 33, 33]
    assert len({id(engine) for engine in engines}) == 3


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "limits",
    [SchedulerLimits(), SchedulerLimits(max_sessions=2, prefill_chunk_tokens=4)],
    ids=["defaults", "small"],
)
async def test_every_session_is_exact_wherever_it_runs(count: int, limits: SchedulerLimits) -> None:
    engines = [FakeEngine(FakeOptions(min_rows=2)) for _ in range(count)]
    async with running(*engines, scheduler=limits) as it:
        peers = it.peer(), it.peer()
        asked = {}
        for number in range(1, 31):
            temperature = (0.0, 0.8)[number % 2]
            sampling = SamplingParams(temperature=temperature, seed=number, max_tokens=20 + number)
            prompt = [4 + number % 5] * (1 + 7 * number % 60)
            asked[number] = prompt, sampling
            await peers[number % 2].open(number, prompt, sampling)
        for number, (prompt, sampling) in asked.items():
            reply = await peers[number % 2].finish(number)
            assert reply.error is None
            assert tuple(reply.ids) == reference(prompt, sampling).ids
        assert sum(placed(it)) == 30
        assert min(placed(it)) >= 5
        assert all(engine.num_steps > 0 for engine in engines)
        for peer in peers:
            await peer.call.done_writing()
        await eventually(it.is_clean)


async def test_drafts_and_cancels_reach_the_session_they_are_for() -> None:
    first, second = GatedEngine(), GatedEngine()
    async with running(first, second, max_outbox_frames=100_000) as it:
        peer = it.peer()
        sampling = SamplingParams(max_tokens=600, ignore_eos=True)
        truths = {number: list(reference([4 + number], sampling).ids) for number in range(1, 5)}
        for number, truth in truths.items():
            await peer.open(number, [4 + number], sampling, drafts=(1, truth[:3]))
        await eventually(lambda: placed(it) == [2, 2])
        for number, truth in truths.items():
            await peer.draft(number, 1, 3, truth[3:8])
        await peer.cancel(4)
        await eventually(lambda: first.waiting.is_set() and second.waiting.is_set())
        first.gate.set()
        second.gate.set()
        cancelled = await peer.finish(4)
        assert cancelled.done is not None
        assert cancelled.done.finish_reason == common_pb2.FINISH_REASON_CANCELLED
        for number in (1, 2, 3):
            reply = await peer.finish(number)
            assert reply.ids == truths[number]
            assert reply.num_accepted >= 3


async def test_chats_come_back_to_where_their_prefix_is() -> None:
    async with running(FakeEngine(), FakeEngine()) as it:
        peer = it.peer()
        prompts = {1: [7] * 200, 2: [9] * 200}
        for number, prompt in prompts.items():
            await peer.open(number, prompt, SHORT)
            assert (await peer.finish(number)).done is not None
        assert placed(it) == [1, 1]
        # The cache is known from ticks, which may come after a session's last frame.
        await eventually(lambda: it.replica.blocks.num_stored >= 26)
        for number in range(3, 11):
            await peer.open(number, [*prompts[1 + number % 2], number], SHORT)
            reply = await peer.finish(number)
            assert reply.opened is not None
            assert reply.opened.cached_tokens >= 192
        assert placed(it) == [5, 5]


async def test_load_and_cache_are_reported_as_one() -> None:
    first, second = GatedEngine(), GatedEngine()
    async with running(first, second, scheduler=SchedulerLimits(max_sessions=3)) as it:
        watch = it.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=1))
        load = watched(await watch.read())
        assert (load.max_sessions, load.num_instances, load.kv_blocks_total) == (6, 2, 512)
        cache, follower = it.stub.WatchKv(inference_pb2.WatchKvRequest()), Follower()
        follower.take(await cache.read())
        peer = it.peer()
        for number in range(1, 7):
            await peer.open(number, [6] * 100, SHORT)
        await eventually(lambda: placed(it) == [3, 3])
        first.gate.set()
        second.gate.set()
        for number in range(1, 7):
            await peer.finish(number)
        # Both hold the same prompt; the follower refuses a block that is stored twice.
        await peer.call.done_writing()
        await eventually(it.is_clean)
        want = {event for s in it.replica.schedulers for event in _stored(s)}
        while not want <= set(follower.parents):
            follower.take(await cache.read())
        assert len(follower.parents) == it.replica.blocks.num_stored
        while load.kv_blocks_free < 512 or load.running_sessions:
            load = watched(await watch.read())


def _stored(scheduler: Any) -> set[bytes]:
    nodes = scheduler._pool._tree.nodes()
    return {node.hash for node in nodes if node.parent is not None}


@pytest.mark.parametrize("room", [True, False])
async def test_an_instance_without_room_passes_a_session_on(room: bool) -> None:
    """The third session is asked of the first instance, whose place is taken. In the second one,
    it is taken too, or comes free before the session gets there."""
    first, second = GatedEngine(), GatedEngine()
    limits = SchedulerLimits(max_sessions=1, max_queue=0)
    async with running(first, second, scheduler=limits, max_outbox_frames=100_000) as it:
        peer = it.peer()
        await peer.open(1, [5], LONG)
        await peer.open(2, [6], SamplingParams(max_tokens=1) if room else LONG)
        await eventually(lambda: first.waiting.is_set() and second.waiting.is_set())
        await peer.open(3, [7], SHORT)
        await eventually(lambda: placed(it) == [2, 1])
        first.gate.set()
        await eventually(lambda: placed(it) == [2, 2])
        second.gate.set()
        reply = await peer.finish(3)
        if room:
            assert tuple(reply.ids) == reference([7], SHORT).ids
        else:
            assert type(reply.error) is errors.OverloadedError
            assert reply.error.retry_delay_ms > 0


async def test_a_failed_call_fails_the_sessions_of_its_instance_alone() -> None:
    good, bad = GatedEngine(), Breaking()
    bad.error = errors.EngineError("out of order")
    async with running(good, bad) as it:
        peer = it.peer()
        for number in (1, 2):
            await peer.open(number, [4 + number], SHORT)
        assert type((await peer.finish(2)).error) is errors.EngineError
        good.gate.set()
        assert tuple((await peer.finish(1)).ids) == reference([5], SHORT).ids
        assert it.replica.readiness()[0]


async def test_an_instance_that_keeps_failing_makes_the_replica_not_ready() -> None:
    bad = Breaking()
    bad.error = errors.EngineError("out of order")
    async with running(FakeEngine(), bad) as it:
        peer = it.peer()
        failed = 0
        for number in range(1, 2 * MAX_FAILURES + 1):
            await peer.open(number, [4 + number], SHORT)
            reply = await peer.finish(number)
            failed += reply.error is not None
            if reply.error is None:
                assert tuple(reply.ids) == reference([4 + number], SHORT).ids
        assert failed == MAX_FAILURES
        await eventually(it.replica.broken.is_set)
        assert "restart the replica" in it.replica.readiness()[1]
        await peer.open(99, [5])
        assert type((await peer.finish(99)).error) is errors.UnavailableError


async def test_a_crashed_instance_ends_its_sessions_and_the_others_drain() -> None:
    good, bad = GatedEngine(), Breaking()
    async with running(good, bad, drain_s=20.0) as it:
        peer = it.peer()
        await peer.open(1, [5], SHORT)
        await peer.next(1)
        await peer.open(2, [6], LONG)
        await peer.next(2)
        bad.error = ZeroDivisionError("a defect")
        lost = await peer.finish(2)
        assert type(lost.error) is errors.EngineError
        assert "ZeroDivisionError" in lost.error.message
        assert len(it.replica.table) == 1
        assert it.replica.broken.is_set()
        assert not it.replica.readiness()[0]
        await peer.draft(1, 1, 0, [5])
        await peer.cancel(2)
        stopping = asyncio.create_task(it.replica.stop())
        await eventually(lambda: it.replica.table.draining)
        good.gate.set()
        assert tuple((await peer.finish(1)).ids) == reference([5], SHORT).ids
        await stopping
        it.crashed = True


async def test_a_replica_with_a_broken_instance_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = Breaking()
    bad.error = ZeroDivisionError("a defect")
    monkeypatch.setattr(app, "load_model", lambda *_: loaded(bad, FakeEngine()))
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    async with leak_check():
        serving = asyncio.create_task(app.serve(InferenceConfig(port=0), ready=ports.set_result))
        channel = make_channel(f"127.0.0.1:{(await ports).main}")
        peer = Peer(inference_pb2_grpc.InferenceServiceStub(channel))
        await peer.open(1, [5])
        with pytest.raises(errors.EngineError, match="ZeroDivisionError"):
            await serving
        await channel.close()


async def test_stopping_drains_every_instance() -> None:
    first, second = GatedEngine(), GatedEngine()
    async with running(first, second, drain_s=20.0) as it:
        peer = it.peer()
        for number in (1, 2, 3, 4):
            await peer.open(number, [4 + number], SHORT)
        await eventually(lambda: placed(it) == [2, 2])
        stopping = asyncio.create_task(it.replica.stop())
        await eventually(lambda: it.replica.table.draining)
        first.gate.set()
        second.gate.set()
        for number in (1, 2, 3, 4):
            assert tuple((await peer.finish(number)).ids) == reference([4 + number], SHORT).ids
        await stopping
        for engine in it.engines:
            with pytest.raises(errors.EngineError, match="closed"):
                engine.close_sequence(1)


async def test_a_peer_that_leaves_frees_every_instance() -> None:
    first, second = GatedEngine(), GatedEngine()
    async with running(first, second) as it:
        gone = it.peer()
        for number in range(1, 7):
            await gone.open(number, [4 + number], LONG)
        await eventually(lambda: first.waiting.is_set() and second.waiting.is_set())
        await eventually(lambda: placed(it) == [3, 3])
        gone.call.cancel()
        await eventually(lambda: len(it.replica.table) == 0)
        first.gate.set()
        second.gate.set()
        await eventually(it.is_clean)
        await eventually(lambda: sum(map(len, _books(it))) == 0)


def _books(it: Running) -> list[list[int]]:
    assert isinstance(it.replica.runner, InstanceGroup)
    return [it.replica.runner._placement.sessions_on(n) for n in range(len(it.engines))]
