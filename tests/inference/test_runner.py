"""The inbox, the model thread alone, and its own CPU time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from outrider.engine_calls import EngineCall, sessions_in_call
from outrider.engines.base import Engine, LogitsRows, SequenceSlice
from outrider.engines.fake import FakeEngine
from outrider.errors import EngineError, OverloadedError, UnavailableError
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.testing import eventually, leak_check
from services.inference.call_record import WorkRecord
from services.inference.kv_transfer import MAX_LOADED_BYTES, LoadBlocks
from services.inference.model_thread import ModelTick
from services.inference.runner import (
    MAX_FAILURES,
    AddDraft,
    Cancel,
    Command,
    CpuOverhead,
    EngineActivity,
    Inbox,
    ModelRunner,
)
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Begun,
    Event,
    Failed,
    Finished,
    Opened,
    OpenRequest,
    SessionCommit,
)
from tests.inference.harness import GatedEngine, Stepwise, reference
from tests.inference.letters import new_reply

SAMPLING = SamplingParams(max_tokens=30, ignore_eos=True)


def _request(session: int) -> OpenRequest:
    return OpenRequest(session_id=session, prompt=(4 + session, 5), sampling=SAMPLING)


def test_a_full_inbox_takes_nothing_but_cancels() -> None:
    inbox = Inbox(max_commands=2)
    assert inbox.put(_request(1))
    assert inbox.put(AddDraft(1, Draft(0, 0, ())))
    assert not inbox.put(_request(2))
    assert not inbox.put(AddDraft(1, Draft(0, 0, ())))
    assert inbox.put(Cancel(1))
    assert inbox.take(None) == [_request(1), AddDraft(1, Draft(0, 0, ())), Cancel(1)]
    assert inbox.take(0.0) == []
    assert inbox.put(_request(2))


@pytest.mark.parametrize("max_loaded_bytes", [3000, MAX_LOADED_BYTES])
def test_an_inbox_that_nobody_takes_from_holds_so_much_kv(max_loaded_bytes: int) -> None:
    inbox = Inbox() if max_loaded_bytes == MAX_LOADED_BYTES else Inbox(9, max_loaded_bytes)
    blocks = ((0, bytes(max_loaded_bytes // 3)), (1, b""))
    loads = [LoadBlocks(session, blocks, "redis") for session in (1, 2, 3, 4)]
    assert [inbox.put(load) for load in loads] == [True, True, True, False]
    assert not inbox.put(LoadBlocks(5, ((0, bytes(max_loaded_bytes % 3 + 1)),), "redis"))
    others: list[Command] = [_request(6), AddDraft(6, Draft(0, 0, ())), Cancel(6)]
    assert all(inbox.put(command) for command in others)
    assert inbox.take(None) == [*loads[:3], *others]
    assert inbox.put(loads[3]), "there is room again"


def test_a_stopped_inbox_gives_out_what_it_has_first() -> None:
    inbox = Inbox()
    inbox.put(Cancel(1))
    inbox.stop()
    assert inbox.take(None) == [Cancel(1)]
    assert inbox.take(None) is None


def test_take_is_woken_from_another_thread() -> None:
    inbox = Inbox()
    putter = threading.Timer(0.01, inbox.put, [Cancel(7)])
    putter.start()
    assert inbox.take(None) == [Cancel(7)]
    putter.join()


class Watched:
    """A started runner and the ticks it sent."""

    def __init__(self, engine: Engine, max_commands: int = 4096) -> None:
        self.ticks: list[ModelTick] = []
        self.engine = engine
        scheduler = Scheduler(engine.info, SchedulerLimits(), new_reply)
        self.work = WorkRecord(None, 0)
        self.runner = ModelRunner(
            engine, scheduler, self.ticks.append, max_commands=max_commands, work=self.work
        )

    @property
    def events(self) -> list[Event]:
        return [event for tick in self.ticks for event in tick.events]

    def ids(self, session: int) -> tuple[int, ...]:
        told = [e for e in self.events if isinstance(e, SessionCommit) and e.session_id == session]
        return tuple(token for event in told for token in event.commit.ids)

    def last(self, session: int) -> Event | None:
        ends = [e for e in self.events if e.session_id == session and not isinstance(e, Opened)]
        return ends[-1] if ends and isinstance(ends[-1], Finished | Failed) else None

    async def end(self, session: int) -> Event:
        await eventually(lambda: self.last(session) is not None)
        event = self.last(session)
        assert event is not None
        return event


@asynccontextmanager
async def _running(engine: Engine, max_commands: int = 4096) -> AsyncIterator[Watched]:
    async with leak_check():
        threads = set(threading.enumerate())
        it = Watched(engine, max_commands)
        it.runner.start()
        try:
            yield it
        finally:
            if isinstance(engine, GatedEngine):
                engine.gate.set()
            await it.runner.stop()
        assert set(threading.enumerate()) <= threads


async def test_events_arrive_in_order_and_in_the_loop() -> None:
    async with _running(FakeEngine()) as it:
        for session in range(1, 9):
            it.runner.open(_request(session))
        for session in range(1, 9):
            assert isinstance(await it.end(session), Finished)
            assert it.ids(session) == reference((4 + session, 5), SAMPLING).ids
        assert max(tick.num_scheduled for tick in it.ticks) > 1
        assert it.ticks[0].events == ()
        assert it.ticks[-1].load.running_sessions == 0


async def test_an_admission_is_known_before_the_engine_has_answered() -> None:
    async with _running(GatedEngine()) as it:
        it.runner.open(_request(1))
        it.runner.open(OpenRequest(session_id=2, prompt=(99,), sampling=SAMPLING))
        await eventually(lambda: any(isinstance(event, Opened) for event in it.events))
        assert it.last(1) is None
        assert it.ticks[-1].num_scheduled == 0


async def test_an_idle_thread_makes_no_ticks() -> None:
    async with _running(FakeEngine()) as it:
        it.runner.open(_request(1))
        await it.end(1)
        count = len(it.ticks)
        await asyncio.sleep(0.05)
        assert len(it.ticks) <= count + 1


async def test_requests_that_do_not_fit_are_refused() -> None:
    engine = GatedEngine()
    async with _running(engine, max_commands=2) as it:
        it.runner.open(_request(1))
        await eventually(engine.waiting.is_set)
        it.runner.open(_request(2))
        assert it.runner.draft(1, Draft(0, 0, (1, 2)))
        assert not it.runner.draft(1, Draft(0, 2, (1, 2)))
        with pytest.raises(OverloadedError):
            it.runner.open(_request(3))
        it.runner.cancel(2)


async def test_a_session_that_fails_costs_others_nothing() -> None:
    """What the call before committed to them is told."""
    engine = Stepwise(4)
    engine.gate.clear()
    async with _running(engine) as it:
        for session in (1, 2):
            it.runner.open(_request(session))
        engine.gate.set()
        await eventually(lambda: bool(it.ids(1) and it.ids(2)) and not engine.gate.is_set())
        assert it.last(1) is None, "the test shows nothing"
        it.runner.draft(1, Draft(1, 0, (64,)))
        engine.gate.set()
        assert isinstance(await it.end(1), Failed)
        assert isinstance(await it.end(2), Finished)
        assert it.ids(2) == reference((6, 5), SAMPLING).ids


async def test_stopping_closes_the_engine_and_says_so() -> None:
    engine = FakeEngine()
    async with _running(engine) as it:
        assert it.runner.problem == ""
        it.runner.open(_request(1))
        await it.end(1)
    assert it.ticks[-1].over
    with pytest.raises(UnavailableError, match="has stopped"):
        it.runner.open(_request(2))
    with pytest.raises(EngineError, match="closed"):
        engine.close_sequence(1)
    await it.runner.stop()


async def test_a_runner_that_never_started_can_be_stopped() -> None:
    engine = FakeEngine()
    it = Watched(engine)
    with pytest.raises(UnavailableError, match="not started"):
        it.runner.open(_request(1))
    for _ in range(2):
        await it.runner.stop()
        with pytest.raises(EngineError, match="closed"):
            engine.close_sequence(1)
    assert it.ticks == []


class Unclosable(FakeEngine):
    """Raises something unforeseen from close()."""

    def close(self) -> None:
        raise ZeroDivisionError("a defect")


async def test_an_engine_that_cannot_be_closed_does_not_hold_up_the_end() -> None:
    it = Watched(Unclosable())
    it.runner.start()
    async with asyncio.timeout(30):
        await it.runner.stop()
    assert it.ticks[-1].over


class Failing(GatedEngine):
    """Its first calls raise EngineError."""

    num_calls = 0

    def after(self, slices: Sequence[SequenceSlice]) -> None:
        self.num_calls += 1
        if self.num_calls <= MAX_FAILURES:
            raise EngineError("out of order")


async def test_a_replica_that_was_given_up_takes_no_sessions_again() -> None:
    engine = Failing()
    async with _running(engine) as it:
        engine.gate.set()
        for session in range(1, MAX_FAILURES):
            it.runner.open(_request(session))
            assert isinstance(await it.end(session), Failed)
        engine.gate.clear()
        engine.waiting.clear()
        it.runner.open(_request(8))
        await eventually(engine.waiting.is_set)
        it.runner.open(_request(9))
        engine.gate.set()
        assert isinstance(await it.end(8), Failed)
        assert isinstance(await it.end(9), Finished)
        assert "restart the replica" in it.runner.problem


async def test_events_are_told_while_the_next_call_computes() -> None:
    engine = GatedEngine()
    async with _running(engine) as it:
        it.runner.open(_request(1))
        await eventually(engine.waiting.is_set)
        assert [type(event) for event in it.events] == [Opened, Begun]
        engine.waiting.clear()
        engine.gate.set()
        assert isinstance(await it.end(1), Finished)
        assert it.ticks[-1].num_scheduled == 1, "the last call has no next one to wait for"


async def test_the_requests_of_a_call_are_recorded_until_they_have_a_token() -> None:
    engine = GatedEngine()
    async with _running(engine) as it:
        it.runner.open(replace(_request(1), request_key=11))
        await eventually(engine.waiting.is_set)
        assert it.work.call == EngineCall(frozenset({11}), 1)
        it.runner.open(replace(_request(2), request_key=22))
        engine.waiting.clear()
        engine.gate.set()
        await it.end(1)
        await it.end(2)
        assert it.work.call == EngineCall()


async def test_where_the_thread_fails_who_it_worked_on_is_told_apart_from_who_waited() -> None:
    """It is a defect; a request that meets it meets it at the next replica, too."""
    engine = GatedEngine()
    async with _running(engine) as it:
        it.runner.open(_request(1))
        await eventually(engine.waiting.is_set)

        def broken(*arguments: object) -> list[LogitsRows]:
            raise ZeroDivisionError

        engine.step = broken  # type: ignore[method-assign, assignment]
        engine.gate.set()
        failed = await it.end(1)
        assert isinstance(failed, Failed)
        assert sessions_in_call(failed.error) == 1


def test_activity_tells_busy_from_idle_time_while_there_is_work() -> None:
    activity = EngineActivity()
    activity.resume(100.0)
    activity.called(101.0, busy_s=0.75)
    activity.called(103.0, busy_s=2.75)
    assert activity.take_s() == (2.75, 0.25)
    activity.resume(200.0)
    activity.called(201.0, busy_s=3.25)
    assert activity.take_s() == (0.5, 0.5)
    assert activity.take_s() == (0.0, 0.0)


def burn(seconds: float) -> None:
    """Compute until this thread used so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_pauses_and_waits_are_not_counted() -> None:
    overhead = CpuOverhead()
    overhead.take_ms()
    burn(0.01)
    with overhead.paused():
        burn(0.05)
    threading.Event().wait(0.05)
    taken_ms = overhead.take_ms()
    assert 10 <= taken_ms < 40
    assert 0 <= overhead.take_ms() < 10


async def test_what_groups_learnt_is_handed_over_between_calls_or_not_at_all() -> None:
    async with _running(FakeEngine()) as it:
        it.runner.open(replace(_request(1), cache_salt=b"a", group_lasts=True))
        await it.end(1)
        assert await it.runner.take_learnt() == [], "nothing may be kept here"
    assert await it.runner.take_learnt() == [], "the thread has ended"
