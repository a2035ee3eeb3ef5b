"""What came of shards: counted, added up, written down. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_PROBLEMS: Final = 100
"""Of one shard that are told one by one; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A text that is not in the output."""

    source: str
    message: str
    record: int | None = None
    """Which one of its file, counted from 0; None: the file as a whole."""

    def __str__(self) -> str:
        where = self.source if self.record is None else f"{self.source}, record {self.record}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of everything; they add up."""

    documents: int = 0
    """A document in several parts counts where it begins."""
    rows: int = 0
    bytes: int = 0
    """Of text, in UTF-8."""
    chars: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.documents + other.documents,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.chars + other.chars,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One shard that is written."""

    number: int
    name: str
    file_bytes: int
    counts: Counts
    problems: tuple[Problem, ...] = ()
    num_problems: int = 0
    """Those that are not told included."""
    backend_problem: str = ""
    """Why the worker does not trust its fast backend any more, and this shard neither."""

    def to_json(self) -> dict[str, Any]:
        """As the journal and the manifest have it."""
        values = asdict(self)
        del values["backend_problem"]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardResult:
        """Reads `to_json`'s value. Raises TypeError or KeyError for another."""
        counts = Counts(**values["counts"])
        problems = tuple(Problem(**problem) for problem in values["problems"])
        return cls(**{**values, "counts": counts, "problems": problems})


def total(results: Iterable[ShardResult]) -> Counts:
    """All shards' counts."""
    return sum((result.counts for result in results), Counts())
