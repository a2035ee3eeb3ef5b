"""Scoring on the engine seam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider.engines.base import LogitsRows, OverlappedWork, SequenceSlice, no_work
from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from tools.train_draft.corpus.generation import Generator
from tools.train_draft.corpus.records import Reply
from tools.train_draft.evaluation.scoring import traces
from tools.train_draft.prompts.chats import Chat, ReplyPlan

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
