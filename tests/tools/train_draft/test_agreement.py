"""What traces of agreement amount to, and how they are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from tools.train_draft.agreement import (
    Trace,
    acceptance_by_draft_position,
    tokens_per_step,
    traces,
)
from tools.train_draft.generation import Generator
from tools.train_draft.prompts import Chat, ReplyPlan
from tools.train_draft.replies import Reply


def _trace(agreed: list[int], temperature: float = 0.0, kind: str = "k") -> Trace:
    right = np.array(agreed, bool)
    return Trace(kind, 0, temperature, right, right, np.where(right, 0.9, 0.2))


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60), st.integers(1, 8))
def test_tokens_per_step_equals_a_walk(agreed: list[int], num_draft: int) -> None:
    at = steps = 0
    while at < len(agreed):
        run = 0
        while run < num_draft and at + run < len(agreed) and agreed[at + run]:
            run += 1
        at, steps = at + run + 1, steps + 1
    assert tokens_per_step([_trace(agreed)], num_draft) == pytest.approx(len(agreed) / steps)


def test_acceptance_by_draft_position_is_given_all_before() -> None:
    found = acceptance_by_draft_position([_trace([1, 1, 0, 1])])
    assert found[:3] == [0.75, 0.5, 0.0]
    assert len(found) == 8


pytestmark = pytest.mark.model


class _Trimmed(FakeEngine):
    """The fake model with a head of every second id, as a trained draft has."""

    def step(
        self, slices: Sequence[SequenceSlice], overlapped_work: OverlappedWork = no_work
    ) -> list[LogitsRows]:
        whole = super().step(slices, overlapped_work)
        ids = np.arange(0, self.info.vocabulary_size, 2, dtype=np.int32)
        return [
            LogitsRows(rows.logits[:, ids], np.tile(ids, (len(rows.logits), 1))) for rows in whole
        ]


def _options(vocabulary: Vocabulary, seed: int = 0) -> FakeOptions:
    return FakeOptions(vocabulary_size=vocabulary.size, seed=seed, repetition=0.0)


@pytest.fixture(scope="module")
def replies(vocabulary: Vocabulary) -> list[Reply]:
    """Greedy and sampled replies of one fake model."""
    chats = [
        Chat("k", (Message("user", "a" * n),), (), ReplyPlan(12, 0.8 * (n % 2), n))
        for n in range(1, 7)
    ]
    generator = Generator(FakeEngine(_options(vocabulary)), vocabulary, num_slots=4)
    return list(generator.answers(iter(enumerate(chats))))


def test_a_model_agrees_with_itself(vocabulary: Vocabulary, replies: list[Reply]) -> None:
    found = list(traces(FakeEngine(_options(vocabulary)), replies))
    assert len(found) == len(replies)
    for trace in found:
        assert trace.agreed.all()
        assert trace.top_agreed.all()
        assert np.all((trace.confidence > 0) & (trace.confidence <= 1))


def test_another_model_hardly_does(vocabulary: Vocabulary, replies: list[Reply]) -> None:
    found = list(traces(FakeEngine(_options(vocabulary, seed=1)), replies))
    assert np.mean(np.concatenate([trace.agreed for trace in found])) < 0.1


def test_a_trimmed_head_agrees_where_it_has_the_id(
    vocabulary: Vocabulary, replies: list[Reply]
) -> None:
    for trace, reply in zip(traces(_Trimmed(_options(vocabulary)), replies), replies, strict=True):
        assert trace.agreed.tolist() == (reply.ids % 2 == 0).tolist()


def test_replies_without_room_are_left_out(vocabulary: Vocabulary, replies: list[Reply]) -> None:
    engine = FakeEngine(replace(_options(vocabulary), num_blocks=1))
    assert list(traces(engine, replies)) == []
