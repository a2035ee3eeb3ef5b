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
call of the target takes longer beside a drafter that computes. Pace
is (n - 1) / (t_last - t_first) over committed tokens, divided by (a)'s on the same prompt in the
same round. All schemes must commit the same ids for a prompt at every distance; the run fails
otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.harness import start
from bench.harness.larger_models import CODER_05B, CODER_15B, have_all
from bench.wan.measure import Measured, measure
from bench.wan.pair_analysis import add_pair_tables, keep_pair, pair_figures, unequal_replies
from bench.wan.plan import PAIR, PAIR_QUICK
from bench.wan.results import Results
from bench.wan.testbed import RegionEngine, running_testbed
from outrider.engines.draft_loading import DRAFT_WEIGHT_BITS
from outrider.engines.openvino.convert import converted
from outrider.engines.openvino.layouts import LAYOUT_OF_BITS
from outrider.models.definitions import Place, read_definitions
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
    cores = os.sched_getaffinity(0)
    try:
        measured = asyncio.run(_measure(tables, quick=run.quick))
    finally:
        os.sched_setaffinity(0, cores)
    results = Results(measured.batches)
    keep_pair(run, results, tables, measured)
    add_pair_tables(run, results)
    wrong = unequal_replies(results)
    run.figures.update(pair_figures(results, measured, wrong))
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
    specs = read_definitions(tables, Place("bench.wan.pair", lambda text: text))
    target, draft = (next(s for s in specs if s.name == name) for name in (TARGET, DRAFT))
    store = ModelStore(default_root())
    converted(target, store)
    converted(draft, store, LAYOUT_OF_BITS[DRAFT_WEIGHT_BITS])


async def _measure(tables: Mapping[str, Mapping[str, object]], *, quick: bool) -> Measured:
    size = PAIR_QUICK if quick else PAIR
    engine = RegionEngine(max_fixed_rows=size.max_fixed_rows, model=TARGET, definitions=tables)
    async with running_testbed(engine, size.schemes) as bed:
        return await measure(bed, size, 60 * size.minutes)
