"""The scheduler on the fake engine: prompts, drafts and ends of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from outrider.engines.base import LogitsRows
from outrider.engines.fake import FakeOptions
from outrider.errors import EngineError
from outrider.sampling import whole_rows
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from outrider.session.types import FinishReason, Priority
from services.inference.scheduler.draft_sources import MAX_UNSEEN_TOKENS
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import ClassLoad, OpenRequest
from tests.inference.scheduler.driver import (
    LONG,
    OPTIONS,
    PROMPT,
    Driver,
    prompts,
    reference,
    request,
)


def test_all_ready_sessions_share_every_call() -> None:
    driver = Driver(OPTIONS)
    for number, prompt in enumerate(prompts(8)):
        driver.open(request(number, prompt))
    driver.finish()
    whole = [batch for batch in driver.batches if all(part.num_rows for part in batch.slices)]
    assert sum(len(batch.slices) == 8 for batch in whole) >= 25
    for number, prompt in enumerate(prompts(8)):
        assert tuple(driver.peers[number].reply) == reference(request(0, prompt), OPTIONS)


def test_who_has_to_be_alone_is_until_its_first_token_and_nobody_waits_for_it() -> None:
    """Whatever a call with it alone does, it shows that this request is the reason."""
    driver = Driver(OPTIONS, SchedulerLimits(prefill_chunk_tokens=8))
    for number, prompt in enumerate(prompts(5)):
        driver.open(request(number, prompt, goes_alone=number in (1, 3), request_key=10 + number))
    driver.finish()
    calls = [[one.session.session_id for one in batch.scheduled] for batch in driver.batches]
    for number in (1, 3):
        alone = [index for index, ids in enumerate(calls) if ids == [number]]
        assert len(alone) >= 3, "its prompt of 21 tokens, 8 in a call"
        assert all(number not in ids for ids in calls[: alone[-1]] if len(ids) > 1)
        between = range(alone[0], alone[-1])
        assert any(0 in calls[index] for index in between), "the others go on meanwhile"
    for number, prompt in enumerate(prompts(5)):
        assert tuple(driver.peers[number].reply) == reference(request(0, prompt), OPTIONS)


def test_a_call_tells_who_is_new_in_it_and_who_has_no_token_yet() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1, prefill_chunk_tokens=16))
    for number, prompt in enumerate(prompts(2)):
        driver.open(request(number, prompt, request_key=10 + number))
    driver.finish()
    begun = [batch.begun for batch in driver.batches if batch.begun]
    assert begun == [(0,), (1,)], "each once, the second when it had waited"
    new = [batch.new_requests for batch in driver.batches]
    assert new[:3] == [(10,), (10,), ()], "until the call of the first token"
    assert new.count((11,)) == 2


def test_sessions_whose_tokens_noise_alone_decides_are_chosen_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_rows: list[int] = []

    def counted(rows: Sequence[whole_rows.Rivals]) -> list[int]:
        num_rows.append(len(rows))
        return choose(rows)

    choose = whole_rows.choose
    monkeypatch.setattr(whole_rows, "choose", counted)
    plain = SamplingParams(max_tokens=20, temperature=0.8, seed=5, ignore_eos=True)
    options = replace(OPTIONS, min_rows=1)
    driver = Driver(options)
    asked = [request(number, prompt, sampling=plain) for number, prompt in enumerate(prompts(4))]
    for one in asked:
        driver.open(one)
    driver.finish()
    assert num_rows.count(4) >= 15, "a call for all rows of a batch"
    assert len(num_rows) <= len(driver.batches) + 1, "and none besides"
    for one in asked:
        assert tuple(driver.peers[one.session_id].reply) == reference(one, options)


def test_drafts_that_came_during_a_call_are_in_the_next_one() -> None:
    options = replace(OPTIONS, min_rows=1)
    driver, truth = Driver(options), reference(request(), options)
    peer = driver.open(request())
    while len(peer.reply) < 4:
        driver.tick()
    assert driver.scheduler._builder._plan is not None, "of a call like the last one"
    begin = len(peer.reply)
    driver.draft(1, Draft(0, begin, truth[begin : begin + 4]))
    batch = driver.schedule()
    assert batch is not None and batch.scheduled[0].num_drafts > 1
    driver.run(batch)
    driver.finish()
    assert tuple(peer.reply) == truth


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.2}, {"frequency_penalty": 2.0}])
def test_resuming_goes_on_as_if_nothing_had_happened(penalty: dict[str, float]) -> None:
    plain = SamplingParams(max_tokens=30, temperature=0.9, seed=3, ignore_eos=True)
    sampling = replace(plain, **penalty)  # type: ignore[arg-type]
    truth = reference(request(sampling=sampling), OPTIONS)
    for done in (1, 7, 29, 30):
        driver = Driver(OPTIONS)
        peer = driver.open(request(sampling=sampling, resume=truth[:done]))
        driver.finish()
        assert tuple(peer.reply) == truth
        assert peer.finished is not None and peer.finished.reason is FinishReason.LENGTH


def test_batches_are_answered_in_turn() -> None:
    driver = Driver(OPTIONS)
    driver.open(request())
    batch = driver.schedule()
    assert batch is not None
    with pytest.raises(RuntimeError, match="neither postprocessed nor failed"):
        driver.scheduler.schedule(driver.now)
    driver.run(batch)
    with pytest.raises(RuntimeError, match="not the batch in flight"):
        driver.scheduler.postprocess(batch, [], driver.now)


def test_load_tells_what_is_there_of_each_class() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2))
    classes = (Priority.LOW, Priority.LOW, Priority.MEDIUM, Priority.HIGH)
    for number, (prompt, priority) in enumerate(zip(prompts(4), classes, strict=True)):
        driver.open(request(number, prompt, priority=priority))
    load = driver.scheduler.load()
    assert load.queued_sessions == 4 and load.queued_prompt_tokens == 4 * 21
    # Of 21 prompt tokens, 40 of the reply and one of scratch, in blocks of four.
    assert load.low == ClassLoad(2, 2 * 21, 2 * 16)
    assert load.medium == ClassLoad(1, 21, 16)
    driver.finish()
    assert driver.scheduler.load().low == driver.scheduler.load().medium == ClassLoad()


def test_load_counts_no_prompt_tokens_that_are_cached_and_tells_service_times() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2))
    assert driver.scheduler.load().service_ms == 0.0
    driver.open(request(0))
    driver.finish()
    assert driver.scheduler.load().service_ms > 0.0
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


def test_load_tells_what_memory_its_sessions_will_still_take() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=2))
    for number, prompt in enumerate(prompts(3)):
        driver.open(request(number, prompt))
    load = driver.scheduler.load()
    assert (load.kv_blocks_free, load.kv_blocks_owed, load.reply_tokens) == (256, 3 * 16, 0)
    driver.tick()
    load = driver.scheduler.load()
    assert load.kv_blocks_free == 256 - 2 * 6
    for _ in range(20):
        assert load.kv_blocks_free - load.kv_blocks_owed == 256 - 3 * 16
        driver.tick()
        load = driver.scheduler.load()
    driver.finish()
    load = driver.scheduler.load()
    assert (load.kv_blocks_owed, load.reply_tokens) == (0, 40)
    # Replies are expected to be as long as they were, but no longer than they may be.
    for number, (prompt, max_tokens) in enumerate(zip(prompts(9)[7:], (10, 400), strict=True), 3):
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        driver.open(request(number, prompt, sampling=sampling))
    # Six blocks each for the prompts; once the short one ends, the other one grows alone.
    assert driver.scheduler.load().kv_blocks_owed == 2 * 6 + 2 * 10 // 4
    driver.finish()


def test_blocks_that_others_have_are_not_owed() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    driver.open(request(0))
    driver.tick()
    alone = driver.scheduler.load().kv_blocks_owed
    driver.open(request(1))
    # The blocks of the prompt, but for its end, are the first session's, too.
    assert driver.scheduler.load().kv_blocks_owed - alone == 16 - 4
    driver.finish()


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


def test_short_prompts_take_half_from_a_long_one_and_no_more() -> None:
    driver = long_and_short(request(2, (9, *PROMPT)))
    for number in range(3, 9):
        driver.open(request(number, (9, number, *PROMPT)))
    driver.tick()
    tokens = {part.session.session_id: part.num_tokens for part in driver.batches[-1].scheduled}
    assert tokens == {1: 50, 2: 21, 3: 22, 4: 7}
    driver.finish()


@pytest.mark.parametrize(
    "late", [request(2, (9,) * 351), request(2, priority=Priority.LOW, sampling=LONG)]
)
def test_neither_a_long_prompt_nor_a_lower_priority_overtakes(late: OpenRequest) -> None:
    driver = long_and_short(late)
    driver.tick()
    assert [part.session.session_id for part in driver.batches[-1].scheduled] == [1]
    driver.finish()


def test_alone_a_prompt_takes_the_largest_chunks() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(prefill_chunk_tokens=100, max_tick_ms=10.0))
    driver.open(request(1, tuple(3 + n % 50 for n in range(250))))
    driver.tick()
    driver.tick()
    driver.tick()
    assert [batch.num_tokens for batch in driver.batches] == [100, 100, 50]
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
    assert sum(batch.num_tokens for batch in driver.batches) <= len(PROMPT) + 3 * (2 + 4)


def test_drafts_sent_with_the_prompt_are_verified_in_its_last_chunk() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request(drafts=Draft(0, 0, truth[:2])))
    driver.tick()
    assert (peer.commits[0].accepted, peer.commits[0].ids) == (2, truth[2:3])


@pytest.mark.parametrize("num_right", [0, 1, 2])
def test_a_reply_says_who_had_drafted_its_tokens(num_right: int) -> None:
    truth = reference(request(), OPTIONS)
    drafts = (*truth[:num_right], *((truth[it] + 1) % 50 for it in range(num_right, 2)))
    driver = Driver(OPTIONS)
    peer = driver.open(request(drafts=Draft(0, 0, drafts), resume=()))
    driver.finish()
    assert peer.finished is not None
    usage = peer.finished.usage
    assert usage.sources == (num_right, 0, len(truth) - num_right, 0)
    assert usage.acceptance == ((2, num_right, 1),)


@pytest.mark.parametrize(
    "late", [Draft(0, 0, (60,)), Draft(0, 9, (60,))], ids=["contradicts", "gap"]
)
def test_a_draft_whose_chain_dies_during_its_call_still_counts(late: Draft) -> None:
    """The call took it and it was right; the commit says its tokens, which the edge dropped."""
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request(drafts=Draft(0, 0, truth[:2])))
    batch = driver.schedule()
    assert batch is not None
    driver.draft(1, late)
    driver.run(batch)
    assert (peer.commits[0].accepted, peer.commits[0].ids) == (0, truth[:3])
    driver.finish()
    assert tuple(peer.reply) == truth and peer.finished is not None
    assert peer.finished.usage.sources == (2, 0, len(truth) - 2, 0)


def test_drafts_of_the_region_and_tokens_of_another_replica_are_told_apart() -> None:
    repeating = replace(OPTIONS, repetition=1.0)
    truth = reference(request(), repeating)
    driver = Driver(repeating)
    peer = driver.open(request(region_drafts=True, resume=truth[:7]))
    driver.finish()
    assert peer.finished is not None
    edge, region, none, unknown = peer.finished.usage.sources
    assert (edge, unknown) == (0, 7) and region > 0
    assert region + none == len(truth) - 7


def test_drafts_for_a_waiting_session_are_kept() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    driver.open(request(2, prompts(1)[0]))
    driver.tick()
    peer = driver.open(request())
    driver.draft(1, Draft(1, 0, truth[:3]))
    driver.finish()
    assert (peer.commits[0].epoch, peer.commits[0].accepted) == (1, 3)


def test_a_correct_edge_is_never_echoed_and_a_wrong_one_costs_no_token() -> None:
    truth = reference(request(), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    driver.draft(1, Draft(0, 0, (*truth[:2], (truth[2] + 1) % 64)))
    driver.tick()
    assert (peer.commits[0].accepted, peer.commits[0].ids) == (2, truth[2:3])
    driver.draft(1, Draft(0, 3, truth[3:6]))
    driver.tick()
    assert peer.commits[1].accepted == 0
    driver.draft(1, Draft(1, len(peer.reply), truth[len(peer.reply) :][:3]))
    driver.tick()
    assert (peer.commits[2].epoch, peer.commits[2].accepted) == (1, 3)


def test_drafts_stay_within_the_largest_call_beside_replies_and_prompts() -> None:
    """Rows are nearly free and every draft is right: only the limit holds them back. The driver
    checks every call against it."""
    options = FakeOptions(min_rows=2, block_tokens=4, fixed_ms=8.0, row_ms=0.001)
    limits = SchedulerLimits(max_sessions=5, max_batch_tokens=18, row_ms=0.001)
    driver = Driver(options, limits)
    repliers = [request(number, prompt) for number, prompt in enumerate(prompts(4), 1)]
    truths = {one.session_id: reference(one, options) for one in repliers}
    for one in repliers:
        driver.open(one)
    sizes = []
    for turn in range(200):
        for number, truth in truths.items():
            told = len(driver.peers[number].reply)
            if truth[told:]:
                driver.draft(number, Draft(turn, told, truth[told : told + 8]))
        if turn == 8:
            driver.open(request(5, tuple(range(3, 60)) * 3))
        if not driver.tick():
            break
        sizes.append(driver.batches[-1].num_tokens)
    driver.finish()
    assert sizes.count(18) > 8, "without the limit they would be larger"
    assert all(tuple(driver.peers[n].reply) == truth for n, truth in truths.items())


def test_a_long_prompt_is_taught_to_its_drafter_bit_by_bit_and_after_the_replies() -> None:
    prompt = tuple(3 + n % 50 for n in range(1500))
    options = FakeOptions(block_tokens=4, num_blocks=2048, repetition=1.0)
    driver = Driver(options, SchedulerLimits(prefill_chunk_tokens=100))
    sampling = SamplingParams(max_tokens=1200, ignore_eos=True)
    driver.open(request(1, region_drafts=True, sampling=sampling))
    driver.tick()
    peer = driver.open(request(2, prompt, region_drafts=True))
    untaught = [1500]
    while not peer.commits:
        batch = driver.schedule()
        assert batch is not None
        short, long = (part.session for part in batch.scheduled)
        assert short.sources.num_unseen(short.ids) <= MAX_UNSEEN_TOKENS
        untaught.append(long.sources.num_unseen(long.ids))
        driver.run(batch)
    assert max(before - after for before, after in pairwise(untaught)) <= 512
    assert untaught[1] > MAX_UNSEEN_TOKENS >= untaught[-1]
    driver.finish()


def test_a_cancelled_session_keeps_its_blocks_until_the_call_returns() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    batch = driver.schedule()
    assert batch is not None
    driver.cancel(1)
    assert peer.finished is not None and peer.finished.reason is FinishReason.CANCELLED
    assert driver.scheduler.load().kv_blocks_free < driver.engine.info.num_blocks
    driver.run(batch)
    assert peer.commits == []
    assert driver.scheduler.load().kv_blocks_free == driver.engine.info.num_blocks
    driver.finish()


def test_a_number_may_be_used_again_while_its_old_session_is_in_flight() -> None:
    driver = Driver(OPTIONS)
    driver.open(request())
    batch = driver.schedule()
    assert batch is not None
    driver.cancel(1)
    fresh = request(1, prompts(1)[0])
    driver.open(fresh)
    driver.run(batch)
    driver.finish()
    assert tuple(driver.peers[1].reply) == reference(fresh, OPTIONS)


def test_cancelling_what_is_gone_does_nothing() -> None:
    driver = Driver(OPTIONS)
    assert driver.scheduler.cancel(5, driver.now) == []
    driver.scheduler.draft(5, Draft(0, 0, (1,)), driver.now)
    assert not driver.scheduler.has_work


def test_an_engine_failure_spares_who_pauses_for_another() -> None:
    driver = Driver(OPTIONS, SchedulerLimits(max_sessions=1))
    paused = driver.open(request(1, priority=Priority.LOW))
    while not paused.reply:
        driver.tick()
    hit = driver.open(request(2, prompts(1)[0], priority=Priority.HIGH))
    batch = driver.schedule()
    assert batch is not None and driver.scheduler.load().paused_sessions == 1
    driver.take(driver.scheduler.fail(batch, EngineError("the device went away")))
    assert hit.failed is not None and paused.failed is None
    driver.finish()
    assert tuple(paused.reply) == reference(request(1), OPTIONS)


def test_a_row_that_is_not_finite_ends_its_own_session_only() -> None:
    driver = Driver(OPTIONS)
    hit, spared = driver.open(request(1)), driver.open(request(2, prompts(1)[0]))
    batch = driver.schedule()
    assert batch is not None
    rows = batch.run(driver.engine)
    rows[0] = LogitsRows(np.full_like(rows[0].logits, np.nan))
    driver.take(driver.scheduler.postprocess(batch, rows, driver.now))
    assert hit.failed is not None and isinstance(hit.failed.error, EngineError)
    driver.finish()
    assert tuple(spared.reply) == reference(request(2, prompts(1)[0]), OPTIONS)


def test_an_engine_that_answers_too_little_fails_the_call() -> None:
    driver = Driver(OPTIONS)
    peer = driver.open(request())
    batch = driver.schedule()
    assert batch is not None
    driver.take(driver.scheduler.postprocess(batch, [], driver.now))
    assert peer.failed is not None and "1 slices with 0" in peer.failed.error.message


def test_edges_are_told_what_a_row_costs_behind_replies_not_in_prompts() -> None:
    """Of a slow model, rows of a prompt are cheap, and the first few behind a reply are not."""
    fixed_ms, prompt_row_ms, row_ms = 150.0, 4.0, 14.0
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    driver = Driver(OPTIONS)
    for number in range(1, 5):
        asked = request(number, tuple(range(3, 53)), sampling=sampling)
        peer, truth = driver.open(asked), reference(asked, OPTIONS)
        while (batch := driver.schedule()) is not None:
            rows = batch.run(driver.engine, driver.scheduler.overlapped_work)
            each_ms = row_ms if batch.is_decode else prompt_row_ms
            driver.now += (fixed_ms + each_ms * batch.num_tokens) / 1e3
            driver.take(driver.scheduler.postprocess(batch, rows, driver.now))
            at = len(peer.reply)
            right = truth[at : at + len(peer.commits) % 5]
            if peer.finished is None and right:
                driver.draft(number, Draft(at + 1, at, tuple(right)))
    assert peer.last is not None and peer.last.row_ms == pytest.approx(row_ms, rel=0.25)
    interval_ms = peer.last.interval_ms
    assert interval_ms == pytest.approx(fixed_ms + 2 * row_ms, rel=0.1), "without the drafts' rows"


def test_what_is_committed_is_told_while_the_next_call_computes_and_before_an_end() -> None:
    """Nothing is told twice or late, whoever goes away in between."""
    driver = Driver(OPTIONS)
    scheduler = driver.scheduler
    peers = [driver.open(request(number, prompt)) for number, prompt in enumerate(prompts(3))]
    driver.tick()
    driver.tick()
    batch = driver.schedule()
    assert batch is not None and batch.is_decode
    rows = batch.run(driver.engine, scheduler.overlapped_work)
    assert scheduler.verify(batch, rows, driver.now) == [], "everybody goes on"
    told = [len(peer.reply) for peer in peers]
    driver.cancel(1)
    assert [len(peer.reply) for peer in peers] == [count + 1 for count in told]
    assert scheduler.take_committed() == []
    driver.finish()
    for number in (0, 2):
        truth = reference(request(0, prompts(3)[number]), OPTIONS)
        assert tuple(peers[number].reply) == truth


def test_a_planned_call_is_dropped_when_drafts_or_sessions_come() -> None:
    driver = Driver(OPTIONS)
    first = request(0, region_drafts=False)
    peer, truth = driver.open(first), reference(first, OPTIONS)
    for _ in range(3):
        driver.tick()
    at = len(peer.reply)
    driver.draft(0, Draft(1, at, truth[at : at + 3]))
    batch = driver.schedule()
    assert batch is not None and batch.scheduled[0].num_drafts > 0
    driver.run(batch)
    driver.open(request(1, prompts(2)[1], region_drafts=False))
    batch = driver.schedule()
    assert batch is not None and len(batch.slices) == 2
    driver.run(batch)
    driver.finish()
    assert tuple(peer.reply) == truth


def test_nothing_is_planned_behind_the_last_reply() -> None:
    driver = Driver(OPTIONS)
    driver.open(request(0, region_drafts=False))
    driver.tick()
    while driver.scheduler.load().running_sessions:
        driver.tick()
    batch = driver.schedule()
    assert batch is not None and not batch.slices, "it closes the sequence"
    driver.scheduler.overlapped_work()
    driver.take(driver.scheduler.postprocess(batch, (), driver.now))
    assert driver.schedule() is None
