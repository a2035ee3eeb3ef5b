"""What a grammar forces is drafted, what it forbids is not verified, and no text changes by it."""

from __future__ import annotations

import dataclasses

import pytest

from outrider.errors import InvalidRequestError, InvalidSamplingError
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from outrider.session.region import Draft
from tests.inference.scheduler.driver import OPTIONS, Driver, reference, request

GRAMMAR = Grammar(GrammarKind.REGEX, "(begin[A-F]{3}end ){2,4}Z")
SAMPLING = SamplingParams(max_tokens=90, grammar=GRAMMAR)
POINT = 63
"""An id that this grammar never allows."""


def test_what_is_forced_is_drafted_and_its_calls_are_saved() -> None:
    truth = reference(request(sampling=SAMPLING), OPTIONS)
    calls = {}
    for drafts in (False, True):
        driver = Driver(OPTIONS)
        peer = driver.open(request(sampling=SAMPLING, region_drafts=drafts))
        driver.finish()
        assert tuple(peer.reply) == truth
        assert peer.finished is not None
        calls[drafts] = len(peer.commits)
        assert (peer.finished.usage.accepted_tokens > len(truth) / 3) is drafts
    assert calls[True] < calls[False] / 2


def test_drafts_of_the_edge_that_are_forbidden_are_not_verified() -> None:
    truth = reference(request(sampling=SAMPLING), OPTIONS)
    driver = Driver(OPTIONS)
    peer = driver.open(request(sampling=SAMPLING))
    for number in range(len(truth)):
        base = len(peer.reply)
        driver.draft(1, Draft(number, base, (*truth[base : base + 1], POINT, POINT, POINT)))
        driver.tick()
        if peer.finished is not None:
            break
    driver.finish()
    assert tuple(peer.reply) == truth
    assert peer.finished is not None
    usage = peer.finished.usage
    assert usage.draft_tokens and usage.draft_tokens == usage.accepted_tokens
    verified = [
        token for batch in driver.batches for one in batch.scheduled for token in one.drafts
    ]
    assert POINT not in verified


def test_preempted_and_resumed_replies_go_on_in_their_grammar() -> None:
    """So little KV that sessions take it from each other."""
    tight = dataclasses.replace(OPTIONS, num_blocks=30)
    driver = Driver(tight)
    asked = [request(number, sampling=SAMPLING, region_drafts=True) for number in range(1, 5)]
    truth = reference(asked[0], tight)
    peers = [driver.open(one) for one in asked[:3]]
    resumed = driver.open(dataclasses.replace(asked[3], resume=truth[:7]))
    driver.finish()
    assert all(tuple(peer.reply) == truth for peer in (*peers, resumed))


def test_a_grammar_that_fails_ends_its_session_alone() -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-f]{4}(-|_)")  # these letters alone have ids
    driver = Driver(OPTIONS)
    bad = driver.open(request(1, sampling=SamplingParams(max_tokens=90, grammar=grammar)))
    good = driver.open(request(2, sampling=SAMPLING))
    driver.finish()
    assert bad.failed is not None and type(bad.failed.error) is InvalidSamplingError
    assert len(bad.reply) == 4
    assert tuple(good.reply) == reference(request(sampling=SAMPLING), OPTIONS)


def test_what_is_not_of_the_grammar_is_not_resumed() -> None:
    driver = Driver(OPTIONS)
    with pytest.raises(InvalidRequestError, match="grammar"):
        driver.open(request(sampling=SAMPLING, resume=(POINT,)))
    driver.finish()
