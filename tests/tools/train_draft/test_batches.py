"""Batches, and the schedule that training follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.train_draft.batches import (
    epoch,
    make_batch,
    rows_of_ids,
)
from tools.train_draft.replies import Reply


def reply_of(number: int, num_prompt: int, num_ids: int, vocabulary_size: int = 50) -> Reply:
    """A random reply with four likeliest ids per token."""
    rng = np.random.default_rng(number)
    top_ids = np.argsort(rng.random((num_ids, vocabulary_size)), 1)[:, :4].astype(np.int32)
    return Reply(
        number=number,
        turn=0,
        kind="k",
        temperature=0.8 * (number % 2),
        seed=number,
        prompt=rng.integers(1, vocabulary_size, num_prompt).astype(np.int32),
        ids=top_ids[:, 0],
        top_ids=top_ids,
        top_logprobs=np.log([[0.5, 0.25, 0.125, 0.0625]] * num_ids).astype(np.float16),
    )


def test_rows_are_those_before_each_reply_token() -> None:
    replies = [reply_of(0, 5, 3), reply_of(1, 2, 4)]
    rows_of = rows_of_ids(np.arange(0, 50, 2, dtype=np.uint32), 50)
    batch = make_batch(replies, rows_of)
    flat = np.concatenate((batch.prefix, batch.tokens.ravel()))
    expected = [np.append(r.prompt[-1:], r.ids[:-1]) for r in replies]
    assert flat[batch.rows].tolist() == np.concatenate(expected).tolist()
    assert batch.tokens.shape == (2, 16)
    ids = np.concatenate([r.ids for r in replies])
    assert batch.top_rows[:, 0].tolist() == [i // 2 if i % 2 == 0 else -1 for i in ids]
    assert batch.weights.sum() == pytest.approx(len(ids))


def test_what_all_prompts_begin_with_is_computed_once() -> None:
    replies = [reply_of(n, 6 + n, 4) for n in range(3)]
    begin = np.array([1, 2, 3, 4], np.int32)
    shared = [
        replace(r, prompt=np.concatenate((begin, r.prompt + 10 * n))) for n, r in enumerate(replies)
    ]
    batch = make_batch(shared, rows_of_ids(np.arange(50, dtype=np.uint32), 50))
    assert batch.prefix.tolist() == begin.tolist()
    flat = np.concatenate((batch.prefix, batch.tokens.ravel()))
    expected = [np.append(r.prompt[-1:], r.ids[:-1]) for r in shared]
    assert flat[batch.rows].tolist() == np.concatenate(expected).tolist()
    assert batch.num_tokens == 4 + 3 * 16


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=40))
def test_an_epoch_has_every_reply_once_in_batches_that_fit(sizes: list[tuple[int, int]]) -> None:
    replies = [reply_of(n, p, i) for n, (p, i) in enumerate(sizes)]
    groups = list(epoch(replies, 128, np.random.default_rng(0)))
    assert sorted(r.number for group in groups for r in group) == list(range(len(sizes)))
    for group in groups:
        longest = max(len(reply.prompt) + len(reply.ids) for reply in group)
        assert len(group) == 1 or longest * len(group) <= 128
