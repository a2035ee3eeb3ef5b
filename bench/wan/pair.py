"""A slow target and a draft model of its family: what `python -m bench.wan --pair` measures.

The target is Qwen2.5-Coder-1.5B-Instruct, on one thread; edges draft with Qwen2.5-Coder-0.5B-
Instruct, which has the same tokens (`bench.harness.larger_models` fetches both). All else is as in
`bench.wan`: edge, router and replica are real, and a relay holds back what passes between them. A
call of this target takes many times as long as one of the default model, as targets do where
drafting is of use. The schemes take turns, prompt by prompt:

(a) plain streaming, speculation off: the baseline.
(b) the region drafts copies of the text and n-grams for itself; the edge drafts nothing.
(c) the region runs the draft model. A replica has no draft model of its own; the nearest that
    exists is a gateway at the region, whose drafter sends its drafts over no distance.
(d) the edge drafts copies of the text alone, the region does (b).
(f) Outrider as it comes: the edge drafts with model and copies and sends drafts as long as its
    controller says that they pay; the region does (b).
(g) as (f), and drafts are always sent.

(a), (b) and (c) are as fast at every distance once a reply has begun, so (b) and (c) are measured
at few. There is no scheme of an edge's drafts without the region's own: a region that may use the
edge's drafts always drafts for itself, too.

The drafter has the edge's core and the replica the region's, but both share the machine's memory: a
call of the target takes longer beside a drafter that computes. Words, paces and whole replies are
measured as in `bench.wan`. All schemes must commit the same ids for a prompt at every distance; the
run fails otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.harness import TOO_FEW, Cell, Run, median, start
from bench.harness.larger_models import CODER_05B, CODER_15B, have_all
from bench.wan.first_words import first_word_tables
from bench.wan.headline import headline
from bench.wan.measure import Measured, measure
from bench.wan.plan import PAIR, PAIR_QUICK, PLAIN, Size
from bench.wan.report import keep_samples, keep_settings, pace_tables
from bench.wan.results import Results
from bench.wan.samples import Sample
from bench.wan.testbed import RegionEngine, running_testbed
from outrider.engines.draft_loading import DRAFT_WEIGHT_BITS
from outrider.engines.openvino.convert import converted
from outrider.engines.openvino.layouts import LAYOUT_OF_BITS
from outrider.models.definitions import DefinitionsSource, read_definitions
from outrider.models.store import ModelStore, default_root
from outrider.telemetry.logs import configure_logging

TARGET = "pair-target"
DRAFT = "pair-draft"
_ENGINE = {"max_fixed_rows": 0}
"""No second copy of the weights for each size of a call: with models so large it saves nothing
that can be measured, and memory is what such a pair needs most."""


def main(arguments: argparse.Namespace) -> int:
    """Fetches, measures, compares, reports; the exit status."""
    run = start("wan_pair", arguments)
    configure_logging("bench", "error")
    files, missing = have_all((CODER_15B, CODER_05B))
    if missing:
        return 1
    tables = definitions(files[CODER_15B.name], files[CODER_05B.name])
    _prepare(tables)
    size = PAIR_QUICK if run.quick else PAIR
    cores = os.sched_getaffinity(0)
    try:
        measured = asyncio.run(_measure(tables, size))
    finally:
        os.sched_setaffinity(0, cores)
    results = Results(measured.batches)
    for name, table in tables.items():
        run.setting(name, **{key: value for key, value in table.items() if key != "source"})
    keep_samples(run, results)
    keep_settings(run, size, measured)
    add_pair_tables(run, results)
    wrong = unequal_replies(results)
    run.figures["not_exact"] = wrong
    run.finish()
    for line in wrong:
        print(f"not exact: {line}", file=sys.stderr)
    return int(bool(wrong))


def definitions(target: Path, draft: Path) -> dict[str, Mapping[str, object]]:
    """The tables [models.NAME] of every service."""
    return {
        TARGET: {
            "source": f"file:{target}",
            "sha256": CODER_15B.sha256,
            "max_context_tokens": 4096,
            "draft": DRAFT,
            "engine": _ENGINE,
        },
        DRAFT: {"source": f"file:{draft}", "sha256": CODER_05B.sha256, "engine": _ENGINE},
    }


def _prepare(tables: Mapping[str, Mapping[str, object]]) -> None:
    """Have both models in the store as they will be loaded, which takes minutes the first time."""
    specs = read_definitions(tables, DefinitionsSource("bench.wan.pair", lambda text: text))
    target, draft = (next(s for s in specs if s.name == name) for name in (TARGET, DRAFT))
    store = ModelStore(default_root())
    converted(target, store)
    converted(draft, store, LAYOUT_OF_BITS[DRAFT_WEIGHT_BITS])


async def _measure(tables: Mapping[str, Mapping[str, object]], size: Size) -> Measured:
    engine = RegionEngine(max_fixed_rows=size.max_fixed_rows, model=TARGET, definitions=tables)
    async with running_testbed(engine, size.schemes) as bed:
        return await measure(bed, size, 60 * size.minutes)


def unequal_replies(results: Results) -> list[str]:
    """One line for every reply whose ids are not those of plain streaming to the same prompt, at
    whatever distance that was asked first."""
    truth: dict[tuple[int, int, float], tuple[int, ...]] = {}
    for batch in results.batches(PLAIN):
        for asked, sample in zip(batch.asked, batch.samples, strict=True):
            truth.setdefault((*asked, batch.cell.temperature), sample.ids)
    return [
        f"{scheme.name}, RTT {batch.cell.rtt_ms:g} ms, round {asked[0]}, prompt {asked[1]}"
        for scheme in results.schemes()
        for batch in results.batches(scheme)
        for asked, sample in zip(batch.asked, batch.samples, strict=True)
        if truth.get((*asked, batch.cell.temperature)) != sample.ids
    ]


def acceptance(samples: Sequence[Sample]) -> float | None:
    """Share of the edge's drafts that were right, of those that were compared with a final token
    and followed right ones; None without any."""
    checked = sum(sample.edge.checked_tokens for sample in samples)
    return sum(sample.edge.right_tokens for sample in samples) / checked if checked else None


def uploading_share(samples: Sequence[Sample]) -> float | None:
    """Share of commits while drafts were sent; None without commits."""
    with_ = sum(sample.edge.commits_with_uploads for sample in samples)
    all_ = with_ + sum(sample.edge.commits_without_uploads for sample in samples)
    return with_ / all_ if all_ else None


def add_pair_tables(run: Run, results: Results) -> None:
    """Those of `bench.wan`, and what became of the edge's drafts."""
    headline(run, results, 0.0)
    first_word_tables(run, results, [0.0])
    pace_tables(run, results)
    table = run.table(
        "Drafts of the edge, slow target, all distances together",
        *("scheme", "chats", "right, of those decided", "sent, per final token"),
        *("accepted by the region, per final token", "tokens per commit"),
        *("commits with drafts sent", "ms per draft"),
    )
    for scheme in results.schemes():
        samples = results.samples(scheme)
        tokens = sum(len(sample.ids) for sample in samples)
        commits = sum(len(sample.commits) for sample in samples)
        if not tokens or not commits:
            continue
        drafts_ms = [sample.edge.draft_ms for sample in samples if sample.edge.draft_ms]
        table.add(
            *(scheme.name, len(samples), _or_dash(acceptance(samples))),
            sum(sample.edge.sent_tokens for sample in samples) / tokens,
            sum(sample.num_accepted for sample in samples) / tokens,
            *(tokens / commits, _or_dash(uploading_share(samples))),
            median(drafts_ms) if drafts_ms else TOO_FEW,
        )


def _or_dash(value: float | None) -> Cell:
    return TOO_FEW if value is None else value
