"""Export and evaluation from the command line."""

from __future__ import annotations

import argparse
import json

from outrider.engines.draft.card import read_card
from outrider.models.catalog import lookup
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.speculation.platt import sources_file, to_json
from outrider.speculation.prior import shipped_prior
from tools.train_draft.artifact.export import export as export_draft
from tools.train_draft.artifact.export import open_draft
from tools.train_draft.artifact.export import recalibrate as recalibrate_draft
from tools.train_draft.artifact.file import read_draft
from tools.train_draft.corpus.records import load
from tools.train_draft.evaluation.promises import PromiseReader, fit_sources, sources_table
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


def calibrate_sources(arguments: argparse.Namespace) -> None:
    """Fit what the sources' promises are worth, and write the package's file."""
    spec, store = lookup(arguments.model), ModelStore(default_root())
    digest = load_vocabulary(spec, store).digest
    card = read_card(arguments.draft)
    if card is None:
        raise SystemExit(f"{arguments.draft} is no trained draft")
    engine = open_draft(arguments.draft, spec, store, arguments.threads)
    reader = PromiseReader(engine, card.calibration, shipped_prior(digest))
    replies = (reply for folder in arguments.replies for reply in load(folder))
    promises = list(reader.promises(replies))
    engine.close()
    fitted = fit_sources(promises)
    out = arguments.out or sources_file(spec.name)
    out.write_text(to_json(digest, fitted), encoding="utf-8")
    print(sources_table(promises, fitted))


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
