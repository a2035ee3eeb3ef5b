"""The service over gRPC, and one stream without it."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider import errors
from outrider.codec.tokens import TokenCodec
from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import logprobs_from_proto, token_block_to_proto
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import KvHits
from services.inference.service import SERVICE, GenerateStream
from services.inference.streaming.sessions import SessionTable
from tests.engines.hooked import HookedEngine
from tests.inference.harness import (
    CODER,
    GatedEngine,
    Peer,
    Running,
    Stepwise,
    details_of,
    opening,
    reference,
    running,
)
from tests.inference.letters import DIGEST, VOCABULARY_SIZE

CHATS = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "outrider",
    "gen_ai_request_model": "letters",
}
"""Labels of metrics."""
PROMPTS = [[random.Random(n).randrange(3, 64) for _ in range(5 + 17 * n % 90)] for n in range(24)]


def _sampling(number: int) -> SamplingParams:
    temperature = (0.0, 0.8)[number % 2]
    return SamplingParams(temperature=temperature, seed=number, max_tokens=20 + number)


async def _check(it: Running, peer: Peer, number: int, sampling: SamplingParams) -> None:
    prompt = PROMPTS[number % len(PROMPTS)]
    reply = await peer.finish(number)
    expected = reference(prompt, sampling)
    assert reply.error is None
    assert tuple(reply.ids) == expected.ids
    assert reply.done is not None
    reason = common_pb2.FinishReason.Name(reply.done.finish_reason)
    assert reason == f"FINISH_REASON_{expected.finish_reason.upper()}"
    assert reply.done.usage.prompt_tokens == len(prompt)
    assert reply.done.usage.completion_tokens == len(expected.ids)


@pytest.mark.parametrize(
    "limits",
    [
        SchedulerLimits(),
        SchedulerLimits(prefill_chunk_tokens=4),
        SchedulerLimits(max_sessions=2),
        SchedulerLimits(max_draft_tokens=0),
    ],
    ids=["defaults", "short prefill chunks", "few sessions", "no drafts"],
)
@pytest.mark.parametrize("min_rows", [1, 2])
async def test_many_sessions_on_two_streams(limits: SchedulerLimits, min_rows: int) -> None:
    async with running(FakeEngine(FakeOptions(min_rows=min_rows)), scheduler=limits) as it:
        peers = it.peer(), it.peer()
        for number in range(1, 25):
            sampling = _sampling(number)
            await peers[number % 2].open(number, PROMPTS[number % len(PROMPTS)], sampling)
        for number in range(1, 25):
            await _check(it, peers[number % 2], number, _sampling(number))
        for peer in peers:
            await peer.call.done_writing()
        await eventually(it.is_clean)


class SlowEngine(HookedEngine):
    """Whose calls take long enough for drafts to pay."""

    def before(self, slices: Sequence[SequenceSlice]) -> None:
        time.sleep(0.005)


@pytest.mark.parametrize(
    "speculation",
    [common_pb2.SPECULATION_ON, common_pb2.SPECULATION_OFF, common_pb2.SPECULATION_REGION_ONLY],
)
async def test_speculation_modes(speculation: common_pb2.Speculation.ValueType) -> None:
    sampling = SamplingParams(max_tokens=80, ignore_eos=True)
    truth = reference(PROMPTS[2], sampling).ids
    async with running(SlowEngine()) as it:
        peer = it.peer()
        await peer.open(1, PROMPTS[2], sampling, drafts=(0, truth[:4]), speculation=speculation)
        reply = await peer.finish(1)
        assert tuple(reply.ids) == truth
        assert reply.done is not None
        usage = reply.done.usage
        assert (usage.draft_tokens > 0) == (speculation != common_pb2.SPECULATION_OFF)
        assert (reply.num_accepted > 0) == (speculation == common_pb2.SPECULATION_ON)


async def test_the_opening_names_the_replica_and_reuses_prefixes() -> None:
    prompt = PROMPTS[4] * 3
    async with running(replica="r7", region="eu-west") as it:
        peer = it.peer()
        await peer.open(1, prompt)
        first = await peer.finish(1)
        await peer.open(2, prompt)
        second = await peer.finish(2)
        assert first.ids == second.ids
        assert first.opened is not None
        assert second.opened is not None
        assert (first.opened.replica, first.opened.region) == ("r7", "eu-west")
        assert first.opened.vocabulary_digest == DIGEST
        assert first.opened.cached_tokens == 0
        assert second.opened.cached_tokens > len(prompt) // 2
        await peer.open(3, prompt, cache_salt=b"another tenant")
        third = await peer.finish(3)
        assert third.opened is not None
        assert third.opened.cached_tokens == 0


async def test_ids_come_in_the_negotiated_codec() -> None:
    async with running() as it:
        peer = it.peer()
        # Without a rank table, commits have ids whichever is chosen.
        for number, codec in enumerate((TokenCodec.VARINT, TokenCodec.U16), start=1):
            wire_codec = common_pb2.TokenCodec.ValueType(codec)
            await peer.open(number, [5], codecs=[wire_codec])
            reply = await peer.finish(number)
            assert reply.opened is not None
            assert reply.opened.codec == wire_codec
            assert not any(commit.HasField("rank") or commit.ranks for commit in reply.commits)


async def test_half_closed_streams_run_their_sessions_to_the_end() -> None:
    async with running() as it:
        peer = it.peer()
        await peer.open(1, PROMPTS[5])
        await peer.call.done_writing()
        assert (await peer.finish(1)).done is not None
        assert await peer.call.read() is grpc.aio.EOF
        await eventually(it.is_clean)


async def test_get_model() -> None:
    async with running(replica="r1") as it:
        model = await it.stub.GetModel(inference_pb2.GetModelRequest())
        assert model.model == "letters"
        assert model.vocabulary_digest == DIGEST
        assert model.vocabulary_size == VOCABULARY_SIZE
        assert model.max_context_tokens == 2048
        assert model.engine == "fake"
        assert list(model.codecs) == [int(codec) for codec in CODER.supported]
        assert model.replica == "r1"
        limits = model.prefill_limits
        assert (limits.max_chunk_tokens, limits.max_call_ms) == (256, 40.0)
        assert limits.min_stretch > 1.0


async def test_watch_load_reports_changes() -> None:
    async with running(GatedEngine()) as it:
        peer = it.peer()
        watch = it.stub.WatchLoad(inference_pb2.WatchLoadRequest(min_interval_ms=1))
        first = await watch.read()
        assert isinstance(first, inference_pb2.WatchLoadResponse)
        assert first.running_sessions == 0
        assert first.kv_blocks_free == first.kv_blocks_total == 256
        await peer.open(1, PROMPTS[6])
        it.gated.gate.set()
        await peer.finish(1)
        seen = [first]
        while seen[-1].kv_blocks_free != 256 or len(seen) == 1:
            report = await watch.read()
            assert isinstance(report, inference_pb2.WatchLoadResponse)
            seen.append(report)
        assert seen[-1].running_sessions == 0
        assert seen[-1].max_sessions == 16


async def test_what_is_no_news_comes_along_with_a_heartbeat() -> None:
    async with running() as it:
        table = it.replica.table
        request = inference_pb2.WatchLoadRequest(min_interval_ms=1, max_interval_ms=20)
        watch = it.stub.WatchLoad(request)
        await watch.read()
        assert table.load is not None
        table.load = replace(table.load, kv_hits=KvHits(100, 60))
        table.announce()
        while True:
            report = await watch.read()
            assert isinstance(report, inference_pb2.WatchLoadResponse)
            if report.kv.prompt_tokens:
                break
        assert report.kv.pool_tokens == 60


async def test_health_and_metrics() -> None:
    async with running() as it:
        health = health_pb2_grpc.HealthStub(it.channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        assert it.replica.readiness() == (True, "serving replica")
        peer = it.peer()
        await peer.open(1, PROMPTS[7], SamplingParams(max_tokens=90, ignore_eos=True))
        await peer.finish(1)
        assert it.value("outrider_ttft_seconds_count", **CHATS) == 1
        assert (it.value("outrider_token_latency_seconds_count", **CHATS) or 0) > 1
        assert (it.value("outrider_batch_utilization_ratio") or 0) == pytest.approx(1 / 16)
        assert (it.value("outrider_tick_overhead_seconds_count") or 0) > 1
        assert (it.value("outrider_tick_overhead_seconds_sum") or 0) > 0
        for state in ("busy", "idle"):
            assert (it.value("outrider_engine_time_seconds_total", state=state) or 0) > 0
        assert 0 <= (it.value("outrider_draft_rejection_ratio") or 0) <= 1
        assert it.value("gen_ai_client_token_usage_sum", **CHATS, gen_ai_token_type="output") == 90


async def test_tokens_let_through_are_counted() -> None:
    async with running() as it:
        peer = it.peer()
        prompt = list(range(3, 40))  # repeats nothing, so that the replica has no guess of its own
        sampling = SamplingParams(max_tokens=30, ignore_eos=True, acceptance_threshold=1e-9)
        await peer.open(1, prompt, sampling, drafts=(0, [5, 6]))
        reply = await peer.finish(1)
        num_lossy = sum(details_of(commit).lossy_tokens for commit in reply.commits)
        truth = reference(prompt, SamplingParams(max_tokens=30, ignore_eos=True)).ids
        assert reply.ids[:2] == [5, 6]
        num_others = sum(a != b for a, b in zip(reply.ids[:2], truth[:2], strict=True))
        assert 0 < num_lossy and num_others <= num_lossy
        assert it.value("outrider_draft_lossy_tokens_total") == num_lossy


async def test_commits_bring_log_probabilities_of_accepted_drafts_too() -> None:
    async with running() as it:
        peer = it.peer()
        sampling = SamplingParams(max_tokens=30, ignore_eos=True, num_logprobs=3)
        truth = reference(PROMPTS[3], sampling)
        drafts = [*truth.ids[:6], 1]
        await peer.open(1, PROMPTS[3], sampling, drafts=(0, drafts))
        reply = await peer.finish(1)
        told = [
            at
            for commit in reply.commits
            for at in logprobs_from_proto(details_of(commit).logprobs, max_tokens=40)
        ]
        assert reply.num_accepted > 0
        assert (tuple(reply.ids), tuple(told)) == (truth.ids, truth.logprobs)


async def test_a_prediction_longer_than_the_context_is_cut() -> None:
    engine = FakeEngine(FakeOptions(max_context_tokens=64, repetition=0.0))
    async with running(engine) as it:
        peer = it.peer()
        sampling = SamplingParams(max_tokens=40, ignore_eos=True)
        truth = reference(PROMPTS[0], sampling, engine.options).ids
        prediction = token_block_to_proto(CODER.encode([*truth, *[5] * 5000]))
        await peer.open(1, PROMPTS[0], sampling, prediction=prediction)
        reply = await peer.finish(1)
        assert reply.done is not None and tuple(reply.ids) == truth
        usage = reply.done.usage
        assert usage.accepted_prediction_tokens > 20
        assert usage.accepted_prediction_tokens <= usage.accepted_tokens


async def test_the_share_of_reused_prompt_tokens_is_measured() -> None:
    async with running() as it:
        peer = it.peer()
        for number in (1, 2):
            await peer.open(number, [5] * 50, SamplingParams(max_tokens=2))
            await peer.finish(number)
        assert it.value("outrider_prefix_prompt_tokens_total") == 100
        assert it.value("outrider_prefix_cached_tokens_total") == 48
        assert it.value("outrider_prefix_hit_ratio") == pytest.approx(0.48, abs=0.01)


async def test_what_was_generated_elsewhere_is_not_counted_again() -> None:
    async with running() as it:
        peer = it.peer()
        sampling = SamplingParams(max_tokens=40, ignore_eos=True)
        whole = reference(PROMPTS[7], sampling).ids
        resume = token_block_to_proto(CODER.encode(whole[:30]))
        peer.replies[1].ids += whole[:30]
        await peer.open(1, PROMPTS[7], sampling, resume=resume)
        reply = await peer.finish(1)
        assert reply.done is not None
        assert reply.done.usage.completion_tokens == 40
        output = it.value("gen_ai_client_token_usage_sum", **CHATS, gen_ai_token_type="output")
        assert output == 10
        assert it.value("outrider_ttft_seconds_count", **CHATS) == 0, (
            "its first token was not this one"
        )
        per_token = it.value("gen_ai_server_time_per_output_token_seconds_sum", **CHATS)
        assert per_token is not None
        decode_s = (reply.done.timings.total_ms - reply.done.timings.ttft_ms) / 1e3
        assert per_token == pytest.approx(decode_s / 9)


LONG = SamplingParams(max_tokens=200, ignore_eos=True)


def _stream(table: SessionTable) -> GenerateStream:
    return GenerateStream(table, max_frames=64, max_sessions=8)


async def test_a_peer_that_cancels_again_and_again_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled: list[int] = []
    async with running(GatedEngine()) as it:
        cancel_once = it.replica.runner.cancel

        def counted(session: int) -> None:
            cancelled.append(session)
            cancel_once(session)

        monkeypatch.setattr(it.replica.runner, "cancel", counted)
        stream = _stream(it.replica.table)
        stream.receive(inference_pb2.SessionUp(session=1, open=opening([5], LONG)))
        await eventually(it.gated.waiting.is_set)
        cancel = inference_pb2.SessionUp(session=1, cancel=inference_pb2.CancelSession())
        for _ in range(1000):
            stream.receive(cancel)
        assert len(cancelled) == 1
        it.gated.gate.set()
        await eventually(lambda: len(it.replica.table) == 0)


async def test_what_was_generated_for_a_peer_that_left_is_counted() -> None:
    engine = Stepwise(4)
    async with running(engine) as it:
        stream = _stream(it.replica.table)
        stream.receive(inference_pb2.SessionUp(session=1, open=opening([5], LONG)))
        await eventually(lambda: len(stream.outbox) > 3 and not engine.gate.is_set())
        stream.close()
        assert len(it.replica.table._awaiting_usage) == 1
        engine.gate.set()
        await eventually(lambda: not it.replica.table._awaiting_usage)
        used = {
            kind: it.value("gen_ai_client_token_usage_sum", **CHATS, gen_ai_token_type=kind)
            for kind in ("input", "output")
        }
        assert used["input"] == 1
        assert used["output"] is not None and 3 <= used["output"] < 200
        ended = it.value(
            "gen_ai_server_request_duration_seconds_count", **CHATS, error_type="CANCELLED"
        )
        assert ended == 1


async def _broken_frames() -> AsyncIterator[inference_pb2.GenerateRequest]:
    frame = inference_pb2.SessionUp(session=1, open=opening([5], LONG))
    yield inference_pb2.GenerateRequest(frames=[frame])
    raise ZeroDivisionError("a defect")


async def test_a_reader_that_breaks_ends_its_stream_and_its_sessions() -> None:
    async with running(GatedEngine()) as it:
        stream = _stream(it.replica.table)
        await stream.read(_broken_frames())
        assert len(it.replica.table) == 0
        with pytest.raises(errors.OutriderError, match="ZeroDivisionError"):
            async for _ in stream.outbox:
                pass


async def test_what_sessions_taught_is_there_after_a_restart(tmp_path: Path) -> None:
    for restart in range(2):
        async with running(state_dir=tmp_path) as it:
            kept = it.replica._keeper.kept
            assert len(kept) == restart
            peer = it.peer()
            for number in range(1, 5):
                salt = b"lasting" if number % 2 else b"connection"
                lasts = number % 2 > 0
                await peer.open(number, [3, 4, 5], cache_salt=salt, group_lasts=lasts)
                await peer.finish(number)
            assert kept.restore(b"connection").is_empty
            assert kept.restore(b"lasting").is_empty == (restart == 0)
    assert len(_learnt_files(tmp_path)) == 1


def _learnt_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.learnt"))
