"""The draft chain: what is sent, what a commit leaves of it, when an epoch ends."""

from __future__ import annotations

from itertools import takewhile
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import MalformedFrameError
from outrider.session.region import Commit, Draft
from outrider.session.types import Speculation
from services.edge.session.draft_chain import DraftChain, DraftLimits, DraftProgress
from services.edge.session.reply import ReplyFlow
from services.inference.scheduler.draft_sources import EdgeChain
from tests.edge.session.toolkit import EOS, ScriptedDrafter, policy, request, tools

LEAD = 100
"""More than any limit of these tests."""
SCRIPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def chain(
    script: list[int] | None = None,
    *,
    confidence: float = 0.95,
    max_lead: int = 4,
    max_tokens: int = 100,
    absorb_tokens: int = 512,
    first_tokens: int = 0,
) -> DraftChain:
    drafter = ScriptedDrafter(SCRIPT if script is None else script, confidence)
    limits = DraftLimits(max_lead=max_lead, absorb_tokens=absorb_tokens, first_tokens=first_tokens)
    return DraftChain(drafter, limits, frozenset({EOS}), max_tokens)


def test_drafts_up_to_the_lead_and_sends_them_once() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    assert drafts.take_unsent() == Draft(0, 0, (1, 2, 3, 4))
    drafts.advance(LEAD)
    assert drafts.take_unsent() is None


def test_a_frame_that_could_not_be_sent_is_sent_once_more() -> None:
    drafts = chain()
    drafts.advance(2)
    first = drafts.take_unsent()
    assert first == Draft(0, 0, (1, 2))
    drafts.requeue(first)
    assert drafts.num_sent == 0
    assert drafts.take_unsent() == first
    drafts.advance(LEAD)
    second = drafts.take_unsent()
    assert second == Draft(0, 2, (3, 4), continues=True)
    drafts.requeue(second)
    assert drafts.num_sent == 2
    assert drafts.take_unsent() == second


def test_an_epoch_whose_first_frame_could_not_be_sent_never_was() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    drafts.commit(0, 0, 1, (9,))
    drafts.advance(LEAD)
    frame = drafts.take_unsent()
    assert frame is not None
    assert (frame.epoch, frame.base, frame.continues) == (1, 2, False)
    drafts.requeue(frame)
    assert drafts.num_sent == 0
    again = drafts.take_unsent()
    assert again == Draft(2, 2, frame.ids)


def test_what_is_not_likely_enough_was_made_for_nothing() -> None:
    drafts = chain(confidence=0.5, max_lead=8)
    assert drafts.advance(LEAD) == DraftProgress(False, num_made=8, took_s=0.0, num_kept=2)
    assert drafts.advance(2) == DraftProgress()


def test_a_reply_begins_with_less_likely_drafts() -> None:
    drafts = chain(confidence=0.4, max_lead=8, first_tokens=4)
    assert drafts.advance(LEAD).num_kept == 4
    drafts.take_unsent()
    drafts.commit(0, 0, 4, ())
    drafts.advance(LEAD)
    assert len(drafts.ids) == 1, "0.4 is enough, 0.16 is not"


def test_what_a_commit_says_of_drafts() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    _, right = drafts.commit(0, 0, 2, ())
    assert [(o.depth, o.right, o.decides) for o in right.outcomes] == [
        (0, True, True),
        (1, True, True),
    ]
    assert not right.on_its_own
    _, wrong = drafts.commit(0, 2, 0, (9,))
    assert [(o.depth, o.right, o.decides) for o in wrong.outcomes] == [
        (2, False, True),
        (3, False, False),
    ]
    assert not wrong.on_its_own, "a draft of ours was in that call, and wrong"
    assert drafts.commit(0, 3, 0, (4,))[1].on_its_own, "the chain was gone"


def test_where_the_drafter_had_no_more_to_say_is_told() -> None:
    drafts = chain([1, 2], max_lead=8)
    drafts.advance(LEAD)
    assert drafts.commit(0, 0, 0, (1,))[1].ended_at is None
    assert drafts.commit(0, 1, 0, (2, 3))[1].ended_at == 2
    drafts.advance(LEAD)
    assert drafts.commit(0, 3, 0, (4,))[1].ended_at is None, "there was no chain"


