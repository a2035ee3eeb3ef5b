"""Which backend a vocabulary is used with: the faster one that passes the gate."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from outrider.errors import ConfigError
from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import material
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.gate import BUDGET_S, Verdict, compare, is_defect, speedup
from outrider.tokenization.backends.guarded import Guarded
from outrider.tokenization.backends.packages import (
    PACKAGES,
    Fastokens,
    Splintr,
    installed_version,
    make,
)

AUTO: Final = "auto"
CHOICES: Final = (AUTO, REFERENCE, *PACKAGES)
"""What a setting may ask for."""

_FORM: Final = 1
"""A new number whenever the gate shows other texts, or a verdict means something else."""
_VERDICT_FILE: Final = "verdict.json"

_NONE_INSTALLED: Final = (
    f"{' and '.join(PACKAGES)} are not installed; pip install 'outrider[fast-tokenizers]'"
)

Judge = Callable[[str], Verdict]

log = structlog.get_logger()


class _UndecidedError(Exception):
    """A verdict that is not to be kept."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def load_backend(
    spec: ModelSpec, store: ModelStore, vocabulary: Vocabulary, wanted: str = AUTO
) -> Guarded:
    """The backend for a model of the store; verdicts are kept beside it, so that the gate's
    seconds are spent once per machine and version. Blocks; raises ModelStoreError."""
    artifact = store.ensure(spec.source, sha256=spec.sha256)

    def kept(package: str) -> Verdict:
        versions = f"{installed_version(package)}-{installed_version(REFERENCE)}"
        name = f"{package}-{versions}-v{_FORM}"

        def build(folder: Path) -> None:
            verdict = put_to_the_test(package, vocabulary)
            if not verdict.is_final:
                raise _UndecidedError(verdict)
            (folder / _VERDICT_FILE).write_text(verdict.to_json(), "utf-8")

        try:
            folder = store.derived(artifact, name, build)
        except _UndecidedError as undecided:
            return undecided.verdict
        return Verdict.from_json((folder / _VERDICT_FILE).read_text("utf-8"))

    return choose(vocabulary, wanted, judge=kept)


def choose(vocabulary: Vocabulary, wanted: str = AUTO, *, judge: Judge | None = None) -> Guarded:
    """The first installed backend that passes and is faster, watched; the reference if none is,
    or if `wanted` is the reference. `judge` gives the verdict on an installed package.
    Raises ConfigError for any other name."""
    if wanted not in CHOICES:
        raise ConfigError(f"tokenizer backend {wanted!r}: use one of {', '.join(CHOICES)}")
    reference = Reference(vocabulary)
    if wanted == REFERENCE:
        return Guarded(None, reference, why="it is the one that was asked for")
    packages = in_order_of_speed(vocabulary) if wanted == AUTO else (wanted,)
    asked = judge or partial(put_to_the_test, vocabulary=vocabulary)
    refused = []
    for package in filter(installed_version, packages):
        verdict = asked(package)
        if verdict.passed and verdict.speedup > 1:
            return Guarded(make(package, vocabulary), reference, why=_why(verdict))
        refused.append(f"{package}: {verdict.reason or 'it is not faster'}")
        log.warning("tokenizer backend not used", backend=package, why=verdict.reason)
    return Guarded(None, reference, why="; ".join(refused) or _NONE_INSTALLED)


def adopt(vocabulary: Vocabulary, package: str, why: str) -> Guarded:
    """The backend of a process that knows from another one, of the same versions, that the
    package passed the gate; REFERENCE for none. Still watched."""
    reference = Reference(vocabulary)
    fast = None if package == REFERENCE else make(package, vocabulary)
    return Guarded(fast, reference, why=why)


def in_order_of_speed(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The packages, the one first that is faster for pre-tokenizers of this kind: a pattern of
    their own (Llama 3, Qwen) or GPT-2's, which is built in."""
    steps = json.dumps(json.loads(vocabulary.tokenizer_json)["pre_tokenizer"])
    own_pattern = '"Split"' in steps
    return (Fastokens.name, Splintr.name) if own_pattern else (Splintr.name, Fastokens.name)


def _why(verdict: Verdict) -> str:
    times = f"{verdict.speedup:.0f} times as fast as {REFERENCE}"
    return f"{times}, equal to it on {verdict.num_texts:,} texts"


def put_to_the_test(
    package: str,
    vocabulary: Vocabulary,
    *,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = BUDGET_S,
) -> Verdict:
    """Put an installed package to the test; takes seconds, at most about `budget_s`."""
    version = importlib.metadata.version(package)
    deadline = clock() + budget_s
    try:
        backend = make(package, vocabulary)
    except BaseException as failure:
        if not is_defect(failure):
            raise
        reason = f"it cannot build this tokenizer ({type(failure).__name__})"
        return Verdict(package, version, passed=False, reason=reason)
    reference = Reference(vocabulary)
    texts = itertools.chain(material.hostile(vocabulary), material.real(), material.code_points())
    outcome = compare(backend, reference, texts, clock=clock, deadline=deadline)
    return Verdict(
        package,
        version,
        passed=not outcome.problem,
        reason=outcome.problem,
        num_texts=outcome.num_texts,
        is_final=outcome.is_final,
        speedup=speedup(backend, reference, "\n".join(material.LANGUAGES), clock=clock),
    )
