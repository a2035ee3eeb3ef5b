"""Distilling against the target's whole distribution, on a small target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="torch is not installed (tools/train_draft/requirements.txt): not run"
)

import torch
from torch import Tensor

from tests.tools.train_draft.test_draft_file import GEOMETRY, small_tensors
from tests.tools.train_draft.test_slots import EMBEDDING, _chats, _network, _seeds
from tools.train_draft import distillation
from tools.train_draft.distillation import (
    Distiller,
    TargetRows,
    batch_of,
    frequent_ids,
    head_loss,
    mixes_at,
)
from tools.train_draft.network import Student
from tools.train_draft.schedule import LossWeights, Schedule


def _rows(num: int, width: int, target_head: Tensor, num_rows: int) -> TargetRows:
    hidden = torch.randn(num, width)
    logits = hidden @ target_head.T
    top = logits.argmax(1)
    weights = torch.rand(num)
    return TargetRows(
        hidden,
        logits.logsumexp(1),
        torch.where(top < num_rows, top, -1),
        torch.rand(num) < 0.5,
        weights / weights.sum(),
    )


def _plain_loss(
    hidden: Tensor,
    head: Tensor,
    target_head: Tensor,
    rows: TargetRows,
    mixes: tuple[LossWeights, ...],
) -> Tensor:
    """As written in the docstrings, for autograd to differentiate."""
    logits = hidden @ head.T
    logq = logits.log_softmax(1)
    target = (rows.hidden @ target_head.T - rows.masses[:, None]).exp()
    kept = target > distillation._KEPT
    rest = (1 - (target * kept).sum(1)).clamp(min=1e-6)
    rest_draft = (1 - (logq.exp() * kept).sum(1)).clamp(min=1e-6)
    divergence = torch.where(kept, target * (target.log() - logq), 0.0).sum(1)
    divergence = divergence + rest * (rest.log() - rest_draft.log())
    cross = -logq.gather(1, rows.top.clamp(min=0)[:, None])[:, 0] * (rows.top >= 0)
    sharp = target**1.25
    sharp = sharp / (sharp.sum(1) + (1 - target.sum(1)).clamp(min=0) ** 1.25)[:, None]
    overlap = torch.minimum(sharp, (logits * 1.25).softmax(1)).sum(1)
    total = torch.zeros(())
    for greedy, mix in zip((True, False), mixes, strict=True):
        value = mix.divergence * divergence + mix.argmax * cross - mix.acceptance * overlap.log()
        total = total + (value * rows.weights)[rows.greedy == greedy].sum()
    return total


def test_loss_and_gradients_are_those_of_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "_CHUNK_ROWS", 7)
    torch.manual_seed(0)
    target_head = torch.randn(50, 16)
    rows = _rows(20, 16, target_head, 30)
    hidden = torch.randn(20, 16, requires_grad=True)
    head = (torch.randn(30, 16) * 0.3).requires_grad_()
    mixes = (LossWeights(0.3, 0.2, 0.5), LossWeights(0.3, 0.6, 0.1))
    expected = _plain_loss(hidden, head, target_head[:30], rows, mixes)
    value = head_loss(hidden, head, target_head[:30], rows, mixes)
    torch.testing.assert_close(value, expected)
    found = torch.autograd.grad(value, (hidden, head))
    for one, other in zip(found, torch.autograd.grad(expected, (hidden, head)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_weights_of_the_loss_sum_to_one() -> None:
    for progress in (0.0, 0.5, 0.6, 1.0):
        for mix in mixes_at(progress):
            assert mix.divergence + mix.acceptance + mix.argmax == pytest.approx(1)


def test_a_batch_has_the_rows_before_each_reply_token() -> None:
    chats = _chats(_network(), _seeds())
    which = torch.tensor([3, 0, 7])
    tokens, at, rows = batch_of(chats, which, torch.arange(50))
    replies = chats.replies[which]
    assert len(at) == int(replies.sum())
    texts = [chats.tokens[int(chats.offsets[i]) :][: int(chats.lengths[i])].tolist() for i in which]
    expected = [
        token
        for text, n in zip(texts, replies.tolist(), strict=True)
        for token in text[-n - 1 : -1]
    ]
    assert tokens.flatten()[at].tolist() == expected
    ranges = [range(int(chats.rows[i]), int(chats.rows[i] + chats.replies[i])) for i in which]
    source = [row for rows_ in ranges for row in rows_]
    assert rows.top.tolist() == chats.top[source].tolist()
    assert rows.weights.sum() == pytest.approx(1)
    first = [0, int(replies[0]), int(replies[:2].sum())]
    assert (rows.weights[first] == rows.weights.max()).all()


def test_a_student_learns_its_target() -> None:
    network = _network()
    chats = _chats(network, _seeds())
    chosen = torch.arange(len(chats))
    ids = frequent_ids(chats, chosen, 40, np.array([0, 2]), 50)
    assert len(ids) == 40 and {0, 2} <= set(ids.tolist())
    student = Student(replace(GEOMETRY), small_tensors(40), EMBEDDING)
    distiller = Distiller(
        student,
        ids,
        network.head,
        Schedule(60, 0, 5e-3),
        tokens_per_batch=400,
        quantised_from=0.5,
    )
    before = distiller.agreement(chats, chosen)
    seen: list[float] = []
    distiller.run(chats, chosen, lambda progress, step, loss: seen.append(loss), every=10)
    after = distiller.agreement(chats, chosen)
    assert distiller.step == 60 and len(seen) == 6
    assert after["greedy"] > before["greedy"] and after["sampled"] > before["sampled"]
