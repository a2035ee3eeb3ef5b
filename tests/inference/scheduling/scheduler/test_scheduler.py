"""What the scheduler promises its sessions, one promise a test."""

from __future__ import annotations

import pytest

from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Priority
from services.inference.scheduling.events import ClassLoad
from services.inference.scheduling.limits import SchedulerLimits
from tests.inference.scheduling.driver import Driver, reference
from tests.inference.scheduling.scheduler.requests import OPTIONS, prompts, request


def test_all_ready_sessions_share_every_call() -> None:
    driver = Driver(OPTIONS)
    for number, prompt in enumerate(prompts(8)):
        driver.open(request(number, prompt))
    driver.finish()
    whole = [plan for plan in driver.plans if all(part.num_rows for part in plan.rounds)]
    assert sum(len(plan.rounds) == 8 for plan in whole) >= 25
    for number, prompt in enumerate(prompts(8)):
        assert tuple(driver.peers[number].reply) == reference(request(0, prompt), OPTIONS)


def test_resuming_goes_on_as_if_nothing_had_happened() -> None:
    sampling = SamplingParams(
        max_tokens=30, temperature=0.9, seed=3, repetition_penalty=1.2, ignore_eos=True
    )
    truth = reference(request(sampling=sampling), OPTIONS)
    for done in (1, 7, 29, 30):
        driver = Driver(OPTIONS)
        peer = driver.open(request(sampling=sampling, resume=truth[:done]))
        driver.finish()
        assert tuple(peer.reply) == truth
        assert peer.finished is not None and peer.finished.reason is FinishReason.LENGTH


def test_plans_are_answered_in_turn() -> None:
    driver = Driver(OPTIONS)
    driver.open(request())
    plan = driver.decide()
    assert plan is not None
    with pytest.raises(RuntimeError, match="neither applied nor failed"):
        driver.scheduler.decide(driver.now)
    driver.run(plan)
    with pytest.raises(RuntimeError, match="not the plan in flight"):
        driver.scheduler.apply(plan, [], driver.now)


def test_load_tells_what_is_there_of_each_class() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2))
    classes = (Priority.LOW, Priority.LOW, Priority.MEDIUM, Priority.HIGH)
    for number, (prompt, priority) in enumerate(zip(prompts(4), classes, strict=True)):
        driver.open(request(number, prompt, priority=priority))
    load = driver.scheduler.load()
    assert load.queued_sessions == 4 and load.queued_prompt_tokens == 4 * 21
    assert load.low == ClassLoad(2, 2 * 21)
    assert load.medium == ClassLoad(1, 21)
    driver.finish()
    assert driver.scheduler.load().low == driver.scheduler.load().medium == ClassLoad()


def test_load_counts_no_prompt_tokens_that_are_cached_and_tells_how_long_sessions_stay() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2))
    assert driver.scheduler.load().stay_ms == 0.0
    driver.open(request(0))
    driver.finish()
    assert driver.scheduler.load().stay_ms > 0.0
    for number in (1, 2, 3):
        driver.open(request(number))
    assert driver.scheduler.load().queued_prompt_tokens < 3 * OPTIONS.block_tokens
    driver.finish()


def test_load_tells_what_is_there_and_what_it_costs() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2, fixed_ms=8.0, row_ms=1.0))
    for number, prompt in enumerate(prompts(3)):
        driver.open(request(number, prompt))
    assert driver.scheduler.load().queued_prompt_tokens == 3 * 21
    driver.tick()
    load = driver.scheduler.load()
    assert (load.running_sessions, load.queued_sessions, load.max_sessions) == (2, 1, 2)
    assert load.queued_prompt_tokens == 21
    assert load.kv_blocks_total == 256
    assert load.kv_blocks_free == 256 - 2 * 6
    assert load.fixed_ms + 10 * load.row_ms == pytest.approx(18.0, rel=0.05)
    driver.finish()
