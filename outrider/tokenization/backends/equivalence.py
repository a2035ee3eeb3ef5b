"""The equivalence test: a fast backend is used only if it gives the reference's ids on every text
of the test."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Final

from outrider.errors import ArtifactCorruptError
from outrider.fair_work.defects import is_defect
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import corpus
from outrider.tokenization.backends.base import Backend, Reference
from outrider.tokenization.backends.packages import make_backend

BUDGET_S: Final = 60.0
"""A package that is not through after so long has not passed."""
_TIMINGS: Final = 5
"""Timed calls of each backend, of which the fastest counts."""


@dataclass(frozen=True, slots=True)
class EquivalenceVerdict:
    """Result of the test for one backend and one vocabulary."""

    backend: str
    version: str
    passed: bool
    reason: str
    """Why not, in words; empty if it passed."""
    num_texts: int = 0
    speedup: float = 0.0
    """Times as fast as the reference on a text of some kilobytes."""
    is_final: bool = True
    """Whether another run would find the same; not if time ran out."""

    @classmethod
    def from_json(cls, text: str) -> EquivalenceVerdict:
        """Reads `to_json`'s text. Raises ArtifactCorruptError."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ArtifactCorruptError(f"a tokenizer verdict is damaged: {error}") from error

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two backends agree."""

    num_texts: int
    problem: str
    """Empty if they never did."""
    is_final: bool = True
    """Whether only the texts decided; false if time ran out."""


def check_equivalence(
    package: str,
    vocabulary: Vocabulary,
    *,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = BUDGET_S,
) -> EquivalenceVerdict:
    """Test an installed package with a vocabulary; takes seconds, at most about `budget_s`."""
    version = importlib.metadata.version(package)
    deadline = clock() + budget_s
    try:
        backend = make_backend(package, vocabulary)
    except BaseException as failure:
        if not is_defect(failure):
            raise
        reason = f"it cannot build this tokenizer ({type(failure).__name__})"
        return EquivalenceVerdict(package, version, passed=False, reason=reason)
    reference = Reference(vocabulary)
    texts = itertools.chain(
        corpus.adversarial_texts(vocabulary), corpus.natural_texts(), corpus.code_point_texts()
    )
    outcome = compare(backend, reference, texts, clock=clock, deadline=deadline)
    return EquivalenceVerdict(
        package,
        version,
        passed=not outcome.problem,
        reason=outcome.problem,
        num_texts=outcome.num_texts,
        is_final=outcome.is_final,
        speedup=speedup(backend, reference, "\n".join(corpus.LANGUAGES), clock=clock),
    )


def compare(
    backend: Backend,
    reference: Backend,
    texts: Iterable[str],
    *,
    clock: Callable[[], float],
    deadline: float,
) -> Comparison:
    """Encode every text with both, until one differs, one raises, or `clock()` passes `deadline`
    (seconds)."""
    count = 0
    for count, text in enumerate(texts, start=1):
        if clock() > deadline:
            return Comparison(count, f"time ran out after {count} texts", is_final=False)
        expected = reference.encode(text)
        try:
            found = backend.encode(text)
        except BaseException as failure:
            if not is_defect(failure):
                raise
            return Comparison(count, f"it raised {type(failure).__name__}")
        if found != expected:
            return Comparison(count, describe(text, found, expected))
    return Comparison(count, "")


def describe(text: str, found: array[int], expected: array[int]) -> str:
    """Position at which the ids differ. Quotes nothing of the text, which may be a user's."""
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
