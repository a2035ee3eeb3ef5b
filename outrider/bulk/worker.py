"""One worker: shards in, files out."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from outrider.bulk.encoding import DocumentEncoder, EncodeElsewhere
from outrider.bulk.plan.results import MAX_PROBLEMS, ShardResult, TextCounts, TextProblem
from outrider.bulk.plan.shards import BulkSettings, Shard
from outrider.bulk.reading import Document, ReadOptions, ReadResult, read
from outrider.bulk.writing import ShardWriter
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Backend, Batch, Reference
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import make_backend
from outrider.tokenization.cuts import CutRule

SAMPLE_EVERY: Final = 4096
"""One text in so many gets a shadow check: the reference is thirty times as slow."""
BATCH_BYTES: Final = 1 << 20
"""Bytes of text encoded in one call."""
GROUP_BYTES: Final = 16 << 20
"""Bytes of text in one row group, about."""

_KEEP_BYTES: Final = 1 << 30
ENVIRONMENT: Final = {
    # A worker is a core; packages that start threads of their own would take the others'.
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Keeps freed memory for the next shard: by default glibc returns it to the kernel, which zeroes
    # it again, a fifth of all time (mallopt(3)).
    "MALLOC_TRIM_THRESHOLD_": str(_KEEP_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(_KEEP_BYTES),
}
"""Environment of a worker's process, from its start."""
MALLOC_OPTIONS: Final = {-1: _KEEP_BYTES, -3: _KEEP_BYTES}
"""The same two, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, for mallopt(3) of a process that runs."""


@dataclass(frozen=True, slots=True)
class BulkJob:
    """Everything a worker needs besides its shards; can be pickled."""

    folder: str
    settings: BulkSettings
    vocabulary: Vocabulary
    backend: str
    """The package to use, which passed the equivalence test; REFERENCE for none."""
    rule: CutRule | None
    elsewhere: Callable[[Vocabulary], EncodeElsewhere] | None = None
    """Makes, once in each worker, who is asked first for long texts; None: nobody."""


class BulkWorker:
    """Does shards, one after another."""

    def __init__(self, job: BulkJob, fast: Backend | None = None) -> None:
        """Takes about 0.4 s, unless the job's backend is given: `fast`."""
        if fast is None and job.backend != REFERENCE:
            fast = make_backend(job.backend, job.vocabulary)
        self._backend = FallbackBackend(
            None if fast is None else _OneByOne(fast),
            Reference(job.vocabulary),
            reason="it passed the equivalence test",
            sample_every=SAMPLE_EVERY,
        )
        self._encoder = DocumentEncoder(
            job.vocabulary,
            self._backend,
            job.rule,
            token_offsets=job.settings.token_offsets,
            elsewhere=self._encode_elsewhere,
        )
        self._elsewhere: EncodeElsewhere | None = None
        self._job = job
        self._was_fast = fast is not None

    def warm(self) -> None:
        """Encode a line, so that all that is made at the first use is there."""
        text = "A line of text, and 1 number.\n"
        for backend in self._backend.both:
            backend.encode(text)
        self._encoder.encode([])

    def run(self, shard: Shard) -> ShardResult:
        """Write the shard. Raises OSError where it cannot be written."""
        num_elsewhere = self._encoder.num_elsewhere
        settings = self._job.settings
        path = Path(self._job.folder) / shard.name(settings.suffix)
        counts = TextCounts()
        problems: list[TextProblem] = []
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
            number=shard.number,
            name=path.name,
            file_bytes=path.stat().st_size,
            counts=counts,
            problems=tuple(problems[:MAX_PROBLEMS]),
            num_problems=len(problems),
            backend_problem=self._backend.reason if is_off else "",
            num_elsewhere=self._encoder.num_elsewhere - num_elsewhere,
        )

    def _encode_elsewhere(self, text: str) -> array[int] | None:
        if self._job.elsewhere is None:
            return None
        if self._elsewhere is None:  # not before the process is forked that uses it
            self._elsewhere = self._job.elsewhere(self._job.vocabulary)
        return self._elsewhere(text)

    def _documents(self, shard: Shard) -> Iterator[ReadResult]:
        options = ReadOptions(self._job.settings, self._job.rule)
        return itertools.chain.from_iterable(read(one, options) for one in shard.slices)


class _OneByOne:
    """A backend that encodes only in the calling thread: each worker uses one core, and a forked
    process has none of the threads over which packages spread a batch."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.encode = backend.encode
        self._backend = backend

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        parts = [self._backend.encode_batch([text]).ids for text in texts]
        offsets = np.zeros(len(parts) + 1, np.uint64)
        np.cumsum([len(ids) // 4 for ids in parts], out=offsets[1:])
        return Batch(b"".join(parts), offsets.tobytes())


class _Group:
    """Rows that wait to be written."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.num_bytes = 0

    def add(self, batch: pa.RecordBatch, counts: TextCounts) -> None:
        self.batches.append(batch)
        self.num_bytes += counts.bytes

    def take(self) -> list[pa.RecordBatch]:
        taken = self.batches
        self.batches = []
        self.num_bytes = 0
        return taken


def _batches(found: Iterator[ReadResult], problems: list[TextProblem]) -> Iterator[list[Document]]:
    """Documents in batches of BATCH_BYTES; problems go to `problems`."""
    batch: list[Document] = []
    num_bytes = 0
    for one in found:
        if isinstance(one, TextProblem):
            problems.append(one)
            continue
        batch.append(one)
        num_bytes += one.num_bytes
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
