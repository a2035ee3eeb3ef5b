"""The training loop: resumable, on whatever cores it is given.

`train` is the one action of the command line that needs torch.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from tools.train_draft.batches import Batch, epoch, make_batch, rows_of_ids
from tools.train_draft.draft_file import read_draft
from tools.train_draft.losses import loss
from tools.train_draft.network import Student
from tools.train_draft.progress import Progress
from tools.train_draft.replies import Reply, load
from tools.train_draft.schedule import Schedule, loss_weights
from tools.train_draft.student_weights import STUDENT_FILE, StudentWeights
from tools.train_draft.target import Geometry, coverage, head_ids, open_target, spread

_BETAS = (0.9, 0.98)
_WEIGHT_DECAY = 0.01
_MAX_GRADIENT_NORM = 1.0
_CHECKPOINT_EVERY_S = 180.0
_REPORT_EVERY = 20
_NUM_LAYERS = 4
"""Number of the target's layers to take if none are named."""


def _device_of(name: str) -> torch.device:
    """`auto` is a GPU if torch finds one, else the CPU. Raises SystemExit for a GPU that is not
    there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"torch finds no GPU for --device {name}; use cpu, or auto")
    return torch.device(name)


def _has_bf16(device: torch.device) -> bool:
    """Elsewhere bf16 is emulated, several times slower than f32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a run. Its result depends on nothing else but the replies and the machine's
    speed."""

    layers: tuple[int, ...]
    """Indices of the target's layers that the student starts from."""
    schedule: Schedule
    tokens_per_batch: int
    seed: int = 0
    quantised_from: float = 1.0
    """Progress from which the layers compute with four-bit weights."""


@dataclass(slots=True)
class State:
    """State of a run, as in its checkpoint."""

    step: int = 0
    elapsed_s: float = 0.0
    num_tokens: int = 0
    num_targets: int = 0
    """Reply positions learnt from, over all epochs."""


