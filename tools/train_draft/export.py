"""Export of a student's weights to the shipped file: quantise, then calibrate the quantised
draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.draft_loading import load_draft
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.calibration import POSITION_BEGINS
from tools.train_draft.agreement import Trace, positions_of, traces
from tools.train_draft.calibration import GRID, fit_by_position
from tools.train_draft.draft_file import Draft, read_draft, replace_metadata, write_draft
from tools.train_draft.replies import Reply
from tools.train_draft.student_weights import StudentWeights
from tools.train_draft.target import Floats, open_target

_NUM_BLOCKS = 64


def open_draft(path: Path, spec: ModelSpec, store: ModelStore, threads: int) -> Engine:
    """The file as the edge runs it."""
    config = EngineConfig(
        model=spec.name, threads=threads, num_blocks=_NUM_BLOCKS, pin_threads=False
    )
    return load_draft(str(path.absolute()), spec, store, config).engine


def export(
    weights: StudentWeights,
    path: Path,
    spec: ModelSpec,
    store: ModelStore,
    replies: Sequence[Reply],
    *,
    layers: str,
    head: str,
    threads: int,
) -> Draft:
    """Write the draft to `path`, calibrated on `replies`, which must not train it."""
    draft = _uncalibrated(weights, spec, store)
    write_draft(path, draft, layers, head)
    engine = open_draft(path, spec, store, threads)
    draft = _calibrated(draft, list(traces(engine, replies)))
    engine.close()
    write_draft(path, draft, layers, head)
    return draft


def _uncalibrated(weights: StudentWeights, spec: ModelSpec, store: ModelStore) -> Draft:
    target = open_target(spec, store)
    identity = np.tile(GRID.astype(np.float32), (len(POSITION_BEGINS), 1))
    return Draft(
        geometry=weights.geometry,
        tensors=weights.tensors,
        head_ids=weights.head_ids,
        target=spec.name,
        # Of the model's own file: what a definition adds changes no id.
        vocabulary_digest=load_vocabulary(spec.as_in_file(), store).digest.hex(),
        calibration_begins=np.array(POSITION_BEGINS, np.uint32),
        calibration_greedy=identity,
        calibration_sampled=identity,
        embedding=None if target.has_file else target.embedding(),
    )


def recalibrate(
    path: Path,
    out: Path,
    spec: ModelSpec,
    store: ModelStore,
    replies: Sequence[Reply],
    *,
    threads: int,
) -> Draft:
    """Copy the draft at `path` to `out` with calibration fitted anew on `replies`; its weights stay
    as they are, bit for bit."""
    engine = open_draft(path, spec, store, threads)
    draft = _calibrated(read_draft(path), list(traces(engine, replies)))
    engine.close()
    replace_metadata(path, out, draft)
    return draft


def _calibrated(draft: Draft, seen: Sequence[Trace]) -> Draft:
    return replace(
        draft,
        calibration_begins=np.array(POSITION_BEGINS, np.uint32),
        calibration_greedy=_fit([trace for trace in seen if trace.temperature == 0]),
        calibration_sampled=_fit([trace for trace in seen if trace.temperature > 0]),
    )


def _fit(seen: Sequence[Trace]) -> Floats:
    confidences = np.concatenate([trace.confidence for trace in seen] or [np.zeros(0)])
    agreed = np.concatenate([trace.agreed for trace in seen] or [np.zeros(0, bool)])
    positions = positions_of(seen)
    return fit_by_position(confidences, positions, agreed, POSITION_BEGINS).astype(np.float32)
