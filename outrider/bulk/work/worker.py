"""One worker: shards in, files out."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from outrider.bulk.plan.results import MAX_PROBLEMS, Counts, Problem, ShardResult
from outrider.bulk.plan.settings import Settings
from outrider.bulk.plan.shards import Shard
from outrider.bulk.plan.sources import Kind, Slice
from outrider.bulk.work.documents import Document, Found, Reader, Reading
from outrider.bulk.work.encoding import Encoder
from outrider.bulk.work.records import read_gzip_lines, read_lines, read_parquet
from outrider.bulk.work.texts import read_gzip_text, read_text
from outrider.bulk.work.writing import ShardWriter
from outrider.errors import OutriderError
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import make_backend
from outrider.tokenization.cuts import CutRule

SAMPLE_EVERY: Final = 4096
"""Of how many texts the canary encodes one twice: the reference is thirty times as slow."""
BATCH_BYTES: Final = 1 << 20
"""Text encoded in one call."""
GROUP_BYTES: Final = 16 << 20
"""Text in one row group, about."""

ENVIRONMENT: Final = {
    # A worker is a core; packages that start threads of their own would take the others'.
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Memory that one shard gave back is the next one's: without them glibc returns it to the
    # kernel and has it zeroed again, a fifth of all time (mallopt(3)).
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""Of the process that a worker is in, from its start."""

_READERS: Final[dict[tuple[Kind, bool], Reader]] = {
    (Kind.TEXT, False): read_text,
    (Kind.TEXT, True): read_gzip_text,
    (Kind.LINES, False): read_lines,
    (Kind.LINES, True): read_gzip_lines,
    (Kind.PARQUET, False): read_parquet,
}
_UNREADABLE: Final = (OSError, EOFError, zlib.error, pa.ArrowException, OutriderError)


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker knows besides its shards; pickles."""

    folder: str
    settings: Settings
    vocabulary: Vocabulary
    backend: str
    """The package to use, which passed the gate; REFERENCE for none."""
    rule: CutRule | None


class Worker:
    """Does shards, one after another."""

    def __init__(self, job: Job) -> None:
        """Takes about 0.2 s."""
        fast = None if job.backend == REFERENCE else make_backend(job.backend, job.vocabulary)
        self._backend = FallbackBackend(
            *(fast, Reference(job.vocabulary)), why="it passed the gate", sample_every=SAMPLE_EVERY
        )
        offsets = job.settings.token_offsets
        self._encoder = Encoder(job.vocabulary, self._backend, job.rule, token_offsets=offsets)
        self._job = job
        self._was_fast = fast is not None

    def run(self, shard: Shard) -> ShardResult:
        """Write the shard. Raises OSError where it cannot be written."""
        settings = self._job.settings
        path = Path(self._job.folder) / shard.name(settings.suffix)
        counts = Counts()
        problems: list[Problem] = []
        group = _Group()
        with ShardWriter(path, self._encoder.schema, settings) as writer:
            for documents in _batches(self._documents(shard), problems):
                batch, count = self._encoder.encode(documents)
                counts += count
                group.add(batch, count)
                if group.num_bytes >= GROUP_BYTES:
                    writer.write(group.take())
            if group.batches:
                writer.write(group.take())
        is_off = self._was_fast and not self._backend.is_fast
        return ShardResult(
            *(shard.number, path.name, path.stat().st_size, counts),
            *(tuple(problems[:MAX_PROBLEMS]), len(problems)),
            self._backend.why if is_off else "",
        )

    def _documents(self, shard: Shard) -> Iterator[Found]:
        reading = Reading(self._job.settings, self._job.rule)
        return itertools.chain.from_iterable(read(one, reading) for one in shard.slices)


class _Group:
    """Rows that wait to be written."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.num_bytes = 0

    def add(self, batch: pa.RecordBatch, counts: Counts) -> None:
        self.batches.append(batch)
        self.num_bytes += counts.bytes

    def take(self) -> list[pa.RecordBatch]:
        taken, self.batches, self.num_bytes = self.batches, [], 0
        return taken


def read(one: Slice, reading: Reading) -> Iterator[Found]:
    """The slice's documents; what ends the reading is a problem of the file."""
    read = _READERS[one.source.kind, one.source.is_gzip]
    try:
        yield from read(one, reading)
    except UnicodeDecodeError as error:
        yield Problem(one.source.path, f"is no UTF-8 ({error.reason})")
    except _UNREADABLE as error:
        told = error.message if isinstance(error, OutriderError) else str(error)
        yield Problem(one.source.path, f"cannot be read: {told or type(error).__name__}")


def _batches(found: Iterator[Found], problems: list[Problem]) -> Iterator[list[Document]]:
    """Documents in batches of BATCH_BYTES; problems go to `problems`."""
    batch: list[Document] = []
    num_bytes = 0
    for one in found:
        if isinstance(one, Problem):
            problems.append(one)
            continue
        batch.append(one)
        num_bytes += one.num_bytes
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
