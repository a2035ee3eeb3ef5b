"""How evenly tokens come while prompts keep arriving, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import Driver
from tests.inference.scheduler.workload import Arrivals, is_exact, poisson, quantile

OPTIONS = FakeOptions(block_tokens=32, num_blocks=1200, fixed_ms=9.0, row_ms=0.6)
LIMITS = SchedulerLimits(fixed_ms=9.0, row_ms=0.6)
CHAT = OpenRequest(
    1,
    tuple(3 + number % 50 for number in range(40)),
    SamplingParams(max_tokens=300, ignore_eos=True),
    region_drafts=False,
)
DOCUMENT = OpenRequest(
    1000,
    tuple(3 + number * number % 59 for number in range(1500)),
    SamplingParams(max_tokens=4, ignore_eos=True),
    region_drafts=False,
)
TICK_MS = LIMITS.tick_ms(OPTIONS.fixed_ms + OPTIONS.row_ms)
"""The latency budget."""


@pytest.mark.parametrize("num_chats", [1, 4, 12])
def test_no_gap_exceeds_the_budget_and_long_prompts_come_almost_as_early_as_without_one(
    num_chats: int,
) -> None:
    chats = [
        (100.0, replace(CHAT, session_id=number, prompt=(number + 3, *CHAT.prompt)))
        for number in range(1, num_chats + 1)
    ]
    documents = poisson(Random(4), 0.5, 5.0, DOCUMENT)
    numbers = [request.session_id for _, request in chats]
    busy, unbounded = (
        Arrivals(OPTIONS, replace(LIMITS, max_tick_calls=calls))
        for calls in (LIMITS.max_tick_calls, 1e6)
    )
    for driver in (busy, unbounded):
        driver.play(chats + documents)
    assert busy.intervals_ms(numbers)[-1] <= TICK_MS + 5.0
    assert busy.intervals_ms(numbers)[-1] < 0.7 * unbounded.intervals_ms(numbers)[-1]
    long = [request.session_id for _, request in documents]
    ttft_ms, unbounded_ms = (quantile(one.ttfts_ms(long), 0.95) for one in (busy, unbounded))
    assert ttft_ms <= 1.5 * unbounded_ms
    for _, request in chats + documents:
        assert is_exact(busy.peers[request.session_id], request, OPTIONS)


def test_a_short_prompt_is_computed_at_once_and_overtakes_a_long_one() -> None:
    driver = Arrivals(OPTIONS, LIMITS)
    short = replace(CHAT, session_id=2, sampling=replace(CHAT.sampling, max_tokens=2))
    late = replace(short, session_id=3, prompt=(9, *CHAT.prompt))
    driver.play([(100.0, CHAT), (100.3, short), (100.5, DOCUMENT), (100.7, late)])
    assert driver.ttfts_ms([2])[0] <= TICK_MS + 10.0
    assert driver.ttfts_ms([3])[0] <= 3 * TICK_MS
    assert driver.intervals_ms([1])[-1] <= TICK_MS + 5.0


def test_many_prompts_are_not_computed_in_small_chunks() -> None:
    """Those in line have nothing to read yet: the few who do wait longer than usual."""
    many = 24
    document = replace(DOCUMENT, sampling=replace(DOCUMENT.sampling, max_tokens=64))
    prompts = [
        (100.0, replace(document, session_id=number, prompt=(number, *DOCUMENT.prompt[:300])))
        for number in range(3, many + 3)
    ]
    driver = Arrivals(OPTIONS, replace(LIMITS, max_sessions=32))
    driver.play(prompts)
    at_full_speed_ms = many * 301 * 0.6 + many * 301 / 256 * 9.0
    ttfts_ms = driver.ttfts_ms([request.session_id for _, request in prompts])
    assert max(ttfts_ms) <= 1.6 * at_full_speed_ms


def test_an_engine_slower_than_the_latency_budget_computes_prompts_in_large_pieces() -> None:
    """The budget is eight calls for one reply there, which the largest piece does not fill."""
    options = replace(OPTIONS, fixed_ms=60.0, row_ms=0.2)
    driver = Arrivals(options, replace(LIMITS, fixed_ms=60.0, row_ms=0.2))
    driver.play([(100.0, CHAT), (101.0, DOCUMENT)])
    longest_ms = 60.2 + 0.2 * LIMITS.prefill_chunk_tokens
    assert driver.ttfts_ms([1000])[0] <= 7 * longest_ms
    assert driver.intervals_ms([1])[-1] <= longest_ms + 1.0


def test_a_call_waits_for_nobody_and_takes_all_who_came_meanwhile() -> None:
    """Work conservation is the batch window: at rest a session starts at once, and those who
    come while a call runs share the next one."""
    driver = Driver(OPTIONS, LIMITS)
    driver.open(CHAT)
    batch = driver.schedule()
    assert batch is not None and batch.scheduled_at == driver.now
    for number in (2, 3, 4):
        driver.open(replace(CHAT, session_id=number, prompt=(number + 3, *CHAT.prompt[:9])))
    driver.run(batch)
    driver.tick()
    assert {part.session.session_id for part in driver.batches[-1].scheduled} == {1, 2, 3, 4}
    driver.finish()


def test_drafts_do_not_stretch_a_call_beyond_the_latency_budget() -> None:
    options = replace(OPTIONS, repetition=1.0)
    driver = Arrivals(options, LIMITS)
    chats = [
        (100.0, replace(CHAT, session_id=n, prompt=(n + 3, *CHAT.prompt), region_drafts=True))
        for n in range(1, 13)
    ]
    driver.play(chats)
    decode = [batch for batch in driver.batches if all(part.num_rows for part in batch.slices)]
    assert max(9.0 + 0.6 * batch.num_tokens for batch in decode[5:]) <= LIMITS.max_tick_ms + 1.0
    assert max(batch.num_tokens for batch in decode) > 20
