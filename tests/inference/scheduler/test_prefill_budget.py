"""How many prompt tokens a call takes, and which LOW sessions take part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engines.base import LogitsRows
from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.session.types import Priority
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel
from services.inference.scheduler.draft_sources import DraftSources, EdgeAcceptance
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.prefill_budget import PrefillBudget, chunk_tokens
from services.inference.scheduler.session import Session
from services.inference.scheduler.types import OpenRequest, OverloadLevel
from tests.inference.letters import VOCABULARY_SIZE, new_reply
from tests.inference.scheduler.driver import Driver

CONTEXT_MS = 0.23
"""Per thousand tokens and row: what SmolLM2-135M shows on one core."""
OPTIONS = FakeOptions(block_tokens=32, num_blocks=1200, fixed_ms=9.0, row_ms=0.5)
LIMITS = SchedulerLimits(fixed_ms=9.0, row_ms=0.5)


class WithContext(Driver):
    """The engine's time grows with the contexts it reads."""

    def run(self, batch: Batch) -> None:
        self.now += CONTEXT_MS * batch.attention_work / 1e3
        super().run(batch)


def test_chunks_shrink_with_the_context_so_that_replies_do_not_wait() -> None:
    driver = WithContext(OPTIONS, LIMITS)
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    for number in range(1, 5):
        prompt = (number, *range(3, 60), *range(3, 60))
        driver.open(OpenRequest(number, prompt, sampling, region_drafts=False))
    while len(driver.peers[4].reply) < 30:
        driver.tick()
    prompt = tuple(3 + number * number % 59 for number in range(1500))
    driver.open(OpenRequest(9, prompt, sampling, region_drafts=False))
    chunks, times_ms = [], []
    while not driver.peers[9].commits:
        before = driver.now
        driver.tick()
        times_ms.append((driver.now - before) * 1e3)
        chunks += [p.num_tokens for p in driver.batches[-1].scheduled if p.session.session_id == 9]
    assert chunks[-2] < chunks[2]
    late = times_ms[len(times_ms) // 3 :]
    assert max(late) <= 1.1 * LIMITS.tick_ms(OPTIONS.fixed_ms + OPTIONS.row_ms)
    driver.finish()


def test_low_replies_take_turns_in_short_calls() -> None:
    driver = Driver(replace(OPTIONS, row_ms=2.0), replace(LIMITS, row_ms=2.0))
    sampling = SamplingParams(max_tokens=300, ignore_eos=True)
    driver.open(OpenRequest(99, (3, 4), SamplingParams(max_tokens=1), Priority.HIGH))
    for number in range(12):
        prompt = (3 + number, 4, 5)
        driver.open(OpenRequest(number, prompt, sampling, Priority.LOW, region_drafts=False))
    while any(not driver.peers[number].reply for number in range(12)):
        driver.tick()
    begun = {number: len(driver.peers[number].reply) for number in range(12)}
    for _ in range(60):
        driver.tick()
        assert driver.engine.step_ms <= LIMITS.low_tick_ms + 1.0
    gained = [len(driver.peers[number].reply) - begun[number] for number in range(1, 12)]
    assert max(gained) - min(gained) <= 2 and min(gained) >= 15
    driver.finish()


def test_low_replies_take_turns_on_an_engine_slower_than_their_calls_may_be() -> None:
    options = FakeOptions(num_blocks=400, fixed_ms=30.0, row_ms=2.0)
    limits = SchedulerLimits(fixed_ms=30.0, row_ms=2.0)
    driver = Driver(options, limits)
    reply = SamplingParams(max_tokens=400, ignore_eos=True)
    low = OpenRequest(1, (3, 4), reply, Priority.LOW, edge_drafts=False, region_drafts=False)
    peers = [
        driver.open(replace(low, session_id=number, prompt=(number,))) for number in range(4, 10)
    ]
    driver.open(OpenRequest(1, (3,), SamplingParams(max_tokens=1), priority=Priority.HIGH))
    last, longest = dict.fromkeys(range(6), driver.now), 0.0
    for _ in range(300):
        num_commits = [len(peer.commits) for peer in peers]
        assert driver.tick()
        for number, peer in enumerate(peers):
            if len(peer.commits) > num_commits[number]:
                longest = max(longest, driver.now - last[number])
                last[number] = driver.now
    longest = max(longest, *(driver.now - moment for moment in last.values()))
    assert longest < 2 * limits.max_pause_ms / 1e3


def beside_low(
    fixed_ms: float, row_ms: float, num_above_low: int, num_low: int, *, repetition: float = 0.0
) -> Driver:
    """Replies above LOW and LOW ones, all of which have their first token."""
    options = FakeOptions(num_blocks=1200, fixed_ms=fixed_ms, row_ms=row_ms, repetition=repetition)
    limits = SchedulerLimits(fixed_ms=fixed_ms, row_ms=row_ms, max_sessions=32)
    driver = Driver(options, limits)
    sampling = SamplingParams(max_tokens=900, ignore_eos=True)
    for number in range(num_above_low + num_low):
        priority = Priority.MEDIUM if number < num_above_low else Priority.LOW
        prompt, drafts = (3 + number, 4, 5), repetition > 0
        driver.open(OpenRequest(number, prompt, sampling, priority, region_drafts=drafts))
    while any(len(peer.reply) < 2 for peer in driver.peers.values()):
        driver.tick()
    return driver


def gained(driver: Driver, num_calls: int) -> list[int]:
    """Tokens of each session in so many calls."""
    begun = [len(peer.reply) for peer in driver.peers.values()]
    for _ in range(num_calls):
        assert driver.tick()
    return [len(p.reply) - begin for p, begin in zip(driver.peers.values(), begun, strict=True)]


def test_low_replies_are_in_every_call_that_is_long_without_them_if_they_hardly_lengthen_it() -> (
    None
):
    driver = beside_low(200.0, 0.2, 5, 12)
    assert set(gained(driver, 40)) == {40}
    assert driver.engine.step_ms <= LIMITS.low_stretch * (200.0 + 0.2 * 2 * 5)


def test_low_replies_that_lengthen_such_a_call_take_turns() -> None:
    driver = beside_low(200.0, 2.0, 5, 12)
    tokens = gained(driver, 60)
    assert set(tokens[:5]) == {60}
    assert max(tokens[5:]) - min(tokens[5:]) <= 2 and 20 <= min(tokens[5:]) < 60
    assert driver.engine.step_ms <= LIMITS.low_stretch * (200.0 + 2.0 * 2 * 5)


@given(
    st.floats(1.0, 300.0),
    st.floats(0.01, 20.0),
    st.integers(1, 8),
    st.integers(1, 12),
)
@settings(max_examples=40)
def test_low_replies_lengthen_no_call_beyond_its_bound_but_for_one_of_them(
    fixed_ms: float, row_ms: float, num_above_low: int, num_low: int
) -> None:
    driver = beside_low(fixed_ms, row_ms, num_above_low, num_low)
    without_ms = fixed_ms + row_ms * 2 * num_above_low
    one_ms = row_ms * 2
    longest_ms = max(LIMITS.low_bound_ms(without_ms), without_ms + one_ms)
    before = len(driver.batches)
    tokens = gained(driver, 30)
    assert set(tokens[:num_above_low]) == {30}, "they are in every call"
    assert sum(tokens[num_above_low:]) >= 30, "a LOW one is in every call"
    steps_ms = [fixed_ms + row_ms * batch.num_tokens for batch in driver.batches[before:]]
    assert max(steps_ms) <= 1.02 * longest_ms


def test_low_prompts_are_cut_by_the_length_of_the_calls_that_they_join() -> None:
    """Calls of 200 ms have room for more of a prompt than calls of 20 ms would."""
    driver = beside_low(200.0, 0.5, 4, 1)
    low = OpenRequest(99, tuple(range(3, 63)), SamplingParams(max_tokens=4), Priority.LOW)
    peer, before = driver.open(replace(low, region_drafts=False)), len(driver.batches)
    longest_ms = 0.0
    while not peer.reply:
        driver.tick()
        longest_ms = max(longest_ms, driver.engine.step_ms)
    assert len(driver.batches) - before <= 4
    assert longest_ms <= LIMITS.low_stretch * (200.0 + 0.5 * 2 * 4) + 1.0


def test_drafts_of_replies_above_low_are_not_lost_to_a_low_reply_in_the_call() -> None:
    alone = sum(gained(beside_low(100.0, 0.5, 3, 0, repetition=0.9), 60))
    beside = gained(beside_low(100.0, 0.5, 3, 2, repetition=0.9), 60)
    assert alone > 2 * 3 * 60, "drafts pay"
    assert sum(beside[:3]) >= 0.9 * alone
    assert min(beside[3:]) >= 60


def session(number: int, came_at: float, priority: Priority = Priority.MEDIUM) -> Session:
    """One with a prompt of 800 tokens, none of them computed."""
    request = OpenRequest(number, tuple(range(3, 23)) * 40, SamplingParams(), priority)
    session = Session(
        request,
        rank=(0.0, number),
        sampler=Sampler(request.sampling, VOCABULARY_SIZE, request.prompt),
        reply=new_reply(request.sampling),
        sources=DraftSources(None, None, EdgeAcceptance(0.5)),
        context_limit=2048,
        now=came_at,
    )
    session.admit(number, 0, came_at)
    return session


def replying(session: Session, since: float) -> Session:
    """It has its first token."""
    row = LogitsRows(np.zeros((1, VOCABULARY_SIZE), np.float32))
    session.committed(session.verify(row, (), 0), started_at=since, row_ms=1.0, now=since)
    return session


def budget_of(limits: SchedulerLimits) -> PrefillBudget:
    line = limits.fixed_ms, limits.row_ms
    return PrefillBudget(limits, CostModel(*line), DecodeCostModel(*line), min_rows=2)


def sessions(num_prompts: int, num_replies: int) -> list[Session]:
    """The replies began before the prompts came."""
    replies = [replying(session(number, 100.0), 100.5) for number in range(num_replies)]
    return replies + [session(100 + number, 101.0) for number in range(num_prompts)]


@pytest.mark.parametrize("num_prompts", [1, 4, 6, 12])
def test_overload_shrinks_chunks_with_and_without_a_backlog(num_prompts: int) -> None:
    budget = budget_of(LIMITS)
    everybody = sessions(num_prompts, num_replies=8)
    calm, strained = (
        budget.max_prompt_tokens(everybody, short=False, level=level)
        for level in (OverloadLevel.NORMAL, OverloadLevel.SMALL_CHUNKS)
    )
    assert strained < calm


def test_a_backlog_lengthens_calls_of_an_overloaded_replica_too() -> None:
    """Overload shrinks what a call gives to prompts, not what a backlog adds to that."""
    budget = budget_of(LIMITS)
    few, many = (
        budget.max_prompt_tokens(
            sessions(n, num_replies=4), short=False, level=OverloadLevel.SMALL_CHUNKS
        )
        for n in (4, 12)
    )
    assert many > few


def prompt_tokens(everybody: list[Session]) -> int:
    budget = budget_of(LIMITS)
    return budget.max_prompt_tokens(everybody, short=False, level=OverloadLevel.NORMAL)


def test_a_prompt_as_old_as_the_first_replies_does_not_wait_for_them() -> None:
    """A prompt that came before any reply had begun lengthens the call, a later one not."""
    replies = [replying(session(number, 100.0), 100.5) for number in range(4)]
    later, as_old = session(8, 101.0), session(9, 100.4)
    assert prompt_tokens([*replies, as_old]) > 1.5 * prompt_tokens([*replies, later])
    older = replying(session(5, 99.0), 100.1)
    assert prompt_tokens([*replies, older, as_old]) == prompt_tokens([*replies, older, later])
    # What is computed again after a preemption is no first token to wait for.
    again = replying(session(6, 100.0), 100.6)
    again.preempt()
    again.admit(6, 0, 101.0)
    assert prompt_tokens([*replies, again]) == prompt_tokens([*replies, later])


def test_a_prompt_of_a_lower_class_waits_all_the_same() -> None:
    replies = [replying(session(number, 100.0), 100.5) for number in range(4)]
    low, later = session(8, 100.0, Priority.LOW), session(9, 101.0)
    assert prompt_tokens([*replies, low]) == prompt_tokens([*replies, later])


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 4))
def test_chunk_and_rest_have_min_rows_or_are_all_or_nothing(
    num_uncomputed: int, budget: int, min_rows: int
) -> None:
    chunk = chunk_tokens(num_uncomputed, budget, min_rows)
    assert 0 <= chunk <= min(num_uncomputed, budget)
    if 0 < chunk < num_uncomputed:
        assert chunk >= min_rows
        assert num_uncomputed - chunk >= min_rows


@given(st.integers(1, 300), st.integers(1, 4))
def test_the_smallest_budget_that_is_given_always_moves(num_uncomputed: int, min_rows: int) -> None:
    assert chunk_tokens(num_uncomputed, 2 * min_rows - 1, min_rows) > 0


def test_a_rest_of_one_is_not_left() -> None:
    assert chunk_tokens(9, 8, 2) == 7
    assert chunk_tokens(9, 8, 1) == 8
