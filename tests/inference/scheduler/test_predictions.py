"""Predicted outputs in the scheduler: fewer calls, the same text, counted, and nothing learnt."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.session.types import Usage
from outrider.speculation.learnt import BINDING_BYTES, KeptGroups
from outrider.speculation.ngrams import unpack
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.types import OpenRequest
from tests.inference.scheduler.driver import OPTIONS, PROMPT, Driver, Peer, reference, request

LONG = SamplingParams(max_tokens=160, ignore_eos=True)
WHIMSICAL = replace(OPTIONS, repetition=0.0, row_ms=0.1, max_context_tokens=512, num_blocks=200)
"""Repeats nothing, so that no other source knows anything; rows are cheap."""
ASKED = request(sampling=LONG, region_drafts=True)


def run(asked: OpenRequest, options: FakeOptions = WHIMSICAL) -> tuple[Driver, Peer]:
    driver = Driver(options, SchedulerLimits())
    peer = driver.open(asked)
    driver.finish()
    assert tuple(peer.reply) == reference(replace(asked, resume=()), options)
    return driver, peer


def usage_of(peer: Peer) -> Usage:
    assert peer.finished is not None
    return peer.finished.usage


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_right_prediction_saves_most_calls_and_an_edited_one_nearly_as_many(
    temperature: float,
) -> None:
    asked = replace(ASKED, sampling=replace(LONG, temperature=temperature, seed=4))
    truth = reference(asked, WHIMSICAL)
    alone, _ = run(asked)
    edited = (*truth[:40], 1, *truth[41:90], *truth[95:])
    calls = []
    for prediction in (truth, edited):
        driver, peer = run(replace(asked, prediction=prediction))
        calls.append(len(driver.batches))
        usage = usage_of(peer)
        assert usage.accepted_prediction_tokens == usage.accepted_tokens > 130
        assert usage.rejected_prediction_tokens == usage.draft_tokens - usage.accepted_tokens
    assert len(alone.batches) > 150
    assert calls[0] <= 20
    assert calls[1] <= 30


def test_a_wrong_prediction_costs_next_to_nothing() -> None:
    alone, _ = run(ASKED)
    driver, peer = run(replace(ASKED, prediction=tuple(range(60, 20, -1)) * 4))
    assert len(driver.batches) <= len(alone.batches)
    usage = usage_of(peer)
    assert usage.accepted_prediction_tokens < 10
    assert usage.rejected_prediction_tokens < 200
    assert driver.now < alone.now * 1.1


def test_after_a_failover_the_prediction_goes_on_where_the_reply_is() -> None:
    truth = reference(ASKED, WHIMSICAL)
    edited = (*truth[:30], 1, 1, 1, *truth[30:])
    driver, peer = run(replace(ASKED, prediction=edited, resume=truth[:100]))
    assert len(driver.batches) <= 6
    assert usage_of(peer).accepted_prediction_tokens > 50


def test_no_drafts_are_copied_where_the_region_is_not_to_draft() -> None:
    truth = reference(ASKED, WHIMSICAL)
    driver, peer = run(replace(ASKED, prediction=truth, region_drafts=False))
    assert len(driver.batches) > 150
    assert usage_of(peer).accepted_prediction_tokens == 0


@pytest.mark.parametrize("most", [0, 3, 31])
def test_no_call_has_more_of_them_than_the_limit(most: int) -> None:
    truth = reference(ASKED, WHIMSICAL)
    driver = Driver(WHIMSICAL, SchedulerLimits(max_predicted_tokens=most, max_draft_tokens=0))
    peer = driver.open(replace(ASKED, prediction=truth))
    driver.finish()
    counts = [one.num_drafts for batch in driver.batches for one in batch.scheduled]
    assert max(counts) <= max(1, most), "a slice of two rows has one draft for nothing"
    assert tuple(peer.reply) == truth
    assert (usage_of(peer).accepted_prediction_tokens > 0) == (most > 0)


def test_what_is_predicted_is_learnt_by_nobody() -> None:
    """What the group's statistics hold was said in the reply."""
    truth = reference(ASKED, WHIMSICAL)
    said = set(pairwise(truth))
    never_said = [pair for pair in product(range(64), repeat=2) if pair not in said]
    prediction = tuple(token for pair in never_said[:200] for token in pair)
    driver = Driver(WHIMSICAL, kept=KeptGroups(bytes(BINDING_BYTES), 64, 1 << 20))
    driver.open(
        replace(ASKED, cache_salt=b"group", group_lasts=True, prediction=truth[:80] + prediction)
    )
    driver.finish()
    ((_, taught),) = driver.scheduler.take_learnt()
    learnt = {(last, unpack(value)[0]) for last, value in taught.tables[0].items()}
    assert learnt
    assert learnt <= set(pairwise((*PROMPT, *truth)))
