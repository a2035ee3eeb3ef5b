"""Generating with the target in torch, on a small one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="torch is not installed (tools/train_draft/requirements.txt): not run"
)

import torch

from tests.tools.train_draft.test_draft_file import GEOMETRY, small_tensors
from tools.train_draft.network import Student
from tools.train_draft.self_written import NGRAM, Seed, Template
from tools.train_draft.slots import Chats, Pool, Slots, joined, wanted
from tools.train_draft.target_network import TargetNetwork

EMBEDDING = np.random.default_rng(9).normal(0, 1, (50, 64)).astype(np.float32)
TEMPLATE = Template(begin=(1, 5, 6), answer=(2, 7, 8), again=(7, 1, 6))
STOPS = (0, 2)


def _tensors() -> dict[str, np.ndarray]:
    tensors = small_tensors(50)
    tensors["output.weight"] *= 4
    return tensors


def _network() -> TargetNetwork:
    return TargetNetwork(GEOMETRY, _tensors(), EMBEDDING, torch.device("cpu"), torch.float32)


def _seeds() -> list[Seed]:
    whole = [
        Seed((*TEMPLATE.begin, *range(10, 10 + n), *TEMPLATE.answer), False, 0.8 * (n % 2), 6)
        for n in range(1, 9)
    ]
    own = [Seed((*TEMPLATE.begin, *range(20, 20 + n)), True, 0.0, 5) for n in range(4)]
    return whole + own


def _chats(
    network: TargetNetwork, seeds: list[Seed], *, reads: bool = False, harvests: int = 70
) -> Chats:
    torch.manual_seed(0)
    slots = Slots(network, TEMPLATE, STOPS, seeds, 5, 48, reads=reads)
    pool, left = Pool(), iter(range(harvests))
    slots.run(pool, lambda: next(left, None) is None, steps_per_harvest=3)
    return joined(pool)


def test_the_target_computes_what_the_student_does() -> None:
    """All layers and the whole head of a model are the model."""
    student = Student(GEOMETRY, _tensors(), EMBEDDING)
    tokens = torch.randint(0, 50, (3, 12))
    none = torch.zeros(0, dtype=torch.int64)
    expected = student(none, tokens, torch.arange(36)).unflatten(0, (3, 12))
    network = _network()
    torch.testing.assert_close(network.logits(network.read(tokens)), expected)


def test_steps_are_what_reading_gives() -> None:
    network = _network()
    tokens = torch.randint(0, 50, (3, 12))
    whole = network.read(tokens)
    cache = network.new_cache(4, 16)
    network.read(tokens[:, :4], cache, torch.tensor([2, 0, 1]))
    for at in range(4, 12):
        row = torch.cat((tokens[[1, 2, 0], at], tokens[:1, 0]))
        positions = torch.tensor([at, at, at, 0])
        hidden = network.step(row, positions, cache)
        torch.testing.assert_close(hidden[:3], whole[[1, 2, 0], at])


@pytest.mark.parametrize("reads", [False, True])
def test_chats_are_prompt_and_reply_with_what_the_target_thought(reads: bool) -> None:
    network, seeds = _network(), _seeds()
    chats = _chats(network, seeds, reads=reads)
    given = {seed.ids: seed for seed in seeds if not seed.writes_prompt}
    assert len(chats) > 20 and chats.own.any() and chats.greedy.any() and not chats.greedy.all()
    for at in range(len(chats)):
        begin, length, num = (
            int(part[at]) for part in (chats.offsets, chats.lengths, chats.replies)
        )
        tokens = chats.tokens[begin : begin + length].long()
        prompt, reply = tuple(tokens[: length - num].tolist()), tokens[length - num :].tolist()
        assert prompt[-len(TEMPLATE.answer) :] == TEMPLATE.answer
        assert bool(chats.own[at]) == (prompt not in given)
        assert not set(reply[:-1]) & set(STOPS)
        most = 5 if chats.own[at] else 6
        assert num == most or (num < most and reply[-1] in STOPS)
        rows = network.read(tokens[None])[0, length - num - 1 : -1]
        kept = slice(int(chats.rows[at]), int(chats.rows[at]) + num)
        torch.testing.assert_close(chats.hidden[kept].float(), rows, atol=2e-3, rtol=2e-3)
        logits = network.logits(rows)
        torch.testing.assert_close(chats.masses[kept], logits.logsumexp(1))
        assert chats.top[kept].tolist() == logits.argmax(1).tolist()
        if chats.greedy[at]:
            assert reply == logits.argmax(1).tolist()


def test_sampled_replies_differ() -> None:
    seeds = [replace(_seeds()[0], temperature=1.0)]
    chats = _chats(_network(), seeds)
    texts = [
        tuple(chats.tokens[b : b + n].tolist())
        for b, n in zip(chats.offsets.tolist(), chats.lengths.tolist(), strict=True)
    ]
    assert len(set(texts)) > len(texts) / 2


def test_seeds_that_are_too_long_are_left_out() -> None:
    long = Seed(tuple(range(3, 47)), False, 0.0, 30)
    with pytest.raises(ValueError, match="no seed fits"):
        Slots(_network(), TEMPLATE, STOPS, [long], 2, 48)


def test_prompts_are_learnt_from_once_and_never_the_forbidden_ones() -> None:
    chats = _chats(_network(), _seeds())
    none = torch.zeros(0, NGRAM, dtype=torch.int64)
    ids = torch.arange(50)
    kept = wanted(chats, ids, none)

    def prompt(at: int) -> tuple[int, ...]:
        begin = int(chats.offsets[at])
        return tuple(
            chats.tokens[begin : begin + int(chats.lengths[at] - chats.replies[at])].tolist()
        )

    found = [(prompt(at), bool(chats.greedy[at])) for at in kept.tolist()]
    everything = {(prompt(at), bool(chats.greedy[at])) for at in range(len(chats))}
    assert len(found) == len(set(found)) and set(found) == everything
    long = max((p for p, _ in found), key=len)
    row = torch.tensor([long[:NGRAM]])
    without = wanted(chats, ids, row)
    left = {prompt(at) for at in without.tolist()}
    assert left == {p for p, _ in found if row[0].tolist() != list(p[:NGRAM])}
