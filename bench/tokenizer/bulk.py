"""Bulk tokenization on two cores: `outrider tokenize` from files to Parquet, beside the packages
alone, which get the same documents as strings in memory and whose ids are dropped.

The corpus is what is installed with Python: sources, documentation, licences, each file a document,
and again from the first one where that is less than is asked for. Every system gets all of it, in
the same order.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.harness import RESULTS, Run, median, parser, start
from bench.tokenizer.corpus import Corpus
from bench.tokenizer.package_alone import WAYS, run_package

_COMMAND: Final = (sys.executable, "-m", "outrider.cli.main", "tokenize")
_CORES: Final = 2
_CASES: Final = (("long texts", 1), ("long texts", 2), ("documents", 2), ("Parquet", 2))
_REFERENCE, *_RIVALS = (f"{package}, {way}" for package, way in WAYS)


def _ours(kind: str, workers: int) -> str:
    return f"outrider tokenize, {kind}, {workers} worker" + "s" * (workers > 1)


def measure(run: Run, *, rounds: int, megabytes: int) -> None:
    """Adds the table, of a corpus of that size."""
    # Beside the results, on a disk, and not where temporary files may be memory.
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        _measure(run, Corpus.written(Path(folder), megabytes << 20), rounds)


def _measure(run: Run, corpus: Corpus, rounds: int) -> None:
    table = run.table(
        f"Bulk tokenization, MB of text per second on {_CORES} cores: "
        f"{corpus.num_bytes / 1e6:,.0f} MB in {corpus.num_documents:,} documents "
        f"({corpus.num_distinct:,} distinct); {rounds} round{'s' * (rounds > 1)}",
        "system",
        "MB/s",
        "over tokenizers",
    )
    found = [_round(corpus) for _ in range(rounds)]
    for name in found[0]:
        rates = [one[name] for one in found]
        run.samples(f"bulk, {name}", rates, unit="MB/s")
        table.add(name, table.median(rates), table.median([r[name] / r[_REFERENCE] for r in found]))
    for name, rate in _on_ray(corpus).items():
        table.add(name, rate, rate / median([r[_REFERENCE] for r in found]))


def _round(corpus: Corpus) -> dict[str, float]:
    """MB of text per second by system, one after the other: a shared machine is not as fast all
    the time, and ratios are those within a round."""
    rates: dict[str, float] = {}
    documents = corpus.patterns["Parquet"]
    for name, (package, way) in zip((_REFERENCE, *_RIVALS), WAYS, strict=True):
        num_bytes, seconds = run_package(package, way, documents, _CORES)
        assert num_bytes == corpus.num_bytes, "everybody gets all of it"
        rates[name] = num_bytes / 1e6 / seconds
    for kind, workers in _CASES:
        rates[_ours(kind, workers)] = _rate(corpus, kind, workers)
    return rates


def _on_ray(corpus: Corpus) -> dict[str, float]:
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed (pip install 'outrider[ray]'): its row is left out")
        return {}
    found = _rate(corpus, "long texts", _CORES, "--executor", "ray")
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


def main() -> int:
    options = parser("tokenizer.bulk", __doc__ or "")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--megabytes", type=int, default=384, help="size of the corpus")
    asked = options.parse_args()
    run = start("tokenizer_bulk", asked)
    rounds, size = (1, 48) if asked.quick else (asked.rounds, asked.megabytes)
    measure(run, rounds=rounds, megabytes=size)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
