"""Sessions that are cancelled, and calls that fail."""

from __future__ import annotations

import numpy as np

from outrider.engines.base import Rows
from outrider.errors import EngineError
from outrider.session_types import FinishReason
from services.inference.scheduling.events import Drafts
from services.inference.scheduling.limits import SchedulerLimits
from tests.inference.scheduling.driver import Driver, reference
from tests.inference.scheduling.scheduler.requests import OPTIONS, prompts, request


def test_a_cancelled_session_keeps_its_blocks_until_the_call_returns() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    plan = driver.decide()
    assert plan is not None
    driver.cancel(1)
    assert peer.finished is not None and peer.finished.reason is FinishReason.CANCELLED
    assert driver.scheduler.load().kv_blocks_free < driver.engine.info.num_blocks
    driver.run(plan)
    assert peer.commits == []
    assert driver.scheduler.load().kv_blocks_free == driver.engine.info.num_blocks
    driver.finish()


def test_a_number_may_be_used_again_while_its_old_session_is_in_flight() -> None:
    driver = Driver(OPTIONS)
    driver.open(request())
    plan = driver.decide()
    assert plan is not None
    driver.cancel(1)
    fresh = request(1, prompts(1)[0])
    driver.open(fresh)
    driver.run(plan)
    driver.finish()
    assert tuple(driver.peers[1].reply) == reference(fresh, OPTIONS)


def test_cancelling_what_is_gone_does_nothing() -> None:
    driver = Driver(OPTIONS)
    assert driver.scheduler.cancel(5, driver.now) == []
    driver.scheduler.draft(5, Drafts(0, 0, (1,)), driver.now)
    assert not driver.scheduler.has_work


def test_an_engine_failure_ends_the_sessions_in_the_call_and_no_others() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    hit = driver.open(request(1))
    spared = driver.open(request(2))
    plan = driver.decide()
    assert plan is not None
    error = EngineError("the device went away")
    driver.take(driver.scheduler.fail(plan, error))
    assert hit.failed is not None and hit.failed.error is error
    driver.finish()
    assert tuple(spared.reply) == reference(request(2), OPTIONS)


def test_a_row_that_is_not_finite_ends_its_own_session_only() -> None:
    driver = Driver(OPTIONS)
    hit, spared = driver.open(request(1)), driver.open(request(2, prompts(1)[0]))
    plan = driver.decide()
    assert plan is not None
    rows = plan.run(driver.engine)
    rows[0] = Rows(np.full_like(rows[0].logits, np.nan))
    driver.take(driver.scheduler.apply(plan, rows, driver.now))
    assert hit.failed is not None and isinstance(hit.failed.error, EngineError)
    driver.finish()
    assert tuple(spared.reply) == reference(request(2, prompts(1)[0]), OPTIONS)


def test_an_engine_that_answers_too_little_fails_the_call() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    plan = driver.decide()
    assert plan is not None
    driver.take(driver.scheduler.apply(plan, [], driver.now))
    assert peer.failed is not None and "1 rounds with 0" in peer.failed.error.message
