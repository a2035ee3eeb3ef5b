"""Distils a draft on a GPU from chats that lie there, against the target's whole distribution.

What the target thought is kept as its last hidden row, from which its chances of all head rows
follow by one product; so nothing is stored of 49,152 ids but 1 KB, and no top ids are cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tools.train_draft.batches import FIRST_WEIGHT, LENGTH_STEP, WEIGHT_DECAY
from tools.train_draft.losses import ACCEPTANCE_TEMPERATURE
from tools.train_draft.network import Student
from tools.train_draft.schedule import LossWeights, Schedule, loss_weights
from tools.train_draft.slots import Chats
from tools.train_draft.training import MAX_GRADIENT_NORM, optimizer_of

_KEPT = 2e-4
"""Ids that the target finds less likely than this are one event: whether they are chosen one of
them hardly ever matters, and a student that puts its chance there is unsure."""
_LEAST = 1e-6
_CHUNK_ROWS = 8192


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What the target thinks at N places."""

    hidden: Tensor
    """[N, width]"""
    masses: Tensor
    """[N] log of the sum of exp(logit)."""
    top: Tensor
    """[N] head row of the likeliest id, -1 where the head lacks it."""
    greedy: Tensor
    """[N] whether the reply is."""
    weights: Tensor
    """[N] how much each matters; they sum to 1."""


def head_loss(
    hidden: Tensor,
    head: Tensor,
    target_head: Tensor,
    rows: TargetRows,
    mixes: tuple[LossWeights, LossWeights],
) -> Tensor:
    """The loss of a student's normed hidden rows [N, width] under its head [R, width], against the
    target's with `target_head` [R, width]; `mixes` are of greedy and of sampled replies."""
    return _HeadLoss.apply(hidden, head, target_head, rows, mixes)


