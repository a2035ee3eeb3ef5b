"""What bulk tokenization is measured by."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.harness.figures import RESULTS, Run, median
from bench.tokenizer.bulk.corpus import Corpus
from bench.tokenizer.bulk.rival import SAMPLES_MB, WAYS, rate

_COMMAND: Final = (sys.executable, "-m", "outrider.cli.main", "tokenize")
_CORES: Final = 2
_CASES: Final = (("long texts", 1), ("long texts", 2), ("documents", 2), ("Parquet", 2))


def measure(run: Run, *, rounds: int, megabytes: int) -> None:
    """Adds the table and the figures, of a corpus of that size."""
    # Beside the results, on a disk, and not where temporary files may be memory.
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        _measure(run, Corpus.written(Path(folder), megabytes << 20), rounds)


def _measure(run: Run, corpus: Corpus, rounds: int) -> None:
    table = run.table(
        f"Bulk tokenization: MB of text per second on {_CORES} cores, "
        f"{corpus.num_bytes / 1e6:,.0f} MB in {corpus.num_documents:,} documents "
        f"({corpus.num_distinct:,} distinct), median of {rounds}",
        *("system", "MB/s", "over tokenizers"),
    )
    packages = dict(_packages(corpus, rounds))
    ours = {case: median([_rate(corpus, *case) for _ in range(rounds)]) for case in _CASES}
    reference = next(iter(packages.values()))
    shown = {f"outrider tokenize, {kind}, {_workers(n)}": r for (kind, n), r in ours.items()}
    shown |= _on_ray(corpus)
    for name, found in (packages | shown).items():
        table.add(name, found, found / reference)
    two, one = ours["long texts", 2], ours["long texts", 1]
    best = max(list(packages.values())[1:])
    run.figures["bulk_vs_reference"] = round(two / reference, 2)
    run.figures["bulk_vs_best_rival"] = round(two / best, 3)
    run.figures["parallel_efficiency"] = round(two / (2 * one), 3)


def _packages(corpus: Corpus, rounds: int) -> Iterator[tuple[str, float]]:
    """The reference first; slow ones get a sample."""
    for package, way in WAYS:
        max_mb = SAMPLES_MB.get(package, corpus.num_bytes >> 20)
        documents = corpus.patterns["Parquet"]
        found = [rate(package, way, documents, max_mb, _CORES) for _ in range(rounds)]
        yield f"{package}, {way}", median(found)


def _workers(count: int) -> str:
    return f"{count} worker" + "s" * (count > 1)


def _on_ray(corpus: Corpus) -> dict[str, float]:
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed (pip install 'outrider[ray]'): its row is left out")
        return {}
    found = _rate(corpus, "long texts", _CORES, "--engine", "ray")
    return {"outrider tokenize, long texts, 2 workers on Ray, its start included": found}


def _rate(corpus: Corpus, kind: str, workers: int, *options: str) -> float:
    """MB of text per second, the workers' start and the writing of shards included."""
    with tempfile.TemporaryDirectory(dir=corpus.folder) as out:
        command = [*_COMMAND, corpus.patterns[kind], "--out", out, "--workers", str(workers)]
        done = subprocess.run(
            [*command, "--json", *options], capture_output=True, text=True, check=True
        )
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["bytes"] == corpus.num_bytes, "nothing is lost"
        return float(told["bytes"] / 1e6 / told["elapsed_s"])
