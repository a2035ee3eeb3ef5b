"""How long calls may be: what contexts cost, and what fits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from outrider.engines.base import Rows
from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler
from outrider.session_types import Priority
from services.inference.scheduling.budget import CostModel, attention
from services.inference.scheduling.drafting.sources import Acceptance, DraftSources
from services.inference.scheduling.events import OpenRequest
from services.inference.scheduling.limits import SchedulerLimits
from services.inference.scheduling.planning import Plan
from services.inference.scheduling.policy.overload import Level
from services.inference.scheduling.policy.pace import Pace
from services.inference.scheduling.session import Session
from tests.inference.letters import VOCABULARY_SIZE, new_reply
from tests.inference.scheduling.driver import Driver

CONTEXT_MS = 0.23
"""Per thousand tokens and row: what SmolLM2-135M shows on one core."""
OPTIONS = FakeOptions(block_tokens=32, num_blocks=1200, fixed_ms=9.0, row_ms=0.5)
LIMITS = SchedulerLimits(fixed_ms=9.0, row_ms=0.5)


def rounds_of(rng: Random) -> list[tuple[int, int]]:
    """(tokens, past) of a call: replies, and perhaps a chunk of a prompt."""
    replies = [(1, rng.choice([100, 500, 1500])) for _ in range(rng.randrange(1, 9))]
    return [*replies, *([(rng.choice([16, 64]), rng.randrange(0, 1500))] * rng.randrange(2))]


def test_the_cost_of_contexts_is_found() -> None:
    cost, rng = CostModel(8.0, 1.2), Random(1)
    for _ in range(400):
        rounds = rounds_of(rng)
        rows, context = sum(n for n, _ in rounds), sum(attention(n, past) for n, past in rounds)
        noise = rng.uniform(0.95, 1.05)
        cost.observe(rows, noise * (9.0 + 0.5 * rows + CONTEXT_MS * context), context)
    assert cost.context_ms == pytest.approx(CONTEXT_MS, rel=0.15)
    assert cost.row_ms == pytest.approx(0.5, rel=0.25)
    assert cost.predict_ms(8, 8 * attention(1, 1500)) == pytest.approx(
        13.0 + CONTEXT_MS * 8 * attention(1, 1500), rel=0.1
    )


def test_an_engine_to_which_contexts_cost_nothing_is_believed() -> None:
    cost, rng = CostModel(8.0, 1.2), Random(1)
    for _ in range(300):
        rounds = rounds_of(rng)
        rows, context = sum(n for n, _ in rounds), sum(attention(n, past) for n, past in rounds)
        cost.observe(rows, 9.0 + 0.5 * rows, context)
    assert cost.context_ms == pytest.approx(0.0, abs=0.01)
    assert cost.predict_ms(20, 300.0) == pytest.approx(19.0, rel=0.1)


class WithContext(Driver):
    """The engine's time grows with the contexts it reads."""

    def run(self, plan: Plan) -> None:
        self.now += CONTEXT_MS * plan.context / 1e3
        super().run(plan)


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
        chunks += [p.num_tokens for p in driver.plans[-1].parts if p.session.number == 9]
    assert chunks[-2] < chunks[2]
    late = times_ms[len(times_ms) // 3 :]
    assert max(late) <= 1.25 * LIMITS.max_tick_ms
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
    peers = [driver.open(replace(low, session=number, prompt=(number,))) for number in range(4, 10)]
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


def taker(number: int, came_at: float, priority: Priority = Priority.MEDIUM) -> Session:
    """One with a prompt of 800 tokens, none of them computed."""
    request = OpenRequest(number, tuple(range(3, 23)) * 40, SamplingParams(), priority)
    session = Session(
        request,
        rank=(0.0, number),
        sampler=Sampler(request.sampling, VOCABULARY_SIZE, request.prompt),
        reply=new_reply(request.sampling),
        sources=DraftSources(None, None, Acceptance(0.5)),
        context_limit=2048,
        now=came_at,
    )
    session.admit(number, 0, came_at)
    return session


def replying(session: Session, since: float) -> Session:
    """It has its first token."""
    row = Rows(np.zeros((1, VOCABULARY_SIZE), np.float32))
    session.commit(row, (), num_guessed=0, started_at=since, row_ms=1.0, now=since)
    return session


def takers(num_prompts: int, num_replies: int) -> list[Session]:
    """The replies began before the prompts came."""
    replies = [replying(taker(number, 100.0), 100.5) for number in range(num_replies)]
    return replies + [taker(100 + number, 101.0) for number in range(num_prompts)]


@pytest.mark.parametrize("num_prompts", [1, 4, 6, 12])
def test_overload_shrinks_chunks_whether_prompts_crowd_or_not(num_prompts: int) -> None:
    pace = Pace(LIMITS, CostModel(LIMITS.fixed_ms, LIMITS.row_ms), min_rows=2)
    everybody = takers(num_prompts, num_replies=8)
    calm, strained = (
        pace.prompt_tokens(everybody, bounded=False, level=level)
        for level in (Level.NORMAL, Level.SMALL_CHUNKS)
    )
    assert strained < calm


def test_a_crowd_lengthens_calls_of_an_overloaded_replica_too() -> None:
    """It shrinks what a call gives to prompts, not the share of those whom a call serves."""
    pace = Pace(LIMITS, CostModel(LIMITS.fixed_ms, LIMITS.row_ms), min_rows=2)
    few, many = (
        pace.prompt_tokens(takers(n, num_replies=4), bounded=False, level=Level.SMALL_CHUNKS)
        for n in (4, 12)
    )
    assert many > few


def prompt_tokens(everybody: list[Session]) -> int:
    pace = Pace(LIMITS, CostModel(LIMITS.fixed_ms, LIMITS.row_ms), min_rows=2)
    return pace.prompt_tokens(everybody, bounded=False, level=Level.NORMAL)


def test_who_stood_in_line_together_does_not_wait_for_smooth_reading() -> None:
    """A prompt that came before any reply had begun lengthens the call, a later one not."""
    replies = [replying(taker(number, 100.0), 100.5) for number in range(4)]
    later, fellow = taker(8, 101.0), taker(9, 100.4)
    assert prompt_tokens([*replies, fellow]) > 1.5 * prompt_tokens([*replies, later])
    older = replying(taker(5, 99.0), 100.1)
    assert prompt_tokens([*replies, older, fellow]) == prompt_tokens([*replies, older, later])
    # What is computed again after a preemption is no first token to wait for.
    again = replying(taker(6, 100.0), 100.6)
    again.preempt()
    again.admit(6, 0, 101.0)
    assert prompt_tokens([*replies, again]) == prompt_tokens([*replies, later])


def test_a_lower_class_has_no_claim_on_smooth_reading() -> None:
    replies = [replying(taker(number, 100.0), 100.5) for number in range(4)]
    low, later = taker(8, 100.0, Priority.LOW), taker(9, 101.0)
    assert prompt_tokens([*replies, low]) == prompt_tokens([*replies, later])
