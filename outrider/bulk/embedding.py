"""Documents to shards of vectors, which an endpoint makes: several requests are under way, rows are
written in order."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.results import (
    MAX_PROBLEMS,
    ShardOutcome,
    ShardResult,
    TextCounts,
    TextProblem,
)
from outrider.bulk.plan.shards import BulkSettings, Shard
from outrider.bulk.reading import Document, ReadOptions, ReadResult, read
from outrider.bulk.writing import ShardWriter
from outrider.codec.vectors import VectorFormat, packed
from outrider.durable_files import sync_file
from outrider.errors import InvalidRequestError, OutriderError

VALUES: Final[Mapping[str, tuple[VectorFormat, pa.DataType, Any]]] = {
    "f32": (VectorFormat.F32, pa.float32(), np.dtype("<f4")),
    "f16": (VectorFormat.F16, pa.float16(), np.dtype("<f2")),
    "i8": (VectorFormat.I8, pa.int8(), np.dtype("i1")),
}
"""Types of a vector's values, by name."""
REQUEST_TEXTS: Final = 128
"""Texts of one request."""
_REQUEST_BYTES: Final = 256 << 10
_GROUP_ROWS: Final = 4096
"""Rows of a row group."""
_OF_INPUT: Final = re.compile(r"input\[(\d+)\]: ")
"""How an endpoint names the input that has no vector."""


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """An endpoint's answer for some texts."""

    vectors: npt.NDArray[np.float32]
    """[n, d]"""
    num_tokens: int
    fingerprint: str
    """Fingerprint of the model that computed them; vectors of other fingerprints may differ in any
    byte."""


Ask = Callable[[Sequence[str]], EmbeddedTexts]
"""The vectors of some texts. Called by several threads. Raises OutriderError."""


