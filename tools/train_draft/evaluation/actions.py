"""Export and evaluation from the command line."""

from __future__ import annotations

import argparse
import json

from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from tools.train_draft.artifact.export import export as export_draft
from tools.train_draft.artifact.export import open_draft
from tools.train_draft.artifact.export import recalibrate as recalibrate_draft
from tools.train_draft.artifact.file import read_draft
from tools.train_draft.corpus.records import load
from tools.train_draft.evaluation.report import report, tables
from tools.train_draft.evaluation.scoring import traces
from tools.train_draft.student.weights import STUDENT_FILE, StudentWeights


def export(arguments: argparse.Namespace) -> None:
    """Write and calibrate the file."""
    draft = export_draft(
        StudentWeights.load(arguments.run / STUDENT_FILE),
        arguments.out,
        lookup(arguments.model),
        ModelStore(default_root()),
        [reply for folder in arguments.replies for reply in load(folder)],
        layers=arguments.layers,
        head=arguments.head,
        threads=arguments.threads,
    )
    size = arguments.out.stat().st_size
    print(f"{arguments.out.name}: {draft.geometry.block_count} layers, {size} bytes")


def recalibrate(arguments: argparse.Namespace) -> None:
    """Fit the calibration of a file anew, its weights being as they are."""
    recalibrate_draft(
        arguments.draft,
        arguments.out,
        lookup(arguments.model),
        ModelStore(default_root()),
        [reply for folder in arguments.replies for reply in load(folder)],
        threads=arguments.threads,
    )


def evaluate(arguments: argparse.Namespace) -> None:
    """Measure a file; the folders' names are the splits'."""
    spec, store = lookup(arguments.model), ModelStore(default_root())
    engine = open_draft(arguments.draft, spec, store, arguments.threads)
    seen = {folder.name: list(traces(engine, load(folder))) for folder in arguments.replies}
    measured = report(read_draft(arguments.draft), seen)
    engine.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")
    print(tables(measured))
