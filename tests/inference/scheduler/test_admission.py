"""Who is let in: objectives, deadlines, overload; by a scheduler in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.fake import FakeOptions
from outrider.errors import DeadlineError, OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason, Priority
from services.inference.scheduler.admission import (
    THRESHOLDS,
    Forecast,
    Overload,
    QueueAhead,
)
from services.inference.scheduler.cost_model import CostModel
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import KvHolder, OpenRequest, OverloadLevel
from tests.inference.letters import new_reply
from tests.inference.scheduler.driver import Driver, reference
from tests.inference.scheduler.workload import Arrivals

OPTIONS = FakeOptions(block_tokens=16, num_blocks=600, fixed_ms=10.0, row_ms=1.0)
LIMITS = SchedulerLimits(max_sessions=4, fixed_ms=10.0, row_ms=1.0)
REQUEST = OpenRequest(
    1,
    tuple(3 + number % 50 for number in range(100)),
    SamplingParams(max_tokens=40, ignore_eos=True),
    region_drafts=False,
)


def numbered(number: int, **changes: object) -> OpenRequest:
    prompt = (3 + number % 50, 4 + number // 50, *REQUEST.prompt)
    return replace(REQUEST, session_id=number, prompt=prompt, **changes)  # type: ignore[arg-type]


def test_a_deadline_that_cannot_be_met_even_alone_is_refused() -> None:
    driver = Driver(OPTIONS, LIMITS)
    with pytest.raises(DeadlineError, match="even on an idle replica"):
        driver.open(numbered(1, deadline=driver.now + 0.04))
    assert not driver.scheduler.has_work
    driver.open(numbered(2, deadline=driver.now + 0.13))
    driver.finish()
    assert driver.peers[2].commits, "it was possible alone"


def test_a_cached_prompt_needs_less_time() -> None:
    driver = Driver(OPTIONS, LIMITS)
    driver.open(numbered(1))
    driver.finish()
    driver.open(replace(numbered(1), session_id=2, deadline=driver.now + 0.04))
    driver.finish()
    assert driver.peers[2].commits


def test_a_session_whose_group_has_its_prompt_is_not_ended_as_late() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, max_sessions=1))
    driver.open(numbered(1, cache_salt=b"group"))
    driver.finish()
    driver.open(numbered(2))
    driver.tick()
    asked = numbered(1, cache_salt=b"group", deadline=driver.now + 0.04)
    driver.open(replace(asked, session_id=3))
    driver.take(driver.scheduler.expire(driver.now))
    assert driver.scheduler.is_waiting(3)
    driver.take(driver.scheduler.expire(driver.now + 0.038))
    finished = driver.peers[3].finished
    assert finished is not None and finished.reason is FinishReason.DEADLINE


@pytest.mark.parametrize("source", ["peer", "store"])
def test_what_may_be_loaded_needs_less_time(source: str) -> None:
    """Only what is left to compute has to be done by the deadline."""
    num_tokens = len(REQUEST.prompt) // OPTIONS.block_tokens * OPTIONS.block_tokens
    driver, holder = Driver(OPTIONS, LIMITS), None
    if source == "peer":
        holder = KvHolder("r2", "here", "127.0.0.1:1", num_tokens)
    else:
        driver.scheduler = Scheduler(driver.engine.info, LIMITS, new_reply, num_stored=num_tokens)
    with pytest.raises(DeadlineError, match="even on an idle replica"):
        driver.open(numbered(1, deadline=driver.now + 0.002, kv_holder=holder))
    peer = driver.open(numbered(2, deadline=driver.now + 0.04, kv_holder=holder))
    driver.take(driver.scheduler.expire(driver.now))
    assert driver.scheduler.has_work
    driver.take(driver.scheduler.expire(driver.now + 0.038))
    assert peer.finished is not None and peer.finished.reason is FinishReason.DEADLINE


def test_a_session_that_waited_too_long_is_ended_and_not_computed() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, max_sessions=1))
    driver.open(numbered(1))
    peer = driver.open(numbered(2, deadline=driver.now + 0.2))
    while peer.finished is None:
        driver.tick()
    assert peer.finished.reason is FinishReason.DEADLINE
    assert driver.now < 100.2, "it was ended before its deadline: the rest cannot be computed"
    assert not any(
        part.session.session_id == 2 for batch in driver.batches for part in batch.scheduled
    )
    driver.finish()


def test_no_token_is_computed_that_would_come_too_late() -> None:
    driver = Driver(OPTIONS, LIMITS)
    peer = driver.open(numbered(1, deadline=driver.now + 0.3))
    driver.finish()
    assert peer.finished is not None and peer.finished.reason is FinishReason.DEADLINE
    text = reference(numbered(1), OPTIONS)
    assert 0 < len(peer.reply) < 40 and tuple(peer.reply) == text[: len(peer.reply)]


def test_nobody_is_refused_without_an_objective() -> None:
    driver = Driver(OPTIONS, LIMITS)
    for number in range(100):
        driver.open(numbered(number))
    assert driver.scheduler.load().queued_sessions == 100


def test_a_first_token_that_would_miss_the_objective_is_refused_with_a_delay() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, slo_ttft_medium_ms=1000.0))
    opened, delays = 0, []
    for number in range(40):
        try:
            driver.open(numbered(number))
            opened += 1
        except OverloadedError as error:
            delays.append(error.retry_delay_ms)
    assert 3 <= opened <= 12
    assert all(1 <= delay < 2000 for delay in delays)
    driver.open(numbered(50, priority=Priority.LOW))
    driver.open(numbered(51, priority=Priority.HIGH))
    text = reference(numbered(52), OPTIONS)
    driver.open(numbered(52, resume=text[:5]))  # it was let in before, elsewhere
    driver.finish()
    assert all(peer.finished is not None for peer in driver.peers.values())


def test_forecasts_hold() -> None:
    """What sessions were promised when they came, against what they got."""
    promised: dict[int, float] = {}

    class Watching(Forecast):
        def ttft_ms(self, num_tokens: int, ahead: QueueAhead) -> float:
            predicted = super().ttft_ms(num_tokens, ahead)
            if num_tokens > 1:
                promised[len(promised) + 1] = predicted
            return predicted

    driver = Arrivals(OPTIONS, replace(LIMITS, slo_ttft_medium_ms=1e9))
    driver.scheduler._admission.forecast = Watching(driver.limits, driver.scheduler._cost)
    driver.play([(100.0 + 0.2 * number, numbered(number)) for number in range(1, 61)])
    late = range(20, 61)
    got = sum(driver.ttfts_ms(late))
    assert 0.5 * got <= sum(promised[number] for number in late) <= 1.5 * got


def test_a_forecast_grows_with_what_is_ahead() -> None:
    forecast = Forecast(LIMITS, CostModel(10.0, 1.0))
    free = QueueAhead(num_sessions=0, num_free_slots=4, prompt_tokens=0, num_replying=0)
    assert forecast.ttft_ms(100, free) == pytest.approx(110.0)
    assert forecast.ttft_ms(100, replace(free, prompt_tokens=500)) > 600.0
    assert forecast.ttft_ms(100, replace(free, num_replying=3)) > 110.0
    full = replace(free, num_sessions=7, num_free_slots=0)
    assert forecast.ttft_ms(100, full) == pytest.approx(110.0), "nobody has left yet"
    forecast.observe_service(1000.0, 40)
    assert forecast.ttft_ms(100, full) == pytest.approx(110.0 + 8 * 1000.0 / 4)


def test_a_full_queue_of_low_sessions_keeps_no_high_one_out() -> None:
    driver = Driver(OPTIONS, replace(LIMITS, max_queue=2))
    for number in range(6):
        driver.open(numbered(number, priority=Priority.LOW))
    with pytest.raises(OverloadedError):
        driver.open(numbered(6, priority=Priority.LOW))
    high = driver.open(numbered(7, priority=Priority.HIGH))
    driver.tick()
    assert high.commits
    driver.finish()


def overloaded(**changes: float) -> Driver:
    driver = Driver(OPTIONS, replace(LIMITS, max_queue=8, **changes))  # type: ignore[arg-type]
    return driver


def test_what_is_given_up_comes_in_order_and_is_taken_up_again() -> None:
    driver = overloaded()
    levels = [driver.scheduler.load().overload_level]
    for number in range(12):
        driver.open(numbered(number))
        driver.tick()
        levels.append(driver.scheduler.load().overload_level)
    assert levels == sorted(levels)
    assert set(levels) == set(OverloadLevel)
    with pytest.raises(OverloadedError):
        driver.open(numbered(13))
    driver.finish()
    driver.now += 10.0
    for number in range(20, 25):
        driver.now += 1.1
        driver.open(numbered(number, sampling=SamplingParams(max_tokens=1)))
        driver.finish()
    assert driver.scheduler.load().overload_level == OverloadLevel.NORMAL


def test_overload_stops_drafts_that_cost_rows() -> None:
    options = replace(OPTIONS, row_ms=0.1)
    driver = Driver(options, replace(LIMITS, max_queue=4, row_ms=0.1))
    texts = {number: reference(numbered(number), OPTIONS) for number in range(4)}
    for number in range(4):
        driver.open(numbered(number))
    while len(driver.peers[3].reply) < 3:
        driver.tick()

    def tick_with_drafts() -> bool:
        for number, text in texts.items():
            base = len(driver.peers[number].reply)
            epoch = len(driver.batches)
            driver.draft(number, Draft(epoch, base, text[base : base + 5]))
        driver.tick()
        return any(part.num_drafts for part in driver.batches[-1].scheduled)

    assert tick_with_drafts()
    for number in range(4, 7):
        driver.open(numbered(number))
    assert not tick_with_drafts()
    assert driver.scheduler.load().overload_level >= OverloadLevel.NO_DRAFTS
    driver.finish()


def test_low_sessions_stay_in_the_queue_while_others_are_served() -> None:
    driver = overloaded()
    for number in range(11):
        driver.open(numbered(number))
    low = driver.open(numbered(20, priority=Priority.LOW))
    driver.tick()
    assert driver.scheduler.load().overload_level >= OverloadLevel.QUEUE_LOW
    while any(driver.peers[number].finished is None for number in range(8)):
        driver.tick()
        assert not low.commits
    driver.finish()
    assert low.finished is not None
    assert tuple(low.reply) == reference(numbered(20), OPTIONS)


def test_a_replica_whose_sessions_have_all_gone_refuses_nobody() -> None:
    """No router sends a session to one that refuses, and without one it would stay at that."""
    driver = overloaded()
    for number in range(12):
        driver.open(numbered(number))
    driver.tick()
    assert driver.scheduler.load().overload_level == OverloadLevel.REFUSE
    for number in range(12):
        driver.cancel(number)
    while driver.scheduler.has_work:
        driver.tick()
    assert driver.scheduler.load().overload_level == OverloadLevel.NORMAL


def test_many_low_sessions_are_no_overload() -> None:
    driver = overloaded()
    for number in range(12):
        driver.open(numbered(number, priority=Priority.LOW))
    driver.tick()
    assert driver.scheduler.load().overload_level == OverloadLevel.NORMAL
    driver.finish()


@pytest.mark.parametrize(
    ("pressure", "level"),
    [
        (0.0, OverloadLevel.NORMAL),
        (0.24, OverloadLevel.NORMAL),
        (0.25, OverloadLevel.NO_DRAFTS),
        (0.6, OverloadLevel.SMALL_CHUNKS),
        (0.99, OverloadLevel.QUEUE_LOW),
        (7.0, OverloadLevel.REFUSE),
    ],
)
def test_it_rises_at_once_to_where_the_pressure_is(pressure: float, level: OverloadLevel) -> None:
    assert Overload().update(pressure, 5.0) is level


def test_it_falls_a_level_a_second_once_the_pressure_is_gone() -> None:
    overload = Overload()
    overload.update(1.0, 10.0)
    seen = [overload.update(0.0, 10.0 + 0.25 * step) for step in range(1, 20)]
    assert seen[2] is OverloadLevel.REFUSE and seen[3] is OverloadLevel.QUEUE_LOW
    assert seen[7] is OverloadLevel.SMALL_CHUNKS and seen[-1] is OverloadLevel.NORMAL


def test_a_pressure_just_below_the_threshold_holds_the_level() -> None:
    overload = Overload()
    overload.update(0.5, 10.0)
    for step in range(100):
        assert overload.update(0.36 + 0.13 * (step % 2), 10.0 + step) is OverloadLevel.SMALL_CHUNKS


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 3.0)), max_size=60))
def test_it_never_falls_two_levels_at_once_and_is_never_below_what_the_pressure_asks(
    steps: list[tuple[float, float]],
) -> None:
    overload, now, levels = Overload(), 0.0, [OverloadLevel.NORMAL]
    for pressure, wait_s in steps:
        now += wait_s
        level = overload.update(pressure, now)
        assert all(level >= n for n, least in THRESHOLDS.items() if pressure >= least)
        levels.append(level)
    assert all(before - after <= 1 for before, after in pairwise(levels))