class _HeadLoss(torch.autograd.Function):
    """Logits of all rows at a time would fill the device: both gradients are computed in the
    forward pass, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        target_head: Tensor,
        rows: TargetRows,
        mixes: tuple[LossWeights, LossWeights],
    ) -> Tensor:
        to_hidden = torch.empty_like(hidden)
        to_head = torch.zeros_like(head)
        total = torch.zeros((), device=hidden.device)
        for begin in range(0, len(hidden), _CHUNK_ROWS):
            part = slice(begin, begin + _CHUNK_ROWS)
            one = TargetRows(
                rows.hidden[part],
                rows.masses[part],
                rows.top[part],
                rows.greedy[part],
                rows.weights[part],
            )
            value, gradient = _loss_and_gradient(
                hidden[part] @ head.T, one.hidden.float() @ target_head.T, one, mixes
            )
            total += value
            to_hidden[part] = gradient @ head
            to_head.addmm_(gradient.T, hidden[part])
        ctx.save_for_backward(to_hidden, to_head)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_hidden, to_head = ctx.saved_tensors
        return to_hidden * gradient, to_head * gradient, None, None, None


def _loss_and_gradient(
    logits: Tensor, target_logits: Tensor, rows: TargetRows, mixes: tuple[LossWeights, LossWeights]
) -> tuple[Tensor, Tensor]:
    """The sum over rows, and its gradient to `logits` [n, R]."""
    divergence, acceptance, argmax = (
        torch.where(rows.greedy, getattr(mixes[0], name), getattr(mixes[1], name)) * rows.weights
        for name in ("divergence", "acceptance", "argmax")
    )
    log_target = target_logits - rows.masses[:, None]
    target = log_target.exp()
    log_mass = logits.logsumexp(1, keepdim=True)
    logq = logits - log_mass
    draft = logq.exp()
    # Forward KL; what the head lacks and what is unlikely is one event.
    kept = target > _KEPT
    inside = torch.where(kept, target, 0.0)
    rest = (1 - inside.sum(1)).clamp(min=_LEAST)
    rest_draft = (1 - torch.where(kept, draft, 0.0).sum(1)).clamp(min=_LEAST)
    value = (inside * (log_target - logq)).sum(1) + rest * (rest.log() - rest_draft.log())
    total = divergence * value
    # An id's own event keeps its chance; those that are one share what there is too much of.
    gradient = torch.where(kept, draft - target, draft * (1 - rest / rest_draft)[:, None])
    gradient.mul_(divergence[:, None])
    # Cross-entropy on the likeliest id.
    says = rows.top >= 0
    at = rows.top.clamp(min=0)[:, None]
    coefficient = torch.where(says, argmax, 0.0)
    total = total - coefficient * logq.gather(1, at)[:, 0]
    gradient.addcmul_(draft, coefficient[:, None])
    gradient.scatter_add_(1, at, -coefficient[:, None])
    # -log of the chance that a draft survives, at the temperature of most sampled replies.
    sharper = 1 / ACCEPTANCE_TEMPERATURE
    outside = (1 - target.sum(1)).clamp(min=0)
    target = target.pow_(sharper)
    target /= (target.sum(1) + outside**sharper)[:, None]
    draft = torch.softmax(logits * sharper, 1)
    overlap = torch.minimum(target, draft).sum(1).clamp(min=1e-3)
    total = total - acceptance * overlap.log()
    to_draft = torch.where(draft < target, draft, 0.0)
    scale = (acceptance * sharper / overlap)[:, None]
    gradient.addcmul_(draft * to_draft.sum(1, keepdim=True) - to_draft, scale)
    return total.sum(), gradient


def mixes_at(progress: float) -> tuple[LossWeights, LossWeights]:
    """Of greedy and of sampled replies: as `loss_weights` at first; later what each kind needs."""
    late = loss_weights(1.0)
    now = loss_weights(progress)
    turned = now.acceptance / late.acceptance
    greedy = LossWeights(
        1 - 0.20 * turned - (0.15 + 0.35 * turned), 0.20 * turned, 0.15 + 0.35 * turned
    )
    sampled = LossWeights(1 - 0.60 * turned - 0.15, 0.60 * turned, 0.15)
    return greedy, sampled


class Distiller:
    """Trains `student` in place on chats."""

    def __init__(
        self,
        student: Student,
        head_ids: npt.NDArray[np.uint32],
        target_head: Tensor,
        schedule: Schedule,
        *,
        tokens_per_batch: int,
        quantised_from: float,
        seed: int = 0,
    ) -> None:
        """`target_head` is [V, width], on the device on which all is done."""
        self._student = student
        self._device = target_head.device
        ids = torch.from_numpy(head_ids.astype(np.int64)).to(self._device)
        self._target_head = target_head[ids].float()
        self._rows_of = torch.full((len(target_head),), -1, device=self._device)
        self._rows_of[ids] = torch.arange(len(ids), device=self._device)
        self._schedule = schedule
        self._tokens_per_batch = tokens_per_batch
        self._quantised_from = quantised_from
        self._rng = np.random.default_rng(seed)
        self._optimizer = optimizer_of(student, schedule.peak_rate)
        self.step = 0
        self.num_tokens = 0
        self.num_targets = 0
        self.num_epochs = 0

    def run(
        self,
        chats: Chats,
        chosen: Tensor,
        report: Callable[[float, int, float], None],
        every: int = 50,
    ) -> None:
        """To the end of the schedule, on the `chosen` chats again and again; `report` gets
        progress, step and mean loss."""
        lengths = chats.lengths[chosen].cpu().numpy()
        begin = time.monotonic()
        recent: list[Tensor] = []
        while True:
            self.num_epochs += 1
            for group in self._groups(lengths):
                if self.step % 10 == 0 and self._device.type == "cuda":
                    torch.cuda.synchronize()
                progress = self._schedule.progress(self.step, time.monotonic() - begin)
                if progress >= 1:
                    return
                if progress >= self._quantised_from:
                    self._student.quantise()
                recent.append(
                    self._learn(chats, chosen[torch.from_numpy(group).to(self._device)], progress)
                )
                if self.step % every == 0:
                    report(progress, self.step, float(torch.stack(recent).mean()))
                    recent.clear()

    def _groups(self, lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Of one epoch: chats of like length, in random order."""
        order = np.argsort(lengths * self._rng.uniform(0.9, 1.1, len(lengths)))
        groups, begin = [], 0
        sizes = lengths[order]
        while begin < len(order):
            end = begin + max(1, self._tokens_per_batch // (int(sizes[begin]) + LENGTH_STEP))
            while (
                end > begin + 1
                and int(sizes[begin:end].max()) * (end - begin) > 1.3 * self._tokens_per_batch
            ):
                end -= max(1, (end - begin) // 16)
            groups.append(order[begin:end])
            begin = end
        return [groups[at] for at in self._rng.permutation(len(groups))]

    def _learn(self, chats: Chats, which: Tensor, progress: float) -> Tensor:
        tokens, at, rows = batch_of(chats, which, self._rows_of)
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate(progress)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            hidden = self._student.hidden(tokens, at)
        value = head_loss(
            hidden.float(), self._student.output, self._target_head, rows, mixes_at(progress)
        )
        self._optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self._student.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        self.step += 1
        self.num_tokens += tokens.numel()
        self.num_targets += len(at)
        return value.detach()

    @torch.inference_mode()
    def agreement(self, chats: Chats, chosen: Tensor) -> dict[str, float]:
        """With the target's likeliest id: over all rows and at first tokens, by way of choosing;
        and the mean overlap of both at the temperature of sampled replies."""
        found: dict[str, list[Tensor]] = {}
        for which in chosen.split(256):
            tokens, at, rows = batch_of(chats, which, self._rows_of)
            with torch.autocast(
                self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"
            ):
                hidden = self._student.hidden(tokens, at)
            logits = hidden.float() @ self._student.output.T
            right = (logits.argmax(1) == rows.top).float()
            target = (rows.hidden.float() @ self._target_head.T - rows.masses[:, None]).exp()
            outside = (1 - target.sum(1)).clamp(min=0) ** 1.25
            target = target**1.25
            target /= (target.sum(1) + outside)[:, None]
            overlap = torch.minimum(target, torch.softmax(logits * 1.25, 1)).sum(1)
            first = torch.zeros_like(rows.greedy)
            replies = chats.replies[which]
            first[replies.cumsum(0) - replies] = True
            for name, kept, values in (
                ("greedy", rows.greedy, right),
                ("greedy first", rows.greedy & first, right),
                ("sampled", ~rows.greedy, overlap),
                ("sampled first", ~rows.greedy & first, overlap),
            ):
                found.setdefault(name, []).append(values[kept])
        return {name: round(float(torch.cat(parts).mean()), 4) for name, parts in found.items()}


def batch_of(chats: Chats, which: Tensor, rows_of: Tensor) -> tuple[Tensor, Tensor, TargetRows]:
    """Of the chats `which` [B]: tokens [B, T] padded behind, the places of their replies' rows in
    B * T, and what the target thought there."""
    lengths, replies = chats.lengths[which], chats.replies[which]
    width = -(-(int(lengths.max()) - 1) // LENGTH_STEP) * LENGTH_STEP
    device = which.device
    place = torch.arange(width, device=device)
    inside = place < (lengths - 1)[:, None]
    index = (chats.offsets[which][:, None] + place).clamp(max=len(chats.tokens) - 1)
    tokens = torch.where(inside, chats.tokens[index].long(), 0)
    within = place - (lengths - replies - 1)[:, None]
    is_row = inside & (within >= 0)
    at = is_row.flatten().nonzero()[:, 0]
    number = within.flatten()[at]
    owner = at // width
    source = chats.rows[which][owner] + number
    weights = 1 + FIRST_WEIGHT * torch.exp(-number.float() / WEIGHT_DECAY)
    rows = TargetRows(
        chats.hidden[source],
        chats.masses[source],
        rows_of[chats.top[source].long()],
        chats.greedy[which][owner],
        weights / weights.sum(),
    )
    return tokens, at, rows


def frequent_ids(
    chats: Chats, chosen: Tensor, num_rows: int, always: npt.NDArray[np.int64], vocabulary_size: int
) -> npt.NDArray[np.uint32]:
    """[num_rows] ids, ascending: those of `always`, then those that the chosen replies say most,
    counted at every place by what was said and by what was likeliest."""
    owner = torch.repeat_interleave(
        torch.arange(len(chats), device=chats.tokens.device), chats.lengths
    )
    keep = torch.zeros(len(chats), dtype=torch.bool, device=chats.tokens.device)
    keep[chosen] = True
    place = torch.arange(len(owner), device=owner.device) - chats.offsets[owner]
    said = keep[owner] & (place >= (chats.lengths - chats.replies)[owner])
    counts = torch.bincount(chats.tokens[said].long(), minlength=vocabulary_size).double()
    kept = torch.repeat_interleave(keep, chats.replies)
    counts += 0.5 * torch.bincount(chats.top[kept].long(), minlength=vocabulary_size)
    weights = counts.cpu().numpy()
    weights[always] = np.inf
    ranked = np.argsort(-weights, kind="stable")
    return np.sort(ranked[:num_rows]).astype(np.uint32)