@dataclass(frozen=True, slots=True)
class VectorsWanted:
    """Everything besides the texts that determines the rows. Raises InvalidRequestError."""

    model: str
    fingerprint: str
    dimensions: int
    values: str = "f32"
    """One of VALUES."""
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.values not in VALUES:
            raise InvalidRequestError(f"values are {', '.join(VALUES)}, not {self.values!r}")

    @property
    def digest(self) -> bytes:
        """SHA-256 of all fields."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()

    @property
    def schema(self) -> pa.Schema:
        """Columns of every shard and of the whole."""
        value = pa.field("item", VALUES[self.values][1], nullable=False)
        fields = [
            pa.field("id", pa.uint64(), nullable=False),
            pa.field("source", pa.string(), nullable=False),
            pa.field("vector", pa.list_(value, self.dimensions), nullable=False),
        ]
        if self.values == "i8":
            fields.append(pa.field("scale", pa.float32(), nullable=False))
        return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class _Answer:
    documents: list[Document]
    """Documents that have a vector."""
    vectors: npt.NDArray[np.float32]
    num_tokens: int
    problems: list[TextProblem]


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """Arguments of an executor; can be pickled if `ask` can."""

    folder: Path
    settings: BulkSettings
    wanted: VectorsWanted
    ask: Ask
    num_requests: int = 8
    """Under way at once."""


class EmbeddingWorker:
    """Does one shard after the other, in an actor of a cluster."""

    def __init__(self, job: EmbeddingJob) -> None:
        self._executor = EmbeddingExecutor(job)

    def run(self, shard: Shard) -> ShardOutcome:
        """Write the shard. Raises OutriderError, OSError."""
        (outcome,) = self._executor.run([shard])
        return outcome


class EmbeddingExecutor:
    """Embeds shards in order, sending requests for the next while the last are still running.

    Memory is bounded: `num_requests` requests with their answers, and one row group.
    """

    def __init__(self, job: EmbeddingJob) -> None:
        self._folder = job.folder
        self._settings = job.settings
        self._wanted = job.wanted
        self._ask = job.ask
        self._num_requests = job.num_requests

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        """The outcome of each, in order. Raises OutriderError where the endpoint answers nothing
        or another model does, OSError."""
        # Its threads are daemons: who is interrupted does not wait until requests are given up.
        pool = ThreadPool(self._num_requests)
        waiting: deque[tuple[_ShardInWork, AsyncResult[_Answer] | None]] = deque()
        writing: _ShardInWork | None = None
        try:
            for work, documents in self._requests(shards):
                asked = pool.apply_async(self._answered, (documents,)) if documents else None
                waiting.append((work, asked))
                while len(waiting) > self._num_requests:
                    writing, answer = waiting.popleft()
                    yield from writing.settled(answer)
            while waiting:
                writing, answer = waiting.popleft()
                yield from writing.settled(answer)
        finally:
            pool.terminate()
            if writing is not None:
                writing.abandon()

    def close(self) -> None:
        """Does nothing: no resources are held between runs."""

    def _requests(
        self, shards: Sequence[Shard]
    ) -> Iterator[tuple[_ShardInWork, list[Document] | None]]:
        """Batches to embed, shard by shard; None marks the end of a shard."""
        for shard in shards:
            work = _ShardInWork(shard, self._folder, self._settings, self._wanted)
            for documents in work.batches():
                yield work, documents
            yield work, None

    def _answered(self, documents: list[Document]) -> _Answer:
        """Texts that cannot be embedded are left out, and the others asked for again."""
        problems: list[TextProblem] = []
        left = list(documents)
        while left:
            try:
                found = self._ask([document.text for document in left])
            except InvalidRequestError as error:
                named = _OF_INPUT.match(error.message)
                if named is not None and int(named[1]) < len(left):
                    bad = left.pop(int(named[1]))
                    problems.append(_problem(bad, error.message[named.end() :]))
                elif len(left) == 1:
                    problems.append(_problem(left.pop(), error.message))
                else:
                    # Which of them it is, as of a body that is too large, it does not say.
                    half = len(left) // 2
                    parts = (self._answered(left[:half]), self._answered(left[half:]))
                    return _joined(parts, problems)
                continue
            self._check(found, len(left))
            return _Answer(left, found.vectors, found.num_tokens, problems)
        nothing = np.zeros((0, self._wanted.dimensions), np.float32)
        return _Answer([], nothing, 0, problems)

    def _check(self, found: EmbeddedTexts, num_texts: int) -> None:
        if found.fingerprint != self._wanted.fingerprint:
            raise OutriderError(
                f"vectors come from {found.fingerprint} now, and came from "
                f"{self._wanted.fingerprint} before, so the output would mix two models; start in "
                "another folder, or serve the first model"
            )
        if found.vectors.shape != (num_texts, self._wanted.dimensions):
            raise OutriderError(
                f"the endpoint answers {found.vectors.shape} values, asked for {num_texts} vectors "
                f"of {self._wanted.dimensions}"
            )


def merge(folder: Path, names: Sequence[str], schema: pa.Schema, out: Path) -> None:
    """One file of all shards, in order, under its name once it is whole. Raises OSError."""
    partial = out.with_name(f"{out.name}.part")
    try:
        with pq.ParquetWriter(partial, schema, **_OPTIONS) as writer:
            held: list[pa.Table] = []
            for name in names:
                with pq.ParquetFile(folder / name) as shard:
                    for number in range(shard.num_row_groups):
                        held.append(shard.read_row_group(number))
                        if sum(each.num_rows for each in held) >= _GROUP_ROWS:
                            writer.write_table(pa.concat_tables(held))
                            held = []
            if held:
                writer.write_table(pa.concat_tables(held))
        sync_file(partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


_OPTIONS: Final[dict[str, Any]] = {
    "compression": "none",
    "use_dictionary": ["source"],
    "write_statistics": ["id"],
}
"""Values of vectors neither repeat nor compress."""


class _ShardInWork:
    """One shard while it is read, embedded and written."""

    def __init__(
        self, shard: Shard, folder: Path, settings: BulkSettings, wanted: VectorsWanted
    ) -> None:
        self._shard = shard
        self._path = folder / shard.name(settings.suffix)
        self._settings = settings
        self._wanted = wanted
        self._writer: ShardWriter | None = None
        self._rows: list[pa.RecordBatch] = []
        self._num_rows = 0
        self._problems: list[TextProblem] = []
        self._counts = TextCounts()

    def batches(self) -> Iterator[list[Document]]:
        """Documents, as many as a request has. What has none is a problem of the shard."""
        batch: list[Document] = []
        num_bytes = 0
        for one in self._read():
            if isinstance(one, TextProblem):
                self._problems.append(one)
                continue
            if not one.text.strip():
                self._problems.append(_problem(one, "is empty"))
                continue
            if batch and num_bytes + one.num_bytes > _REQUEST_BYTES:
                yield batch
                batch, num_bytes = [], 0
            batch.append(one)
            num_bytes += one.num_bytes
            if len(batch) == REQUEST_TEXTS:
                yield batch
                batch, num_bytes = [], 0
        if batch:
            yield batch

    def settled(self, asked: AsyncResult[_Answer] | None) -> Iterator[ShardResult]:
        """Add the rows of the next request. With None, no request is left: yields the shard's
        result. Raises the request's error, OSError."""
        if asked is None:
            yield self._finished()
        else:
            self._add(asked.get())

    def _add(self, answer: _Answer) -> None:
        self._problems += answer.problems
        self._counts += TextCounts(
            documents=len(answer.documents),
            rows=len(answer.documents),
            bytes=sum(each.num_bytes for each in answer.documents),
            chars=sum(each.num_chars for each in answer.documents),
            tokens=answer.num_tokens,
        )
        self._rows.append(_batch(answer, self._wanted))
        self._num_rows += len(answer.documents)
        if self._num_rows >= _GROUP_ROWS:
            self._flush()

    def _finished(self) -> ShardResult:
        self._flush()
        assert self._writer is not None, "flushing opens it"
        self._writer.__exit__(None, None, None)
        self._writer = None
        problems = sorted(self._problems, key=lambda it: (it.source, it.record or 0))
        return ShardResult(
            number=self._shard.number,
            name=self._path.name,
            file_bytes=self._path.stat().st_size,
            counts=self._counts,
            problems=tuple(problems[:MAX_PROBLEMS]),
            num_problems=len(problems),
        )

    def abandon(self) -> None:
        """Leave nothing of it."""
        if self._writer is not None:
            error = OutriderError("the run ended")
            self._writer.__exit__(type(error), error, None)
            self._writer = None

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = ShardWriter(self._path, self._wanted.schema, self._settings)
        rows, self._rows, self._num_rows = self._rows, [], 0
        if rows:
            self._writer.write(rows)

    def _read(self) -> Iterator[ReadResult]:
        options = ReadOptions(self._settings, None)
        for one in self._shard.slices:
            yield from read(one, options)


def _joined(parts: Sequence[_Answer], problems: list[TextProblem]) -> _Answer:
    return _Answer(
        [document for part in parts for document in part.documents],
        np.concatenate([part.vectors for part in parts]),
        sum(part.num_tokens for part in parts),
        problems + [problem for part in parts for problem in part.problems],
    )


def _batch(answer: _Answer, wanted: VectorsWanted) -> pa.RecordBatch:
    form, kind, dtype = VALUES[wanted.values]
    if not answer.documents:
        return pa.RecordBatch.from_pylist([], schema=wanted.schema)
    data, scales = packed(answer.vectors, form)
    values = pa.array(np.frombuffer(data, dtype), kind)
    field = wanted.schema.field("vector").type
    columns = [
        pa.array([document.record for document in answer.documents], pa.uint64()),
        pa.array([document.source for document in answer.documents], pa.string()),
        pa.FixedSizeListArray.from_arrays(values, type=field),
    ]
    if scales:
        columns.append(pa.array(np.frombuffer(scales, "<f4"), pa.float32()))
    return pa.RecordBatch.from_arrays(columns, schema=wanted.schema)


def _problem(document: Document, message: str) -> TextProblem:
    return TextProblem(document.source, message, document.record)
