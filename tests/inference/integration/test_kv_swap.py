"""A LOW session loses its KV to a HIGH one, and gets it back from the host's memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from outrider.engines.base import Engine, LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.config import EngineConfig
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.v1 import common_pb2
from services.inference.app import Replica
from services.inference.kv_swap.config import KvSwapConfig
from services.inference.reference import generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.streaming.wire import load_response
from tests.engines.shallow_model import ShallowModel
from tests.inference.harness import Peer, Running, reference, running
from tests.inference.integration import real_engine
from tests.inference.integration.real_engine import Borrowed

BLOCK = 16
OPTIONS = FakeOptions(num_blocks=24, block_tokens=BLOCK)
LOW_PROMPT = [n % 23 + 1 for n in range(8 * BLOCK + 5)]
HIGH_PROMPT = [n % 19 + 2 for n in range(22 * BLOCK + 1)]
LOW = SamplingParams(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)
HIGH = SamplingParams(max_tokens=3, ignore_eos=True)
NO_DRAFTS = common_pb2.SPECULATION_OFF
BEGUN = 10
"""Tokens of the LOW reply after which the HIGH session comes."""


class Staged(Borrowed):
    """Stops in the call in which the first session has BEGUN tokens behind its prompt, until
    `high_is_there`; and in the first one after it has lost its KV, until `may_go_on`."""

    def __init__(self, engine: Engine, num_prompt: int) -> None:
        super().__init__(engine)
        self._num_begun = num_prompt + BEGUN - 1
        self.has_begun = threading.Event()
        self.high_is_there = threading.Event()
        self.is_back = threading.Event()
        self.may_go_on = threading.Event()

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        overlapped_work()
        (first,) = slices[:1]
        if first.sequence == 1 and first.past >= self._num_begun:
            self.has_begun.set()
            assert self.high_is_there.wait(60)
        if first.sequence >= 3:  # a session has a number for each of its stays
            self.is_back.set()
            assert self.may_go_on.wait(60)
        return super().step(slices)


def settings(block_tokens: int, max_bytes: int) -> dict[str, Any]:
    """A block a call, slowly as the first guess has it: what comes has a place, and pays."""
    limits = SchedulerLimits(prefill_chunk_tokens=block_tokens, row_ms=1000.0)
    return {"scheduler": limits, "kv_swap": KvSwapConfig(max_bytes)}


def counted(metrics: Metrics, result: str) -> float:
    value = metrics.registry.get_sample_value
    return value("outrider_kv_swap_blocks_total", {"result": result}) or 0.0


@asynccontextmanager
async def preempted(max_bytes: int) -> AsyncIterator[tuple[Running, Staged, Peer]]:
    """The LOW session has lost its KV, and is back in its first call."""
    engine = Staged(FakeEngine(OPTIONS), len(LOW_PROMPT))
    async with running(engine, **settings(BLOCK, max_bytes)) as it:
        peer = it.peer()
        try:
            low = common_pb2.PRIORITY_LOW
            await peer.open(1, LOW_PROMPT, LOW, priority=low, speculation=NO_DRAFTS)
            await eventually(engine.has_begun.is_set, timeout_s=60)
            high = common_pb2.PRIORITY_HIGH
            await peer.open(2, HIGH_PROMPT, HIGH, priority=high, speculation=NO_DRAFTS)
            await eventually(lambda: len(it.replica.table) == 2, timeout_s=60)
            engine.high_is_there.set()
            assert (await peer.finish(2)).ids == list(reference(HIGH_PROMPT, HIGH, OPTIONS).ids)
            await eventually(engine.is_back.is_set, timeout_s=60)
            yield it, engine, peer
        finally:
            engine.high_is_there.set()
            engine.may_go_on.set()
            peer.call.cancel()


async def exact(peer: Peer) -> None:
    assert (await peer.finish(1)).ids == list(reference(LOW_PROMPT, LOW, OPTIONS).ids)


def has_settled(replica: Replica) -> bool:
    """Whether all that was lost is packed."""
    return replica.swap is not None and replica.swap.num_transfers <= 1


async def test_a_preempted_session_gets_its_kv_back_and_goes_on_exactly() -> None:
    async with preempted(1 << 20) as (it, engine, peer):
        swap = it.replica.swap
        assert swap is not None
        await eventually(
            lambda: has_settled(it.replica) and counted(it.metrics, "loaded") >= 3, timeout_s=60
        )
        assert 0 < swap.num_bytes <= 1 << 20
        value = it.metrics.registry.get_sample_value
        assert value("outrider_kv_swap_bytes") == swap.num_bytes
        engine.may_go_on.set()
        await exact(peer)
        (scheduler,) = it.replica.schedulers
        assert counted(it.metrics, "saved") >= counted(it.metrics, "loaded") >= 3
        assert load_response(scheduler.load(), it.replica.table.transfers).kv.store_tokens == 0
        await eventually(lambda: not swap.num_transfers and not swap.num_sessions)
        assert swap.num_bytes == 0, "it is back, or over"


@pytest.mark.parametrize("max_bytes", [0, 1, 700])
async def test_without_room_it_is_computed(max_bytes: int) -> None:
    async with preempted(max_bytes) as (it, engine, peer):
        swap = it.replica.swap
        assert (swap is None) == (max_bytes == 0)
        assert swap is None or swap.num_bytes <= max_bytes
        engine.may_go_on.set()
        await exact(peer)
        assert counted(it.metrics, "saved") + counted(it.metrics, "dropped") > 0 or swap is None


async def test_a_session_that_ends_while_it_waits_leaves_nothing() -> None:
    async with preempted(1 << 20) as (it, engine, peer):
        await peer.cancel(1)
        engine.may_go_on.set()
        await peer.finish(1)
        swap = it.replica.swap
        assert swap is not None
        await eventually(lambda: not (swap.num_transfers or swap.num_sessions or swap.num_bytes))


@pytest.mark.model
async def test_text_is_exact_behind_kv_of_a_real_engine(
    shallow_model: ShallowModel, vocabulary: Vocabulary
) -> None:
    how = EngineConfig(num_blocks=26, max_fixed_rows=0)
    with closing(shallow_model.load(how)) as engine:
        size = engine.info.block_tokens
        low_prompt = [n * 37 % 5000 + 300 for n in range(8 * size + 5)]
        high_prompt = [n * 41 % 5000 + 300 for n in range(22 * size + 1)]
        texts = real_engine.texts_of(vocabulary)
        low_ids = list(generate(engine, low_prompt, LOW, texts).ids)
        high_ids = list(generate(engine, high_prompt, HIGH, texts).ids)
        staged = Staged(engine, len(low_prompt))
        how_served = settings(size, 1 << 30)
        async with (
            real_engine.replica(staged, vocabulary, **how_served) as (replica, metrics, stub),
            asyncio.TaskGroup() as group,
        ):
            try:
                low = group.create_task(
                    real_engine.ask(
                        stub, vocabulary, low_prompt, LOW, priority=common_pb2.PRIORITY_LOW
                    )
                )
                await eventually(staged.has_begun.is_set, timeout_s=60)
                high = group.create_task(
                    real_engine.ask(
                        stub, vocabulary, high_prompt, HIGH, priority=common_pb2.PRIORITY_HIGH
                    )
                )
                await eventually(lambda: len(replica.table) == 2, timeout_s=60)
                staged.high_is_there.set()
                assert (await high)[0] == high_ids
                await eventually(staged.is_back.is_set, timeout_s=60)
                await eventually(lambda: has_settled(replica) and counted(metrics, "loaded") >= 3)
            finally:
                staged.high_is_there.set()
                staged.may_go_on.set()
            assert (await low)[0] == low_ids