class Trainer:
    """One run. `student` is trained in place."""

    def __init__(
        self,
        student: Student,
        head_ids: Any,
        geometry: Geometry,
        recipe: Recipe,
        folder: Path,
        device: str = "cpu",
    ) -> None:
        """`folder` holds the checkpoint; a run begun there is continued, whatever device it began
        on."""
        self._device = _device_of(device)
        self._autocast = partial(
            torch.autocast, self._device.type, torch.bfloat16, enabled=_has_bf16(self._device)
        )
        self._student = student.to(self._device)
        self._rows_of = rows_of_ids(head_ids, geometry.vocab_size)
        self._head_ids = head_ids
        self._geometry = geometry
        self._recipe = recipe
        self._path = folder / "checkpoint.pt"
        self._optimizer = _optimizer_of(student, recipe.schedule.peak_rate)
        self.state = State()
        if self._path.exists():
            self._resume()

    def run(self, replies: Sequence[Reply]) -> None:
        """Train to the end of the schedule."""
        begin = saved = time.monotonic()
        before_s = self.state.elapsed_s
        recent: list[float] = []
        bar = Progress()
        for group in self._groups(replies):
            progress = self._recipe.schedule.progress(self.state.step, self.state.elapsed_s)
            if progress >= 1:
                break
            if progress >= self._recipe.quantised_from:
                self._student.quantise()
            batch = make_batch(group, self._rows_of)
            recent.append(self._step(batch, progress))
            self.state.elapsed_s = before_s + time.monotonic() - begin
            if self.state.step % _REPORT_EVERY == 0:
                bar.show(progress, _report(self.state, recent))
                recent.clear()
            if time.monotonic() - saved > _CHECKPOINT_EVERY_S:
                self.save()
                saved = time.monotonic()
        bar.show(1.0, _report(self.state, recent))
        bar.close()
        self.save()

    def save(self) -> None:
        """Write the checkpoint, to continue from, and student.npz, to export."""
        partial = self._path.with_suffix(".partial")
        torch.save(
            {
                "state": self.state,
                "head_ids": self._head_ids,
                "student": self._student.state_dict(),
                "optimizer": self._optimizer.state_dict(),
            },
            partial,
        )
        partial.replace(self._path)
        history = {"recipe": asdict(self._recipe), "state": asdict(self.state)}
        StudentWeights(self._geometry, self._student.tensors(), self._head_ids, history).save(
            self._path.with_name(STUDENT_FILE)
        )

    def _resume(self) -> None:
        # Our own file: it is a pickle.
        saved = torch.load(self._path, map_location=self._device, weights_only=False)
        if not np.array_equal(saved["head_ids"], self._head_ids):
            raise ValueError(f"{self._path} is of another head; use another folder")
        self.state = saved["state"]
        self._student.load_state_dict(saved["student"], strict=True)
        self._optimizer.load_state_dict(saved["optimizer"])
        print(f"resumed at step {self.state.step}")

    def _groups(self, replies: Sequence[Reply]) -> Iterator[list[Reply]]:
        """Batches without end, from where the run is: epoch e is a function of (seed, e)."""
        step = 0
        for number in itertools.count():
            rng = np.random.default_rng((self._recipe.seed, number))
            for group in epoch(replies, self._recipe.tokens_per_batch, rng):
                step += 1
                if step > self.state.step:
                    yield group

    def _step(self, batch: Batch, progress: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.schedule.rate(progress)
        with self._autocast():
            logits = self._student(*(self._there(part) for part in batch.inputs()))
        value = loss(
            logits,
            self._there(batch.top_rows),
            self._there(batch.top_logprobs),
            self._there(batch.weights),
            loss_weights(progress),
        )
        self._optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self._student.parameters(), _MAX_GRADIENT_NORM)
        self._optimizer.step()
        self.state.step += 1
        self.state.num_tokens += batch.num_tokens
        self.state.num_targets += len(batch.rows)
        return float(value.detach())

    def _there(self, part: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(part).to(self._device)


def _optimizer_of(student: Student, rate: float) -> torch.optim.Optimizer:
    """AdamW that leaves the norms' weights undecayed."""
    matrices = [p for p in student.parameters() if p.ndim > 1]
    vectors = [p for p in student.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": _WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=_BETAS, fused=True)


def _report(state: State, recent: Sequence[float]) -> str:
    speed = state.num_tokens / max(1e-9, state.elapsed_s)
    loss = f" loss {np.mean(recent):.4f}" if recent else ""
    return f"step {state.step}{loss} {state.num_tokens / 1e6:.2f} M tokens, {speed:.0f}/s"


def train(arguments: argparse.Namespace) -> None:
    """Begin a run, or take it up."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.run.mkdir(parents=True, exist_ok=True)
    spec, store = lookup(arguments.model), ModelStore(default_root())
    target = open_target(spec, store)
    vocabulary = load_vocabulary(spec, store)
    replies = [reply for folder in arguments.replies for reply in load(folder)]
    if arguments.start is not None:
        draft = read_draft(arguments.start)
        layers = tuple(range(draft.geometry.block_count))
        geometry, tensors, ids = draft.geometry, draft.tensors, draft.head_ids
    else:
        begun = _begun_head(arguments.run)
        ids = (
            head_ids(replies, arguments.head_rows, vocabulary.stop_ids, vocabulary.size)
            if begun is None
            else begun
        )
        layers = arguments.layers or spread(target.geometry.block_count, _NUM_LAYERS)
        geometry = replace(target.geometry, block_count=len(layers))
        tensors = target.student_tensors(layers, ids)
    print(f"{len(replies)} replies, the head says {coverage(replies, ids):.2%} of their tokens")
    student = Student(geometry, tensors, target.embedding())
    schedule = Schedule(arguments.steps, arguments.minutes * 60, arguments.rate)
    recipe = Recipe(
        layers,
        schedule,
        arguments.batch_tokens,
        arguments.seed,
        arguments.quantised_from,
    )
    trainer = Trainer(student, ids, geometry, recipe, arguments.run, arguments.device)
    trainer.run(replies)


def _begun_head(run: Path) -> npt.NDArray[np.uint32] | None:
    """A run that is taken up keeps its head, whatever replies have come since."""
    begun = run / STUDENT_FILE
    return StudentWeights.load(begun).head_ids if begun.exists() else None
