"""Results of shards: counts, problems, and lengths of documents. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.bulk.plan.shards import Shard

MAX_PROBLEMS: Final = 100
"""Problems of one shard that are listed; the rest is only counted."""


@dataclass(frozen=True, slots=True)
class TextProblem:
    """A text that is not in the output."""

    source: str
    message: str
    record: int | None = None
    """Number of the record in its file, from 0; None: the file as a whole."""

    def __str__(self) -> str:
        where = self.source if self.record is None else f"{self.source}, record {self.record}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class TextCounts:
    """Counts of input and output; they can be added."""

    documents: int = 0
    """A document in several parts counts where it begins."""
    rows: int = 0
    bytes: int = 0
    """Bytes of text, in UTF-8."""
    chars: int = 0
    tokens: int = 0

    def __add__(self, other: TextCounts) -> TextCounts:
        return TextCounts(
            self.documents + other.documents,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.chars + other.chars,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One shard that was written."""

    number: int
    name: str
    file_bytes: int
    counts: TextCounts
    problems: tuple[TextProblem, ...] = ()
    num_problems: int = 0
    """Number of problems, including those not listed."""
    backend_problem: str = ""
    """Why the worker's fast backend was turned off; then the shard is not to be trusted."""
    num_elsewhere: int = 0
    """Long texts that a tokenizer service encoded."""

    def to_json(self) -> dict[str, Any]:
        """Form used in the journal and the manifest."""
        values = asdict(self)
        for name in ("backend_problem", "num_elsewhere"):  # of no interest to who has the shard
            del values[name]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardResult:
        """Reads `to_json`'s value. Raises TypeError or KeyError for another."""
        counts = TextCounts(**values["counts"])
        problems = tuple(TextProblem(**problem) for problem in values["problems"])
        return cls(**{**values, "counts": counts, "problems": problems})


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard that could not be done."""

    shard: Shard
    reason: str


ShardOutcome: TypeAlias = ShardResult | FailedShard


def total(results: Iterable[ShardResult]) -> TextCounts:
    """All shards' counts."""
    return sum((result.counts for result in results), TextCounts())


QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of one shard, in order."""

    parts: npt.NDArray[np.int64]
    """[rows] which part of its document each row is."""
    tokens: npt.NDArray[np.int64]
    """[rows]"""


def document_lengths(shards: Iterable[ShardRows]) -> npt.NDArray[np.int64]:
    """Tokens of each document; a row that is no first part belongs to the row before it."""
    rows = list(shards)
    if not rows:
        return np.zeros(0, np.int64)
    parts = np.concatenate([one.parts for one in rows])
    tokens = np.concatenate([one.tokens for one in rows])
    if not len(tokens):
        return tokens
    begins = np.flatnonzero((parts == 0) | (np.arange(len(parts)) == 0))
    return np.asarray(np.add.reduceat(tokens, begins), np.int64)


def percentiles(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    """p50, p90, p99 and max of `lengths`, by name. Empty without documents."""
    if not len(lengths):
        return {}
    ranked = np.sort(lengths)
    at = [max(0, int(np.ceil(share * len(ranked))) - 1) for share in QUANTILES]
    names = [f"p{share * 100:g}" if share < 1 else "max" for share in QUANTILES]
    return {name: int(ranked[index]) for name, index in zip(names, at, strict=True)}
