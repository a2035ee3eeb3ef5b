"""What needs torch: the student, its losses, its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="torch is not installed (tools/train_draft/requirements.txt): not run"
)

import torch

from tests.tools.train_draft.test_batches import reply_of
from tests.tools.train_draft.test_draft_file import GEOMETRY, small_draft, small_tensors
from tools.train_draft.batches import make_batch, rows_of_ids
from tools.train_draft.draft_file import pack, unpack_as_converted
from tools.train_draft.losses import loss
from tools.train_draft.network import Student, as_shipped
from tools.train_draft.replies import Reply
from tools.train_draft.schedule import LossWeights, Schedule
from tools.train_draft.student_weights import STUDENT_FILE, StudentWeights
from tools.train_draft.target import Tensors
from tools.train_draft.training import Recipe, Trainer

EMBEDDING = np.random.default_rng(9).normal(0, 1, (50, 64)).astype(np.float32)


def test_the_student_gives_back_its_tensors() -> None:
    tensors = small_tensors()
    found = Student(GEOMETRY, tensors, EMBEDDING).tensors()
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_a_row_does_not_depend_on_what_is_behind_it() -> None:
    student = Student(GEOMETRY, small_tensors(), EMBEDDING)
    tokens = torch.randint(0, 50, (1, 12))
    other = tokens.clone()
    other[0, 7:] = 3
    rows, none = torch.arange(7), torch.zeros(0, dtype=torch.int64)
    torch.testing.assert_close(student(none, tokens, rows), student(none, other, rows))


def test_a_shared_prefix_changes_nothing() -> None:
    student = Student(GEOMETRY, small_tensors(), EMBEDDING)
    tokens = torch.randint(0, 50, (3, 12))
    tokens[:, :5] = tokens[0, :5]
    none = torch.zeros(0, dtype=torch.int64)
    whole = student(none, tokens, torch.arange(36)).unflatten(0, (3, 12))
    shared = student(tokens[0, :5], tokens[:, 5:], torch.arange(5 + 3 * 7))
    torch.testing.assert_close(shared[:5], whole[0, :5])
    torch.testing.assert_close(shared[5:].unflatten(0, (3, 7)), whole[:, 5:])


def test_training_computes_with_the_weights_that_are_shipped() -> None:
    weight = torch.randn(8, 64, requires_grad=True)
    found = as_shipped(weight)
    packed = unpack_as_converted(pack(weight.detach().numpy()))
    np.testing.assert_allclose(found.detach().numpy(), packed, atol=1e-5)
    found.sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.ones(8, 64))


def test_a_quantised_student_computes_what_its_file_holds() -> None:
    tensors = small_tensors()
    student = Student(GEOMETRY, tensors, EMBEDDING)
    student.quantise()
    rounded = {
        name: unpack_as_converted(pack(tensor))
        if tensor.ndim > 1 and name != "output.weight"
        else tensor
        for name, tensor in tensors.items()
    }
    none, tokens, rows = torch.zeros(0, dtype=torch.int64), torch.arange(12)[None], torch.arange(12)
    expected = Student(GEOMETRY, rounded, EMBEDDING)(none, tokens, rows)
    torch.testing.assert_close(student(none, tokens, rows), expected, atol=1e-4, rtol=1e-4)


def test_the_loss_is_least_for_the_target_s_own_distribution() -> None:
    target = torch.log_softmax(torch.randn(5, 6), 1)
    order = target.argsort(1, descending=True)
    top = target.gather(1, order)
    for mix in (LossWeights(1, 0, 0), LossWeights(0.5, 0.5, 0)):
        same = loss(target, order, top, torch.ones(5), mix)
        other = loss(target + torch.randn(5, 6), order, top, torch.ones(5), mix)
        assert same < other


def test_ids_without_a_row_make_the_student_unsure() -> None:
    """Half the target's mass has no row: the loss is less for a student with half elsewhere."""
    rows = torch.tensor([[0, -1]])
    logprobs = torch.tensor([[0.5, 0.5]]).log()
    mix = LossWeights(1, 0, 0)
    sure = loss(torch.tensor([[9.0, 0.0, 0.0]]), rows, logprobs, torch.ones(1), mix)
    unsure = loss(torch.tensor([[0.7, 0.0, 0.0]]), rows, logprobs, torch.ones(1), mix)
    assert unsure < sure


def _recipe(steps: int) -> Recipe:
    return Recipe((0, 1), Schedule(steps, 0.0, 3e-3), tokens_per_batch=64)


def _trainer(folder: Path, steps: int) -> Trainer:
    draft = small_draft()
    torch.manual_seed(0)
    student = Student(GEOMETRY, draft.tensors, EMBEDDING)
    return Trainer(student, draft.head_ids, GEOMETRY, _recipe(steps), folder)


def test_a_run_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    replies = [reply_of(n, 4, 5) for n in range(12)]
    first = _trainer(tmp_path, 6)
    first.run(replies)
    second = _trainer(tmp_path, 9)
    assert second.state.step == 6
    second.run(replies)
    assert second.state.step == 9
    with pytest.raises(ValueError, match="another head"):
        other = replace(small_draft(), head_ids=np.array([1, 2, 3, 4, 5, 6], np.uint32))
        Trainer(
            Student(GEOMETRY, other.tensors, EMBEDDING),
            other.head_ids,
            GEOMETRY,
            _recipe(9),
            tmp_path,
        )


def test_training_makes_the_draft_agree(tmp_path: Path) -> None:
    ids = small_draft().head_ids.astype(np.int32)
    # The token is a function of the one before: a few layers learn that.
    replies = []
    for number in range(24):
        said = ids[(np.arange(6) + number) % 6]
        top = np.stack([said, *[ids[(np.arange(6) + number + k) % 6] for k in (1, 2, 3)]], 1)
        logprobs = np.log([[0.97, 0.01, 0.01, 0.01]] * 6).astype(np.float16)
        replies.append(
            replace(
                reply_of(2 * number, 3, 6),
                temperature=0.0,
                prompt=ids[[(number - 1) % 6] * 3],
                ids=said,
                top_ids=top,
                top_logprobs=logprobs,
            )
        )
    trainer = _trainer(tmp_path, 120)
    trainer.run(replies)
    trained = StudentWeights.load(tmp_path / STUDENT_FILE)
    assert trained.history["state"]["step"] == 120
    assert _agreement(trained.tensors, replies) > 0.95 > _agreement(small_tensors(), replies)


def _agreement(tensors: Tensors, replies: list[Reply]) -> float:
    batch = make_batch(replies, rows_of_ids(small_draft().head_ids, 50))
    student = Student(GEOMETRY, tensors, EMBEDDING)
    logits = student(*(torch.from_numpy(part) for part in batch.inputs()))
    return float((logits.argmax(1).numpy() == batch.top_rows[:, 0]).mean())
