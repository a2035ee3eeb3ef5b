"""How prompts share the calls with one another and with those who decode."""

from __future__ import annotations

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.session_types import Priority
from services.inference.scheduling.events import OpenRequest
from services.inference.scheduling.limits import SchedulerLimits
from tests.inference.scheduling.driver import PROMPT, Driver
from tests.inference.scheduling.scheduler.requests import LONG, OPTIONS, prompts, request


def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    limits = SchedulerLimits(max_tick_ms=40.0, fixed_ms=8.0, row_ms=1.0)
    driver = Driver(OPTIONS, limits)
    peer = driver.open(request(1, sampling=SamplingParams(max_tokens=200, ignore_eos=True)))
    driver.tick()
    driver.open(request(2, tuple(3 + n % 50 for n in range(800))))
    while not driver.peers[2].commits:
        before = len(peer.reply)
        driver.tick()
        assert len(peer.reply) > before
        assert driver.engine.step_ms <= 41.0
    assert peer.commits[-1].commit_interval_ms <= 41.0


def test_those_who_decode_do_not_stall_a_long_prompt() -> None:
    limits = SchedulerLimits(max_sessions=4, max_batch_tokens=14, prefill_chunk_tokens=64)
    driver = Driver(OPTIONS, limits)
    for number, prompt in enumerate(prompts(3)):
        driver.open(request(number, prompt, sampling=SamplingParams(max_tokens=99)))
    for _ in range(15):
        driver.tick()
    driver.open(request(9, tuple(range(3, 43))))
    for _ in range(10):
        driver.tick()
    assert driver.peers[9].commits


def long_and_short(short: OpenRequest, **changes: object) -> Driver:
    """A long prompt is being computed when a short one comes."""
    options = FakeOptions(block_tokens=4, num_blocks=2048, fixed_ms=8.0, row_ms=1.0)
    driver = Driver(options, SchedulerLimits(prefill_chunk_tokens=100))
    driver.open(request(1, tuple(3 + n % 50 for n in range(1500)), **changes))
    driver.tick()
    driver.open(short)
    return driver


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    driver = long_and_short(request(2))
    driver.tick()
    assert driver.peers[2].commits
    assert driver.plans[-1].num_tokens == 100
    while not driver.peers[1].commits:
        driver.tick()
    driver.finish()


def test_short_prompts_take_half_from_a_long_one_and_no_more() -> None:
    driver = long_and_short(request(2, (9, *PROMPT)))
    for number in range(3, 9):
        driver.open(request(number, (9, number, *PROMPT)))
    driver.tick()
    tokens = {part.session.number: part.num_tokens for part in driver.plans[-1].parts}
    assert tokens == {1: 50, 2: 21, 3: 22, 4: 7}
    driver.finish()


@pytest.mark.parametrize(
    "late", [request(2, (9,) * 351), request(2, priority=Priority.LOW, sampling=LONG)]
)
def test_neither_a_long_prompt_nor_a_lower_priority_overtakes(late: OpenRequest) -> None:
    driver = long_and_short(late)
    driver.tick()
    assert [part.session.number for part in driver.plans[-1].parts] == [1]
    driver.finish()


def test_alone_a_prompt_takes_the_largest_chunks() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(prefill_chunk_tokens=100, max_tick_ms=10.0))
    driver.open(request(1, tuple(3 + n % 50 for n in range(250))))
    driver.tick()
    driver.tick()
    driver.tick()
    assert [plan.num_tokens for plan in driver.plans] == [100, 100, 50]
    assert driver.peers[1].commits


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = Driver(OPTIONS)
    first = driver.open(request(1))
    driver.finish()
    second = driver.open(request(2))
    other = driver.open(request(3, cache_salt=b"another tenant"))
    assert second.opened is not None and second.opened.cached_tokens == 18
    assert other.opened is not None and other.opened.cached_tokens == 0
    driver.finish()
    assert second.finished is not None and second.finished.usage.cached_tokens == 18
    assert first.reply == second.reply == other.reply


def test_equal_prompts_that_arrive_together_share_their_chunks() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(prefill_chunk_tokens=8))
    for number in range(4):
        driver.open(request(number, sampling=SamplingParams(max_tokens=1)))
    driver.finish()
    assert sum(plan.num_tokens for plan in driver.plans) <= len(PROMPT) + 3 * (2 + 4)
