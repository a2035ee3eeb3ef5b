"""What becomes of blocks that preempted sessions lose, before a model thread that only listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from outrider.codec.block_hashes import block_hashes, root_hash
from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import EngineError
from outrider.sampling.params import SamplingParams
from outrider.session_types import Priority
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.inference.call_record import WorkRecord
from services.inference.kv.pool import KvSource, NamedBlock
from services.inference.kv_swap.swapping import KvSwap
from services.inference.kv_transfer import LoadBlocks, Swap, SwappedBlock
from services.inference.prefix_store.opening import kv_identity
from services.inference.runner import Cancel, Inbox, ModelTick, _ModelThread
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Committed,
    Event,
    Load,
    OpenRequest,
    Preempted,
    Readmitted,
)
from tests.inference.letters import new_reply

ENGINE = FakeEngine()
BLOCK = ENGINE.info.block_tokens
IDS = tuple(n % 23 + 1 for n in range(4 * BLOCK + 1))
DATA = ENGINE.export_blocks([0])


def names(salt: bytes) -> tuple[bytes, ...]:
    return tuple(block_hashes(IDS, BLOCK, salt))


class Model:
    """Takes what comes back."""

    def __init__(self) -> None:
        self.loaded: list[LoadBlocks] = []
        self.max_blocks = 100

    def load_blocks(self, command: LoadBlocks) -> bool:
        if len(self.loaded) >= self.max_blocks:
            return False
        self.loaded.append(command)
        return True


class Swapping:
    """A KvSwap that is told what the test says."""

    def __init__(self, metrics: Metrics) -> None:
        identity = kv_identity(ENGINE.info, b"v" * 32)
        assert identity is not None
        self.metrics = metrics
        self.model = Model()
        self.swap = KvSwap(1 << 20, identity, self.model, metrics)
        self.load = Scheduler(ENGINE.info, SchedulerLimits(row_ms=10.0), new_reply).load()
        self.num_packed = 0

    def tell(self, *swaps: Swap, events: tuple[Event, ...] = (), load: Load | None = None) -> None:
        self.swap.on_tick(ModelTick(events, load or self.load, 1, swaps=swaps))

    def counted(self, result: str) -> float:
        """Blocks of which this became."""
        name, labels = "outrider_kv_swap_blocks_total", {"result": result}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def lose(self, salt: bytes, index: int) -> SwappedBlock:
        def packed() -> None:
            self.num_packed += 1

        known = (root_hash(salt), *names(salt))
        ids = IDS[index * BLOCK : (index + 1) * BLOCK]
        return SwappedBlock(NamedBlock(known[index + 1], known[index], ids, 0), DATA, packed)


@asynccontextmanager
async def swapping() -> AsyncIterator[Swapping]:
    metrics = Metrics("test")
    it = Swapping(metrics)
    try:
        yield it
    finally:
        await it.swap.close()
        metrics.close()


async def test_blocks_come_back_from_the_last_one_to_whose_they_are() -> None:
    async with swapping() as it:
        lost = [it.lose(b"a", index) for index in (3, 2, 1)]
        it.tell(Preempted(1, b"a", names(b"a")), Preempted(2, b"b", names(b"b")), *lost)
        await eventually(lambda: it.num_packed == 3 and not it.swap.num_transfers)
        it.tell(Readmitted(2, 0, len(IDS)), Readmitted(1, BLOCK, len(IDS)))
        await eventually(lambda: len(it.model.loaded) == 3)
        assert [(load.session_id, load.blocks[0][0]) for load in it.model.loaded] == [
            (1, 3),
            (1, 2),
            (1, 1),
        ]
        assert all(load.blocks[0][1] == DATA for load in it.model.loaded)
        assert all(load.source is KvSource.SWAP for load in it.model.loaded)
        committed = tuple(Committed(n, 0, 0, 0, (5,), 1.0, 1.0) for n in (1, 2))
        it.tell(events=committed)
        assert it.swap.num_bytes == it.swap.num_sessions == it.swap.num_transfers == 0


async def test_blocks_that_find_too_much_waiting_for_the_engine_are_late() -> None:
    async with swapping() as it:
        it.model.max_blocks = 1
        lost = [it.lose(b"a", index) for index in (3, 2, 1)]
        it.tell(Preempted(1, b"a", names(b"a")), *lost)
        await eventually(lambda: it.num_packed == 3 and not it.swap.num_transfers)
        it.tell(Readmitted(1, BLOCK, len(IDS)))
        await asyncio.gather(*it.swap._returning.values())
        assert len(it.model.loaded) == 1
        assert (it.counted("loaded"), it.counted("late")) == (1, 2)
        it.tell(events=(Committed(1, 0, 0, 0, (5,), 1.0, 1.0),))
        assert it.swap.num_bytes == it.swap.num_sessions == it.swap.num_transfers == 0


async def test_what_the_engine_computes_sooner_is_not_unpacked() -> None:
    async with swapping() as it:
        it.tell(Preempted(1, b"a", names(b"a")), *(it.lose(b"a", n) for n in range(4)))
        await eventually(lambda: it.num_packed == 4 and not it.swap.num_transfers)
        fast = replace(it.load, row_ms=1e-9)
        it.tell(Readmitted(1, 0, len(IDS)), load=fast)  # what unpacking takes is not known yet
        await eventually(lambda: len(it.model.loaded) == 4)
        it.tell(Preempted(1, b"a", names(b"a")))
        it.tell(Readmitted(1, 0, len(IDS)), load=fast)
        await asyncio.gather(*it.swap._returning.values())
        assert len(it.model.loaded) == 4 and it.swap.num_bytes > 0


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_block_that_comes_too_late_is_not_kept(is_wanted: bool) -> None:
    async with swapping() as it:
        it.tell(Preempted(1, b"a", names(b"a")), it.lose(b"a", 0))
        it.tell(Readmitted(1, 0, len(IDS)))
        if not is_wanted:
            it.tell(events=(Committed(1, 0, 0, 0, (5,), 1.0, 1.0),))
        await eventually(lambda: it.num_packed == 1 and it.swap.num_transfers == is_wanted)
        assert (it.swap.num_bytes > 0) == is_wanted


class Failing(FakeEngine):
    """Fails one call, before it has done anything, when told so."""

    fails = False

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        if self.fails:
            self.fails = False
            raise EngineError("it failed")
        return super().step(slices, overlapped_work)


def request(session: int, num_tokens: int, priority: Priority) -> OpenRequest:
    prompt = tuple((session * 7 + n) % 60 + 3 for n in range(num_tokens))
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    return OpenRequest(session, prompt, sampling, priority=priority, region_drafts=False)


async def test_a_session_that_ends_after_a_failed_call_took_its_room_is_forgotten() -> None:
    engine = Failing(FakeOptions(block_tokens=4, num_blocks=12, max_context_tokens=48))
    scheduler = Scheduler(engine.info, SchedulerLimits(), new_reply, keeps_swaps=True)
    async with swapping() as it:
        swaps: list[Swap] = []

        def post(tick: ModelTick) -> None:
            swaps.extend(tick.swaps)
            it.swap.on_tick(tick)

        thread = _ModelThread(engine, scheduler, Inbox(), lambda: 100.0, WorkRecord(None, 0), post)
        thread._tick([request(1, 16, Priority.LOW)])
        for _ in range(3):
            thread._tick([])
        engine.fails = True
        thread._tick([request(2, 38, Priority.HIGH)])
        thread._tick([Cancel(1), request(3, 5, Priority.HIGH)])
        while scheduler.has_work:
            thread._tick([])
        assert any(isinstance(one, Preempted) and one.session_id == 1 for one in swaps)
        assert it.swap.num_sessions == 0
