"""Training from the command line; the only action that needs torch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from tools.train_draft.artifact.file import read_draft
from tools.train_draft.artifact.heads import coverage, head_ids
from tools.train_draft.artifact.target import TargetFile
from tools.train_draft.corpus.records import load
from tools.train_draft.student.network import Student
from tools.train_draft.student.schedule import Schedule
from tools.train_draft.student.training import Recipe, Trainer
from tools.train_draft.student.weights import STUDENT_FILE, StudentWeights


def train(arguments: argparse.Namespace) -> None:
    """Begin a run, or take it up."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.run.mkdir(parents=True, exist_ok=True)
    spec, store = lookup(arguments.model), ModelStore(default_root())
    target = TargetFile(store.ensure(spec.source, sha256=spec.sha256).path)
    vocabulary = load_vocabulary(spec, store)
    replies = [reply for folder in arguments.replies for reply in load(folder)]
    if arguments.start is not None:
        draft = read_draft(arguments.start)
        geometry, tensors, ids = draft.geometry, draft.tensors, draft.head_ids
    else:
        begun = _begun_head(arguments.run)
        ids = (
            head_ids(replies, arguments.head_rows, vocabulary.stop_ids, vocabulary.size)
            if begun is None
            else begun
        )
        geometry = replace(target.geometry, block_count=len(arguments.layers))
        tensors = target.student_tensors(arguments.layers, ids)
    print(f"{len(replies)} replies, the head says {coverage(replies, ids):.2%} of their tokens")
    student = Student(geometry, tensors, target.embedding())
    schedule = Schedule(arguments.steps, arguments.minutes * 60, arguments.rate)
    recipe = Recipe(
        arguments.layers,
        schedule,
        arguments.batch_tokens,
        arguments.seed,
        arguments.quantised_from,
    )
    Trainer(student, ids, geometry, recipe, arguments.run).run(replies)


def _begun_head(run: Path) -> npt.NDArray[np.uint32] | None:
    """A run that is taken up keeps its head, whatever replies have come since."""
    begun = run / STUDENT_FILE
    return StudentWeights.load(begun).head_ids if begun.exists() else None
