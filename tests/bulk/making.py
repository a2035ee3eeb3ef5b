"""Input and small runs that tests of bulk work share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from outrider.bulk.plan.results import ShardOutcome
from outrider.bulk.plan.shards import BulkSettings, FileKind, RowGroup, Shard, SourceFile, kind_of
from outrider.bulk.run import Executor, RunProgress, RunReport, RunRequest, run
from outrider.bulk.worker import BulkJob, BulkWorker
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.cut_proofs import rule_of

Row = dict[str, Any]


class Inline:
    """Does the shards here, in the order that `rearranged` gives them."""

    def __init__(self, job: BulkJob, rearranged: Callable[[list[Shard]], Iterable[Shard]]) -> None:
        self._worker = BulkWorker(job)
        self._rearranged = rearranged

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        for shard in self._rearranged(shards):
            yield self._worker.run(shard)

    def close(self) -> None:
        pass


def tokenize(
    vocabulary: Vocabulary,
    paths: Iterable[Path],
    folder: Path,
    settings: BulkSettings | None = None,
    *,
    resume: bool = False,
    backend: str = REFERENCE,
    rearranged: Callable[[list[Shard]], Iterable[Shard]] = list,
    engine: Callable[[BulkJob], Executor] | None = None,
    on_progress: Callable[[RunProgress], None] = lambda _: None,
) -> RunReport:
    """A run, with the engine above unless another is given."""
    names = [str(path) for path in paths]
    request = RunRequest(
        names,
        folder,
        settings or BulkSettings(),
        vocabulary,
        rule_of(vocabulary.tokenizer_json),
        backend,
        resume,
    )
    return run(request, engine or (lambda job: Inline(job, rearranged)), on_progress)


def rows(folder: Path) -> list[Row]:
    """Of all shards, in order."""
    found: list[Row] = []
    for path in sorted(folder.glob("shard-*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def source(path: str, num_bytes: int = 0, *, groups: Iterable[tuple[int, int]] = ()) -> SourceFile:
    """A source without a file."""
    kind, is_gzip = kind_of(path)
    assert kind is FileKind.PARQUET or not groups
    return SourceFile(
        path, kind, is_gzip, num_bytes, 0, tuple(RowGroup(*group) for group in groups)
    )
