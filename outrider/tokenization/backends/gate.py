"""The gate: a fast backend is used only if it gives the reference's ids on everything shown."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Final

from outrider.errors import ArtifactCorruptError
from outrider.tokenization.backends.base import Backend

BUDGET_S: Final = 60.0
"""A gate that is not through after so long is not passed."""
_TIMINGS: Final = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found of one backend and one vocabulary."""

    backend: str
    version: str
    passed: bool
    reason: str
    """Why not, in words; empty if it passed."""
    num_texts: int = 0
    speedup: float = 0.0
    """Times as fast as the reference on a text of some kilobytes."""
    is_final: bool = True
    """Whether another try would find the same; not if time ran out."""

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Reads `to_json`'s text. Raises ArtifactCorruptError."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ArtifactCorruptError(f"a tokenizer verdict is damaged: {error}") from error

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where two backends first differ."""

    num_texts: int
    problem: str
    """Empty if they never did."""
    is_final: bool = True
    """Whether nothing but the texts decided; not if time ran out."""


def compare(
    backend: Backend,
    reference: Backend,
    texts: Iterable[str],
    *,
    clock: Callable[[], float],
    deadline: float,
) -> Outcome:
    """Encode every text with both, until one differs, one raises, or `clock()` passes `deadline`
    (seconds)."""
    count = 0
    for count, text in enumerate(texts, start=1):
        if clock() > deadline:
            return Outcome(count, f"time ran out after {count} texts", is_final=False)
        expected = reference.encode(text)
        try:
            found = backend.encode(text)
        except BaseException as failure:
            if not is_defect(failure):
                raise
            return Outcome(count, f"it raised {type(failure).__name__}")
        if found != expected:
            return Outcome(count, describe(text, found, expected))
    return Outcome(count, "")


def is_defect(failure: BaseException) -> bool:
    """Whether a backend failed, rather than that this process is told to end. A Rust package
    that panics raises an exception that is no Exception."""
    return isinstance(failure, Exception) or type(failure).__name__ == "PanicException"


def describe(text: str, found: array[int], expected: array[int]) -> str:
    """Where the ids differ, without a word of the text: it may be a user's."""
    pairs = enumerate(zip_longest(found, expected))
    at = next((i for i, (ours, theirs) in pairs if ours != theirs), 0)
    return (
        f"{len(found)} ids instead of {len(expected)} for a text of {len(text)} characters, "
        f"different from id {at} on"
    )


def speedup(
    backend: Backend, reference: Backend, text: str, *, clock: Callable[[], float]
) -> float:
    """How many times as fast as the reference: the best of a few calls of each."""
    return _best_s(reference, text, clock) / max(_best_s(backend, text, clock), 1e-9)


def _best_s(backend: Backend, text: str, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(_TIMINGS):
        begin = clock()
        backend.encode(text)
        times.append(clock() - begin)
    return min(times)
