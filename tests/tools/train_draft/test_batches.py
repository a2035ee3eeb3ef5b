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
    position_weights,
    rows_of_ids,
)
from tools.train_draft.replies import Reply
from tools.train_draft.schedule import Schedule, loss_weights


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


def test_a_batch_of_one_keeps_the_last_token_of_its_prompt() -> None:
    reply = reply_of(0, 5, 3)
    batch = make_batch([reply], rows_of_ids(np.arange(50, dtype=np.uint32), 50))
    assert batch.prefix.tolist() == reply.prompt[:-1].tolist()
    assert batch.tokens[0, : 1 + 2].tolist() == [reply.prompt[-1], *reply.ids[:-1]]


def test_first_positions_weigh_most() -> None:
    weights = position_weights(40)
    assert np.all(np.diff(weights) < 0)
    assert weights[0] == pytest.approx(6 * weights[-1], rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=40))
def test_an_epoch_has_every_reply_once_in_batches_that_fit(sizes: list[tuple[int, int]]) -> None:
    replies = [reply_of(n, p, i) for n, (p, i) in enumerate(sizes)]
    groups = list(epoch(replies, 128, np.random.default_rng(0)))
    assert sorted(r.number for group in groups for r in group) == list(range(len(sizes)))
    for group in groups:
        longest = max(len(reply.prompt) + len(reply.ids) for reply in group)
        assert len(group) == 1 or longest * len(group) <= 128


def test_an_epoch_is_a_function_of_its_generator() -> None:
    replies = [reply_of(n, 3 + n % 7, 4) for n in range(30)]
    runs = [
        [[r.number for r in group] for group in epoch(replies, 64, np.random.default_rng(seed))]
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_schedule_goes_by_steps_or_by_time() -> None:
    assert Schedule(100, 60.0, 1.0).progress(50, 0.0) == 0.5
    assert Schedule(0, 60.0, 1.0).progress(50, 15.0) == 0.25
    assert Schedule(100, 60.0, 1.0).progress(500, 0.0) == 1.0


def test_the_rate_warms_up_and_decays() -> None:
    schedule = Schedule(100, 60.0, 1e-3)
    rates = [schedule.rate(progress) for progress in np.linspace(0, 1, 101)]
    assert 0 < rates[0] < rates[1] < max(rates) <= 1.001e-3
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] < 0.05 * max(rates)


@given(st.floats(0, 1))
def test_loss_weights_sum_to_one_and_turn_to_acceptance(progress: float) -> None:
    weights = loss_weights(progress)
    assert weights.divergence + weights.acceptance + weights.argmax == pytest.approx(1)
    assert min(weights.divergence, weights.acceptance, weights.argmax) >= 0
    assert loss_weights(0.0).acceptance == 0 < loss_weights(1.0).acceptance
