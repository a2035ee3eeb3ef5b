"""Sessions that nobody has asked for yet: in nobody's way, and exact."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.fake import FakeOptions
from outrider.errors import OverloadedError
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority
from outrider.speculation.learnt import BINDING_BYTES, KeptGroups
from services.inference.scheduler.background import BackgroundShare
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import OPTIONS, PROMPT, Driver, reference, request
from tests.inference.scheduler.workload import Arrivals, poisson

OWN, OTHER = b"m" * 16, b"o" * 16
"""Trust groups."""
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)


def background(
    session: int = 900, prompt: tuple[int, ...] = PROMPT, **changes: object
) -> OpenRequest:
    fields: dict[str, object] = {
        "sampling": SHORT,
        "priority": Priority.LOW,
        "is_background": True,
        "edge_drafts": False,
    }
    return request(session, prompt, **(fields | changes))


def decoding(driver: Driver, session: int, num_tokens: int = 2) -> None:
    while len(driver.peers[session].reply) < num_tokens:
        assert driver.tick()


def test_alone_it_is_exact() -> None:
    driver = Driver(OPTIONS)
    asked = background()
    peer = driver.open(asked)
    driver.finish()
    assert tuple(peer.reply) == reference(asked, OPTIONS)


@pytest.mark.parametrize("priority", list(Priority))
def test_while_another_session_is_there_it_takes_part_in_no_call(priority: Priority) -> None:
    driver = Driver(OPTIONS)
    driver.open(background())
    decoding(driver, 900)
    before = len(driver.batches)
    asked = request(1, prompt=(40, *PROMPT), priority=priority)
    peer = driver.open(asked)
    while peer.finished is None:
        assert driver.tick()
    for batch in driver.batches[before:]:
        assert not batch.is_background or not any(
            it.session.session_id == 1 for it in batch.scheduled
        )
        kinds = {it.session.is_background for it in batch.scheduled}
        assert kinds == {False}
    assert tuple(peer.reply) == reference(asked, OPTIONS)
    driver.finish()
    assert tuple(driver.peers[900].reply) == reference(background(), OPTIONS), "it goes on then"


def test_new_ones_wait_while_another_session_is_there() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request(1))
    decoding(driver, 1)
    driver.open(background(prompt=(41, *PROMPT)))
    while peer.finished is None:
        assert driver.tick()
    assert not driver.peers[900].reply
    driver.finish()


def test_they_give_their_memory_to_every_other_session() -> None:
    options = replace(OPTIONS, num_blocks=24, block_tokens=4)
    driver = Driver(options)
    driver.open(background(sampling=SamplingParams(max_tokens=40, ignore_eos=True)))
    decoding(driver, 900, 20)
    asked = request(
        1, prompt=tuple(3 + number % 40 for number in range(50))[::-1], priority=Priority.LOW
    )
    asked = replace(asked, sampling=SHORT)
    peer = driver.open(asked)
    while peer.finished is None:
        assert driver.tick()
    assert tuple(peer.reply) == reference(asked, options)
    driver.cancel(900)
    driver.finish()


def test_the_places_of_others_are_free() -> None:
    limits = SchedulerLimits(max_sessions=2, max_background_sessions=8)
    driver = Driver(OPTIONS, limits)
    for number in range(4):
        driver.open(background(900 + number, (50 + number, *PROMPT)))
    for _ in range(3):
        driver.tick()
    first = driver.open(request(1, sampling=SHORT))
    second = driver.open(request(2, prompt=(40, *PROMPT), sampling=SHORT))
    num_calls = len(driver.batches)
    while first.finished is None or second.finished is None:
        assert driver.tick()
    assert all(not batch.is_background for batch in driver.batches[num_calls:])
    driver.finish()


def test_the_call_that_others_have_to_wait_for_is_short() -> None:
    options = FakeOptions(block_tokens=32, num_blocks=400, fixed_ms=9.0, row_ms=1.0)
    driver = Driver(options, SchedulerLimits(fixed_ms=9.0, row_ms=1.0))
    driver.open(background(prompt=tuple(3 + number % 60 for number in range(500))))
    while driver.tick():
        assert driver.engine.step_ms <= 9.0 + 1.0 * 24, "low_tick_ms, about"


def test_where_calls_take_long_anyway_its_prompt_is_not_cut_into_crumbs() -> None:
    options = FakeOptions(block_tokens=32, num_blocks=400, fixed_ms=30.0, row_ms=0.1)
    driver = Driver(options, SchedulerLimits(fixed_ms=30.0, row_ms=0.1))
    peer = driver.open(background(prompt=tuple(3 + number % 60 for number in range(60))))
    while not peer.reply:
        assert driver.tick()
    assert len(driver.batches) == 1
    driver.finish()


def test_others_have_the_same_times_with_them_and_without() -> None:
    options = FakeOptions(block_tokens=32, num_blocks=1200, fixed_ms=9.0, row_ms=1.0)
    limits = SchedulerLimits(fixed_ms=9.0, row_ms=1.0, max_background_share=1.0)
    chat = request(1, prompt=PROMPT * 3, sampling=SHORT)
    chats = poisson(Random(5), 2.0, 20.0, chat)
    alone, beside = Arrivals(options, limits), Arrivals(options, limits)
    alone.play(chats)
    numbers = [asked.session_id for _, asked in chats]

    ahead = [
        (at - 0.2, background(5000 + number, (40 + number % 9, *PROMPT)))
        for number, (at, _) in enumerate(chats)
    ]
    beside.play(sorted([*chats, *ahead], key=lambda it: it[0]))
    extra = [
        one - other
        for one, other in zip(beside.ttfts_ms(numbers), alone.ttfts_ms(numbers), strict=True)
    ]
    assert max(extra) <= 21.0, "the call under way, which is short"


def test_they_are_refused_where_others_wait_or_there_are_enough() -> None:
    limits = SchedulerLimits(max_background_sessions=1)
    driver = Driver(OPTIONS, limits)
    driver.open(background())
    with pytest.raises(OverloadedError, match="nobody has asked"):
        driver.scheduler.open(background(901), driver.now)
    driver.cancel(900)
    driver.open(background(902))
    driver.cancel(902)
    driver.finish()
    none = Driver(OPTIONS, SchedulerLimits(max_background_sessions=0))
    with pytest.raises(OverloadedError):
        none.scheduler.open(background(), none.now)


def test_they_have_no_more_than_their_share_of_the_time() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_background_share=0.001))
    taken_s = 0.0
    for number in range(20):
        try:
            driver.open(background(900 + number, (3 + number, *PROMPT)))
        except OverloadedError as error:
            assert error.retry_delay_ms > 0
            break
        began = driver.now
        while driver.tick():
            pass
        taken_s += driver.now - began
    else:
        raise AssertionError("never refused")
    assert 0.001 * 60.0 <= taken_s <= 0.001 * 60.0 + 1.0, "one session more at most"


def test_load_reports_leave_them_out() -> None:
    driver = Driver(OPTIONS)
    driver.open(background())
    decoding(driver, 900)
    load = driver.scheduler.load()
    assert load.running_sessions == load.queued_sessions == load.low.sessions == 0
    driver.cancel(900)
    driver.finish()


def test_what_they_read_and_say_teaches_nothing_and_is_found_by_their_group_alone() -> None:
    driver = Driver(OPTIONS, kept=KeptGroups(b"b" * BINDING_BYTES, 4096, 1 << 20))
    learnt, asked = driver.scheduler._statistics, background(cache_salt=OWN, group_lasts=True)
    before = driver.scheduler.load()
    driver.open(asked)
    driver.finish()
    assert not learnt.version_of(OWN) and not driver.scheduler.take_learnt()
    after = driver.scheduler.load()
    assert after.kv_hits == before.kv_hits and after.service_ms == before.service_ms

    chat: dict[str, Any] = {"sampling": SHORT, "region_drafts": True, "group_lasts": True}
    for session, salt in enumerate((OTHER, b"", OWN)):
        opened = driver.open(request(session, cache_salt=salt, **chat)).opened
        assert opened is not None and (opened.cached_tokens > 0) == (salt == OWN)
        driver.finish()
    assert learnt.version_of(OWN) and learnt.version_of(OTHER), "chats do teach"
    assert driver.scheduler.load().kv_hits.prompt_tokens == 3 * len(PROMPT)


@given(
    share=st.floats(0.0, 1.0),
    calls=st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0.0, 30.0)), max_size=80),
)
def test_over_any_time_the_share_is_kept(share: float, calls: list[tuple[float, float]]) -> None:
    """Each call is made only if it may begin; together they take the share of the time that has
    passed, a window's worth of it, and one call."""
    kept, now, taken_s, start = BackgroundShare(share), 100.0, 0.0, 100.0
    for took_s, pause_s in calls:
        now += pause_s
        if kept.wait_s(now):
            continue
        now += took_s
        kept.charge(took_s, now)
        taken_s += took_s
        assert taken_s <= share * (now - start + 60.0) + 0.2 + 1e-6
    assert share or not taken_s
