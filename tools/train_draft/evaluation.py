"""Export, calibration and evaluation from the command line; the measurements of a draft as JSON and
as the model card's tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outrider.engines.draft_file import read_card
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.shipped import (
    calibrations_to_json,
    shipped_prior,
    sources_file,
)
from tools.train_draft.agreement import Trace, figures, positions_of, traces
from tools.train_draft.calibration import (
    Floats,
    calibrated_by_position,
    calibration_error,
    range_of,
    reliability,
)
from tools.train_draft.draft_file import Draft, read_draft
from tools.train_draft.export import export as export_draft
from tools.train_draft.export import open_draft
from tools.train_draft.export import recalibrate as recalibrate_draft
from tools.train_draft.replies import load
from tools.train_draft.source_calibration import GuessReader, fit_sources, sources_table
from tools.train_draft.student_weights import STUDENT_FILE, StudentWeights


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
    """Fit the calibration of the sources' confidence, and write the package's file."""
    spec, store = lookup(arguments.model), ModelStore(default_root())
    digest = load_vocabulary(spec, store).tokens_digest
    card = read_card(arguments.draft)
    if card is None:
        raise SystemExit(f"{arguments.draft} is no trained draft")
    engine = open_draft(arguments.draft, spec, store, arguments.threads)
    reader = GuessReader(engine, card.calibration, shipped_prior(digest))
    replies = (reply for folder in arguments.replies for reply in load(folder))
    guesses = list(reader.guesses(replies))
    engine.close()
    fitted = fit_sources(guesses)
    out = arguments.out or sources_file(spec.name)
    out.write_text(calibrations_to_json(digest, fitted), encoding="utf-8")
    print(sources_table(guesses, fitted))


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


MODES = {"greedy": 0.0, "sampled": 0.8}


def report(draft: Draft, seen: Mapping[str, Sequence[Trace]]) -> dict[str, Any]:
    """Report by split and mode, with each kind's agreement and the calibration's reliability."""
    curves = {"greedy": draft.calibration_greedy, "sampled": draft.calibration_sampled}
    begins = draft.calibration_begins.tolist()
    splits: dict[str, Any] = {}
    for split, found_traces in seen.items():
        for mode, temperature in MODES.items():
            found = [trace for trace in found_traces if trace.temperature == temperature]
            if found:
                entry = figures(found) | {"by_kind": _by_kind(found)}
                entry |= _calibration(found, curves[mode].astype(np.float64), begins)
                splits.setdefault(split, {})[mode] = entry
    return {
        "target": draft.target,
        "layers": draft.geometry.block_count,
        "head_rows": len(draft.head_ids),
        "splits": splits,
    }


def _by_kind(traces: Sequence[Trace]) -> dict[str, float]:
    kinds = sorted({trace.kind for trace in traces})
    return {
        kind: round(float(np.concatenate([t.agreed for t in traces if t.kind == kind]).mean()), 3)
        for kind in kinds
    }


def _calibration(traces: Sequence[Trace], curves: Floats, begins: Sequence[int]) -> dict[str, Any]:
    """Over all tokens, and over those of each range of reply positions."""
    confidences = np.concatenate([trace.confidence for trace in traces])
    agreed = np.concatenate([trace.agreed for trace in traces])
    positions = positions_of(traces)
    chances = calibrated_by_position(curves, begins, confidences, positions)
    which = range_of(positions, begins)
    ranges = [which == at for at in range(len(begins))]
    return {
        "calibration_error": round(calibration_error(chances, agreed), 4),
        "calibration_error_by_range": [
            round(calibration_error(chances[inside], agreed[inside]), 3) if inside.any() else None
            for inside in ranges
        ],
        "reliability": reliability(chances, agreed),
        "reliability_first": reliability(chances[ranges[0]], agreed[ranges[0]]),
    }


def tables(measured: Mapping[str, Any]) -> str:
    """The measurements as Markdown tables."""
    lines = [
        "| prompts | mode | replies | agreement | at reply tokens 1..5 "
        "| tokens per step, k = 2, 4, 8 | calibration error | at reply tokens 1, 2, 3, 4-8, 9+ |",
        "| --- | --- | ---: | ---: | --- | --- | ---: | --- |",
    ]
    positions = [
        "| prompts | mode | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |",
        "| --- | --- " + "| ---: " * 8 + "|",
    ]
    for split, modes in measured["splits"].items():
        for mode, entry in modes.items():
            name = f"{split.replace('_', ' ')} | {mode}"
            steps = ", ".join(f"{x:.2f}" for x in entry["tokens_per_step"].values())
            lines.append(
                f"| {name} | {entry['replies']} | {entry['agreement']:.3f} | "
                f"{_row(entry['by_reply_position'], ' ')} | {steps} | "
                f"{entry['calibration_error']:.3f} | "
                f"{_errors(entry['calibration_error_by_range'])} |"
            )
            positions.append(f"| {name} | {_row(entry['by_draft_position'], ' | ')} |")
    heading = "**Acceptance by position in the draft, all before it accepted**"
    return "\n".join(["**Agreement with the target**", "", *lines, "", heading, "", *positions])


def _errors(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def _row(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:.2f}" for value in values)