def test_a_right_chain_goes_on_in_its_epoch() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    ids, checked = drafts.commit(0, 0, 2, (3,))
    assert (ids, checked.diverged) == ((1, 2, 3), False)
    assert (drafts.ids, drafts.num_sent) == ((4,), 1)
    drafts.advance(LEAD)
    assert drafts.take_unsent() == Draft(0, 4, (5, 6, 7), continues=True)


def test_a_divergence_ends_the_epoch() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    ids, checked = drafts.commit(0, 0, 1, (20,))
    assert (ids, checked.diverged) == ((1, 20), True)
    assert drafts.ids == ()
    drafts.advance(LEAD)
    assert drafts.take_unsent() == Draft(1, 2, (3, 4, 5, 6))


def test_a_commit_past_the_chain_starts_a_new_epoch_since_frames_must_be_contiguous() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    assert drafts.commit(0, 0, 4, (5, 6))[1].diverged is False
    drafts.advance(LEAD)
    assert drafts.take_unsent() == Draft(1, 6, (7, 8, 9, 10))


def test_unsent_drafts_that_the_region_found_itself_leave_no_gap_in_an_epoch() -> None:
    drafts = chain(max_lead=4)
    drafts.advance(LEAD)
    assert drafts.commit(0, 0, 0, (1, 2))[1].diverged is False
    assert drafts.take_unsent() == Draft(1, 2, (3, 4))


def test_survival_is_counted_from_the_last_commit() -> None:
    drafts = chain(confidence=0.5, max_lead=8)
    drafts.advance(LEAD)
    assert list(drafts.survival) == [0.5, 0.25]
    drafts.commit(0, 0, 0, (1,))
    assert list(drafts.survival) == [0.5]
    drafts.advance(LEAD)
    assert list(drafts.survival) == [0.5, 0.25]


def test_no_draft_goes_past_the_end_of_the_reply() -> None:
    ended = chain([1, EOS, 3, 4])
    ended.advance(LEAD)
    assert ended.ids == (1, EOS)
    assert ended.ends_reply
    ended.advance(LEAD)
    assert ended.ids == (1, EOS)
    short = chain(max_tokens=3)
    short.advance(LEAD)
    assert short.ids == (1, 2, 3)


def test_the_regions_lead_lowers_ours_only() -> None:
    drafts = chain(max_lead=4)
    drafts.limit_lead(0)
    drafts.limit_lead(100)
    drafts.advance(LEAD)
    assert len(drafts.ids) == 4
    lower = chain(max_lead=4)
    lower.limit_lead(2)
    lower.advance(LEAD)
    assert lower.ids == (1, 2)


def test_drafts_beyond_the_regions_lead_go_up_again_in_the_same_epoch() -> None:
    drafts = chain(list(range(1, 60)), confidence=1.0, max_lead=8)
    region = EdgeChain(0, max_lead=3)
    reply: list[int] = []
    num_accepted = []
    for _ in range(12):
        drafts.advance(LEAD)
        while (frame := drafts.take_unsent()) is not None:
            assert frame.epoch == 0
            region.receive(Draft(frame.epoch, frame.base, frame.ids, frame.continues), reply)
        commit = list(range(len(reply) + 1, len(reply) + 3))
        reply += commit
        num_accepted.append(region.advance(commit))
        drafts.commit(0, len(reply) - 2, num_accepted[-1], tuple(commit[num_accepted[-1] :]))
        drafts.limit_lead(3)
    assert num_accepted == [2] * 12


def test_drafts_are_not_sent_again_once_the_reply_is_past_them() -> None:
    """A region finds no gap within an epoch: it would take no more drafts of it."""
    drafts = chain(list(range(1, 60)), confidence=1.0, max_lead=8)
    region = EdgeChain(0, max_lead=8)
    drafts.advance(LEAD)
    first = drafts.take_unsent()
    assert first is not None and first.ids == tuple(range(1, 9))
    region.receive(Draft(first.epoch, first.base, first.ids, first.continues), [])
    drafts.commit(0, 0, 2, ())
    drafts.limit_lead(3)
    drafts.commit(0, 2, 6, (9,))
    drafts.advance(LEAD)
    frame = drafts.take_unsent()
    assert frame is not None and (frame.base, frame.ids) == (9, (10, 11, 12))
    reply = list(range(1, 10))
    assert region.advance(reply) == 8
    region.receive(Draft(frame.epoch, frame.base, frame.ids, frame.continues), reply)
    assert region.ids == [10, 11, 12]


