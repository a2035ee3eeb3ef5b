"""HIGH and MEDIUM sessions under a load of LOW ones, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import Priority
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.session import SchedulingState
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import Driver, reference
from tests.inference.scheduler.workload import Arrivals, is_exact, poisson, quantile

OPTIONS = FakeOptions(block_tokens=32, num_blocks=1200, fixed_ms=9.0, row_ms=1.0)
LIMITS = SchedulerLimits(fixed_ms=9.0, row_ms=1.0)
PROMPT = tuple(3 + number % 50 for number in range(56))
LOW = OpenRequest(
    1000, PROMPT, SamplingParams(max_tokens=60, ignore_eos=True), priority=Priority.LOW
)
HIGH = OpenRequest(
    1, PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), priority=Priority.HIGH
)
LOW_PER_S = 6.2
"""What 16 places of LOW sessions alone can serve: 100 of them at once are done in 16 seconds."""


@pytest.mark.parametrize("priority", [Priority.MEDIUM, Priority.HIGH])
def test_others_hardly_notice_95_percent_of_low_load_and_low_is_served_exactly(
    priority: Priority,
) -> None:
    highs = poisson(Random(2), 1.0, 20.0, replace(HIGH, priority=priority))
    # Calls with LOW sessions get short once somebody above them has come.
    somebody = (100.0, replace(HIGH, session_id=900, priority=priority))
    lows = [somebody, *poisson(Random(3), 0.95 * LOW_PER_S, 20.0, LOW)]
    alone, loaded = Arrivals(OPTIONS, LIMITS), Arrivals(OPTIONS, LIMITS)
    alone.play(highs)
    loaded.play(highs + lows)
    numbers = [request.session_id for _, request in highs]
    ratios = [
        quantile(loaded.ttfts_ms(numbers), share) / quantile(alone.ttfts_ms(numbers), share)
        for share in (0.5, 0.95)
    ]
    assert max(ratios) <= 1.3, ratios
    for _, request in highs + lows:
        assert is_exact(loaded.peers[request.session_id], request, OPTIONS)


def test_the_load_above_is_what_it_says() -> None:
    driver = Arrivals(OPTIONS, LIMITS)
    lows = poisson(Random(1), 1000.0, 0.1, LOW)
    driver.play([(100.0, request) for _, request in lows])
    assert len(lows) / (driver.now - 100.0) == pytest.approx(LOW_PER_S, rel=0.05)


def decoding(driver: Driver, request: OpenRequest, num_tokens: int = 3) -> None:
    peer = driver.open(request)
    while len(peer.reply) < num_tokens:
        driver.tick()


@pytest.mark.parametrize("priority", [Priority.MEDIUM, Priority.HIGH])
def test_a_prompt_above_low_pauses_low_replies_which_keep_their_kv_and_go_on_exactly(
    priority: Priority,
) -> None:
    driver = Driver(OPTIONS, LIMITS)
    low = replace(LOW, sampling=SamplingParams(max_tokens=60, temperature=0.9, seed=5))
    decoding(driver, low)
    begun = list(driver.peers[1000].reply)
    high = driver.open(replace(HIGH, prompt=(9, *PROMPT), priority=priority))
    batch = driver.schedule()
    assert batch is not None
    assert [part.session.session_id for part in batch.scheduled] == [1]
    assert driver.scheduler.load().paused_sessions == 1
    driver.run(batch)
    assert high.commits and driver.peers[1000].reply == begun
    driver.finish()
    assert sum(len(batch.opened) for batch in driver.batches) == 2, "the KV was dropped"
    assert tuple(driver.peers[1000].reply) == reference(low, OPTIONS)


def test_medium_replies_go_on_beside_a_high_prompt() -> None:
    driver = Driver(OPTIONS, LIMITS)
    decoding(driver, replace(LOW, priority=Priority.MEDIUM))
    before = len(driver.peers[1000].reply)
    driver.open(replace(HIGH, prompt=(9, *PROMPT)))
    driver.tick()
    assert len(driver.peers[1000].reply) > before
    driver.finish()


def test_drafts_for_a_paused_session_are_kept() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, prefill_chunk_tokens=20))
    request = replace(LOW, region_drafts=False)
    decoding(driver, request)
    peer = driver.peers[1000]
    driver.open(replace(HIGH, prompt=(9, *PROMPT)))
    driver.tick()
    assert driver.scheduler.load().paused_sessions == 1
    text, base = reference(request, OPTIONS), len(peer.reply)
    driver.draft(1000, Draft(1, base, text[base : base + 4]))
    while len(peer.reply) == base:
        driver.tick()
    assert peer.commits[-1].epoch == 1 and peer.commits[-1].accepted >= 3
    driver.finish()


def test_drafts_for_a_preempted_session_are_kept() -> None:
    options = replace(OPTIONS, block_tokens=4, num_blocks=18, scratch_tokens=0)
    driver = Driver(options, LIMITS)
    low = replace(LOW, prompt=PROMPT[:20], sampling=SamplingParams(max_tokens=40, ignore_eos=True))
    low = replace(low, region_drafts=False)
    decoding(driver, low)
    peer = driver.peers[1000]
    high = driver.open(replace(HIGH, prompt=(9, *PROMPT, 5, 6, 7)))
    driver.tick()
    assert driver.scheduler.load().queued_sessions == 1
    text, base = reference(low, options), len(peer.reply)
    driver.draft(1000, Draft(1, base, text[base : base + 4]))
    while len(peer.reply) == base:
        driver.tick()
    assert high.finished is not None
    assert (peer.commits[-1].epoch, peer.commits[-1].accepted) == (1, 4)
    driver.finish()
    assert tuple(peer.reply) == text


def test_high_takes_the_places_of_low_replies_and_gives_them_back() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, max_sessions=2, max_pause_ms=10_000.0))
    for number in (1000, 1001, 1002):
        driver.open(replace(LOW, session_id=number, prompt=(number % 50, *PROMPT)))
    while not driver.peers[1001].commits:
        driver.tick()
    for number in (1, 2):
        driver.open(replace(HIGH, session_id=number, prompt=(number, *PROMPT)))
    driver.tick()
    load = driver.scheduler.load()
    assert (load.running_sessions, load.paused_sessions, load.queued_sessions) == (2, 2, 1)
    while any(driver.peers[number].finished is None for number in (1, 2)):
        driver.tick()
    driver.tick()
    load = driver.scheduler.load()
    assert (load.running_sessions, load.paused_sessions, load.queued_sessions) == (2, 0, 1)
    driver.finish()
    assert sum(len(batch.opened) for batch in driver.batches) == 5
    for number in (1000, 1001, 1002):
        request = replace(LOW, prompt=(number % 50, *PROMPT))
        assert is_exact(driver.peers[number], request, OPTIONS)


def test_endless_high_prompts_do_not_starve_low_replies_nor_low_prompts() -> None:
    """There is always a HIGH prompt to compute, so LOW sessions live on their turns as guests."""
    limits = replace(LIMITS, max_pause_ms=200.0, max_sessions=8)
    driver = Driver(OPTIONS, limits)
    decoding(driver, LOW)
    driver.open(replace(LOW, session_id=1001, prompt=(9, 9, *PROMPT)))
    short = SamplingParams(max_tokens=1)
    begin, number = driver.now, 1
    while driver.now < begin + 10.0:
        fresh = (3 + number % 60, 4 + number // 60)
        driver.open(replace(HIGH, session_id=number, prompt=(*fresh, *PROMPT), sampling=short))
        number += 1
        driver.tick()
    turns = {
        session: sum(
            batch.scheduled_at > begin
            and any(p.session.session_id == session for p in batch.scheduled)
            for batch in driver.batches
        )
        for session in (1000, 1001)
    }
    assert all(10.0 / 0.2 * 0.5 <= count for count in turns.values()), turns
    assert len(driver.peers[1000].reply) > 20
    assert driver.peers[1001].commits
    driver.finish()
    assert is_exact(driver.peers[1000], LOW, OPTIONS)


@pytest.mark.parametrize("state", [SchedulingState.DECODING, SchedulingState.PREFILLING])
def test_cancelling_a_session_that_makes_way_frees_everything(state: SchedulingState) -> None:
    driver = Driver(OPTIONS, replace(LIMITS, prefill_chunk_tokens=20))
    driver.open(LOW)
    driver.tick()
    while state is SchedulingState.DECODING and not driver.peers[1000].commits:
        driver.tick()
    driver.open(replace(HIGH, prompt=(9, *PROMPT)))
    driver.tick()
    driver.cancel(1000)
    driver.finish()
    assert driver.peers[1].finished is not None
