"""Replies as padded batches: the student's input and the target's distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tools.train_draft.replies import Ids, Reply

Floats: TypeAlias = npt.NDArray[np.float32]
Indices: TypeAlias = npt.NDArray[np.int64]

LENGTH_STEP = 16
"""Lengths are padded to a multiple of this: few shapes, little padding."""
_PROBE_TOKENS = 16
"""Leading tokens that prompts must have in common to be taken to share their beginning."""
FIRST_WEIGHT = 5.0
WEIGHT_DECAY = 3.0


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences of up to P + T tokens with N reply positions among them."""

    prefix: Indices
    """[P] tokens that all sequences begin with."""
    tokens: Indices
    """[B, T] tokens that follow in each sequence, padded at the end with 0."""
    rows: Indices
    """[N] indices into the P + B * T positions: those whose next token is a reply's."""
    top_rows: Indices
    """[N, K] head rows of the target's likeliest ids; -1 where the head lacks them."""
    top_logprobs: Floats
    """[N, K] the target's log probabilities of these."""
    weights: Floats
    """[N] how much each position matters; they sum to N."""

    def inputs(self) -> tuple[Indices, Indices, Indices]:
        """The student's arguments: prefix, tokens, rows."""
        return self.prefix, self.tokens, self.rows

    @property
    def num_tokens(self) -> int:
        """Tokens that the student computes, padding included."""
        return self.prefix.size + self.tokens.size


def position_weights(num: int) -> Floats:
    """[num] weights of reply positions 0, 1, ...: the first counts six times as much as late ones,
    since the reader waits for it and no earlier token of the reply helps to guess it."""
    at = np.arange(num, dtype=np.float32)
    return np.asarray(1 + FIRST_WEIGHT * np.exp(-at / WEIGHT_DECAY), np.float32)


def rows_of_ids(head_ids: npt.NDArray[np.uint32], vocabulary_size: int) -> npt.NDArray[np.int32]:
    """[V] the head row of each id, -1 for those it lacks."""
    rows = np.full(vocabulary_size, -1, np.int32)
    rows[head_ids] = np.arange(len(head_ids))
    return rows


def make_batch(replies: Sequence[Reply], rows_of: npt.NDArray[np.int32]) -> Batch:
    """One batch of these replies."""
    prefix = _common_prefix(replies)
    texts = [np.concatenate((r.prompt[len(prefix) :], r.ids[:-1])) for r in replies]
    width = -(-max(map(len, texts)) // LENGTH_STEP) * LENGTH_STEP
    tokens = np.zeros((len(replies), width), np.int64)
    rows = []
    for at, (reply, text) in enumerate(zip(replies, texts, strict=True)):
        tokens[at, : len(text)] = text
        end = len(prefix) + at * width + len(text)
        rows.append(np.arange(end - len(reply.ids), end, dtype=np.int64))
    weights = np.concatenate([position_weights(len(r.ids)) for r in replies])
    return Batch(
        prefix=prefix.astype(np.int64),
        tokens=tokens,
        rows=np.concatenate(rows),
        top_rows=rows_of[np.concatenate([r.top_ids for r in replies])].astype(np.int64),
        top_logprobs=np.concatenate([r.top_logprobs for r in replies]).astype(np.float32),
        weights=weights * (len(weights) / weights.sum()),
    )


def epoch(
    replies: Sequence[Reply], tokens_per_batch: int, rng: np.random.Generator
) -> Iterator[list[Reply]]:
    """All replies once, the batches in random order. Those of like length, and those that begin as
    most do, are together."""
    lengths = np.array([len(r.prompt) + len(r.ids) for r in replies])
    # Jittered, so that the same replies do not meet in every epoch.
    order = np.argsort(lengths * rng.uniform(0.9, 1.1, len(lengths)))
    usual = _begin_as_most(replies)
    groups: list[list[Reply]] = []
    for mask in (usual, ~usual):
        groups += _cut(replies, order[mask[order]], lengths, tokens_per_batch)
    for at in rng.permutation(len(groups)):
        yield groups[at]


def _cut(
    replies: Sequence[Reply], order: Indices, lengths: Indices, tokens_per_batch: int
) -> Iterator[list[Reply]]:
    group: list[Reply] = []
    longest = 0
    for index in order.tolist():
        longest = max(longest, int(lengths[index]))
        if group and longest * (len(group) + 1) > tokens_per_batch:
            yield group
            group, longest = [], int(lengths[index])
        group.append(replies[index])
    if group:
        yield group


def _begin_as_most(replies: Sequence[Reply]) -> npt.NDArray[np.bool_]:
    begins = [reply.prompt[:_PROBE_TOKENS].tobytes() for reply in replies]
    ((usual, _),) = Counter(begins).most_common(1)
    return np.array([begin == usual for begin in begins])


def _common_prefix(replies: Sequence[Reply]) -> Ids:
    """The tokens that all prompts begin with, without any prompt's last token: its row is
    needed."""
    shortest = min(len(reply.prompt) for reply in replies) - 1
    begins = np.stack([reply.prompt[:shortest] for reply in replies])
    differ = np.flatnonzero((begins != begins[0]).any(0))
    return begins[0, : differ[0] if len(differ) else shortest]