def test_the_rest_of_a_reply_is_learnt_in_slices_and_a_prompt_alone_is_not() -> None:
    for num_committed in (0, 1):
        drafter = ScriptedDrafter()
        asked = request(speculation=Speculation.OFF, provisional=False)
        reply = ReplyFlow(asked, tuple([1] * 60), tools(drafter), policy().reply)
        if num_committed:
            reply.commit(Commit(0, 0, 0, (1,)), 1.0)
        sizes = []
        is_more = True
        while is_more:
            before = len(drafter.learnt)
            is_more = reply.learn_more()
            sizes.append(len(drafter.learnt) - before)
        assert sizes == ([16, 16, 16, 13] if num_committed else [0])


def test_a_long_prompt_is_learnt_in_slices() -> None:
    drafter = ScriptedDrafter(SCRIPT)
    drafter.prompt_tokens = 40
    limits = DraftLimits(max_lead=4, absorb_tokens=16)
    drafts = DraftChain(drafter, limits, frozenset({EOS}), 100)
    drafts.learn(range(40))
    assert [drafts.advance(LEAD).is_behind for _ in range(3)] == [True, True, False]
    assert drafter.learnt == list(range(40))
    assert drafts.ids == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("epoch", "base", "accepted"),
    [(0, 1, 0), (0, 0, 5), (1, 0, 1), (7, 0, 2)],
    ids=["gap", "more than sent", "epoch ahead", "no such epoch"],
)
def test_an_impossible_commit_is_refused(epoch: int, base: int, accepted: int) -> None:
    drafts = chain()
    drafts.advance(LEAD)
    drafts.take_unsent()
    with pytest.raises(MalformedFrameError):
        drafts.commit(epoch, base, accepted, (9,))


def test_drafts_that_were_not_sent_cannot_be_accepted() -> None:
    drafts = chain()
    drafts.advance(LEAD)
    with pytest.raises(MalformedFrameError):
        drafts.commit(0, 0, 1, ())


class KeepingRegion:
    """The region's view of the protocol, kept naively: frames of an epoch that continue each other
    or begin again further back, a chain that is compared with the truth."""

    def __init__(self, truth: list[int]) -> None:
        self.truth = truth
        self.epoch = self.begin = 0
        self.received: list[int] = []

    def take(self, frame: Draft) -> None:
        if frame.epoch != self.epoch:
            assert frame.epoch > self.epoch
            self.epoch, self.begin, self.received = frame.epoch, frame.base, []
        again = self.received[max(0, frame.base - self.begin) :]
        assert self.begin <= frame.base <= self.begin + len(self.received)
        assert list(frame.ids[: len(again)]) == again[: len(frame.ids)]
        self.received += frame.ids[len(again) :]

    def num_accepted(self, base: int) -> int:
        """Drafts from `base` on that are the truth, if all before them were."""
        ahead = base - self.begin
        if ahead < 0 or self.received[:ahead] != self.truth[self.begin : base]:
            return 0
        pairs = zip(self.received[ahead:], self.truth[base:], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_against_a_region_that_keeps_every_draft(seed: int) -> None:
    """The edge's resolved ids are always the truth."""
    rng = Random(seed)
    truth = [rng.randint(1, 6) for _ in range(40)]
    script = [7 if rng.random() < 0.2 else token for token in truth]
    drafts = chain(script, confidence=0.99, max_lead=rng.randint(1, 8), max_tokens=40)
    region = KeepingRegion(truth)
    resolved: list[int] = []
    while len(resolved) < 40:
        if rng.random() < 0.5:
            drafts.advance(LEAD)
        if rng.random() < 0.5 and (frame := drafts.take_unsent()):
            if rng.random() < 0.2:
                drafts.requeue(frame)  # there was no room for it
            else:
                region.take(frame)
        if rng.random() < 0.5:
            base = len(resolved)
            accepted = region.num_accepted(base)
            ids = truth[base + accepted : base + accepted + rng.randint(0, 3)]
            if accepted + len(ids):
                resolved += drafts.commit(region.epoch, base, accepted, tuple(ids))[0]
                assert resolved == truth[: len(resolved)]
                if rng.random() < 0.2:
                    drafts.limit_lead(rng.randint(1, 8))
