"""Export and evaluation from the command line."""

from __future__ import annotations

import argparse
import json

from outrider.engines.draft_file import read_card
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.speculation.shipped import (
    calibrations_from_json,
    calibrations_to_json,
    shipped_calibrations,
    shipped_prior,
    sources_file,
)
from services.edge.app import reply_tools
from tools.train_draft.artifact.export import export as export_draft
from tools.train_draft.artifact.export import open_draft
from tools.train_draft.artifact.export import recalibrate as recalibrate_draft
from tools.train_draft.artifact.file import read_draft
from tools.train_draft.corpus.records import load
from tools.train_draft.evaluation.display import Outcome, outcome_of, policies
from tools.train_draft.evaluation.display import report as display_report
from tools.train_draft.evaluation.display import tables as display_tables
from tools.train_draft.evaluation.promises import PromiseReader, fit_sources, sources_table
from tools.train_draft.evaluation.replay import DisplayReplay, GuessRecorder, Speeds
from tools.train_draft.evaluation.report import report, tables
from tools.train_draft.evaluation.scoring import replies_with_room, traces
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
    out.write_text(calibrations_to_json(digest, fitted), encoding="utf-8")
    print(sources_table(promises, fitted))


def display(arguments: argparse.Namespace) -> None:
    """Replay recorded replies and tell what their readers would have been shown."""
    spec, store = lookup(arguments.model), ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    card = read_card(arguments.draft)
    if card is None:
        raise SystemExit(f"{arguments.draft} is no trained draft")
    engine = open_draft(arguments.draft, spec, store, arguments.threads)
    digest, sources = vocabulary.digest, shipped_calibrations(vocabulary.digest)
    if arguments.sources:
        digest, sources = calibrations_from_json(arguments.sources.read_text(encoding="utf-8"))
    speeds = Speeds(
        arguments.ttft_ms,
        arguments.prompt_ms,
        arguments.token_ms,
        arguments.draft_call_ms,
        arguments.draft_row_ms,
    )
    recorder = GuessRecorder(
        engine, card.calibration, shipped_prior(digest), sources, vocabulary.stop_ids, speeds
    )
    tools = reply_tools(vocabulary, engine.info.max_context_tokens)
    screen = DisplayReplay(tools, sources, digest, speeds)
    replies = [reply for folder in arguments.replies for reply in load(folder)]
    measured: dict[tuple[str, float, str], list[Outcome]] = {}
    for rtt_ms in arguments.rtt_ms:
        for reply in replies_with_room(engine, replies):
            guessed = recorder.guesses(reply, rtt_ms / 1e3)
            mode = "sampled" if reply.temperature > 0 else "greedy"
            for name, policy in policies().items():
                outcome = outcome_of(screen.show(guessed, policy))
                measured.setdefault((mode, rtt_ms, name), []).append(outcome)
    engine.close()
    found = display_report(measured)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(display_tables(found))


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
