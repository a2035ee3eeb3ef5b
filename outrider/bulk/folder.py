"""The folder a run writes to: its lock, journal, manifest, and the lengths of its documents."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan import journal
from outrider.bulk.plan.results import ShardResult, ShardRows, document_lengths, percentiles
from outrider.bulk.plan.shards import BulkSettings
from outrider.bulk.writing import PARTIAL_SUFFIX
from outrider.durable_files import sync_directory, sync_file, write_atomic
from outrider.errors import InvalidRequestError

JOURNAL: Final = "journal.jsonl"
MANIFEST: Final = "manifest.json"


class OutputFolder:
    """Locked against other runs while the block of `opened` lasts."""

    def __init__(self, path: Path, run: str, log: IO[str]) -> None:
        self._path = path
        self._run = run
        self._log = log
        self._disk = ThreadPoolExecutor(1, "sync")
        self._synced: list[Future[None]] = []
        self.finished: dict[int, ShardResult] = {}

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, run: str, *, resume: bool) -> Iterator[OutputFolder]:
        """The folder for the run of that fingerprint; it is made if need be. Raises OSError, and
        InvalidRequestError for one that holds another run, or this one without `resume`."""
        path.mkdir(parents=True, exist_ok=True)
        with (path / JOURNAL).open("a+", encoding="utf-8") as log:
            folder = cls(path, run, log)
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequestError(f"another run writes to {path}") from None
            try:
                folder._begin(resume)
                yield folder
            finally:
                folder._leave()

    def add(self, result: ShardResult) -> None:
        """A shard is finished: add it to the journal, and sync its file in the background. Raises
        InvalidRequestError if it is not in the folder."""
        if not self._is_there(result):
            raise InvalidRequestError(
                f"a worker wrote {result.name}, but it is not in {self._path}; the folder has to "
                "be the same one on every machine"
            )
        self._write(journal.shard_line(result))
        self.finished[result.number] = result
        self._sync([result])

    def complete(self, settings: BulkSettings, facts: dict[str, object]) -> list[ShardResult]:
        """Every shard is finished: replace the journal by the manifest. Raises OSError."""
        for synced in self._synced:
            synced.result()
        results = [self.finished[number] for number in sorted(self.finished)]
        sync_directory(self._path)
        text = journal.manifest(self._run, results, settings, facts)
        write_atomic(self._path / MANIFEST, text.encode())
        (self._path / JOURNAL).unlink()
        return results

    def discard(self) -> None:
        """Delete everything that was written."""
        (self._path / JOURNAL).unlink()
        (self._path / MANIFEST).unlink(missing_ok=True)
        for path in self._path.glob("shard-*"):
            path.unlink()
        self.finished.clear()

    def _begin(self, resume: bool) -> None:
        data = (self._path / JOURNAL).read_bytes()
        found = {**self._of_manifest(), **journal.finished(data, self._run)}
        if (found or any(self._path.glob("shard-*"))) and not resume:
            raise InvalidRequestError(
                f"{self._path} has shards already; continue with --resume, or choose another folder"
            )
        self.finished = {n: result for n, result in found.items() if self._is_there(result)}
        self._remove_parts()
        num_bytes = len(journal.whole_lines(data))
        self._log.truncate(num_bytes)  # the next line begins there
        if not num_bytes:
            self._write(journal.head_line(self._run))
        # A run that was killed may have noted shards before they were on the disk.
        self._sync(self.finished.values())

    def _of_manifest(self) -> dict[int, ShardResult]:
        manifest = self._path / MANIFEST
        if not manifest.exists():
            return {}
        return journal.of_manifest(manifest.read_text("utf-8"), self._run)

    def _sync(self, results: Iterable[ShardResult]) -> None:
        paths = [self._path / result.name for result in results]
        self._synced += [self._disk.submit(sync_file, path) for path in paths]

    def _is_there(self, result: ShardResult) -> bool:
        path = self._path / result.name
        return path.exists() and path.stat().st_size == result.file_bytes

    def _write(self, line: str) -> None:
        self._log.write(line)
        self._log.flush()

    def _remove_parts(self) -> None:
        """Delete unfinished files of workers that were killed."""
        for path in self._path.glob(f"shard-*{PARTIAL_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _leave(self) -> None:
        self._disk.shutdown(cancel_futures=True)
        self._remove_parts()
        path = self._path / JOURNAL
        if path.exists() and not path.stat().st_size:
            path.unlink()


_COLUMNS = ["part", "num_tokens"]


def length_percentiles(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Tokens per document: p50, p90, p99, max; empty without documents. Raises OSError."""
    return percentiles(document_lengths(_parts(folder, names)))


def _parts(folder: Path, names: Iterable[str]) -> Iterator[ShardRows]:
    for name in names:
        part, tokens = (column.to_numpy() for column in _table(folder / name).columns)
        yield ShardRows(part.astype(np.int64), tokens.astype(np.int64))


def _table(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path, columns=_COLUMNS)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all().select(_COLUMNS)
