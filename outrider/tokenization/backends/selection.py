"""Selects the backend for a vocabulary: the fastest that passes the equivalence test."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from outrider.errors import ConfigError
from outrider.extras import install_command
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.equivalence import EquivalenceVerdict, check_equivalence
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import (
    PACKAGES,
    Fastokens,
    Splintr,
    installed_version,
    make_backend,
)

AUTO: Final = "auto"
CHOICES: Final = (AUTO, REFERENCE, *PACKAGES)
"""Allowed values of the setting."""

_TEST_VERSION: Final = 1
"""Rises whenever the test has other texts, or a verdict means something else."""
_VERDICT_FILE: Final = "verdict.json"

_NONE_INSTALLED: Final = (
    f"{' and '.join(PACKAGES)} are not installed; run: {install_command('fast-tokenizers')}"
)

EquivalenceTest = Callable[[str], EquivalenceVerdict]

log = structlog.get_logger()


class _UndecidedError(Exception):
    """A verdict that is not to be kept."""

    def __init__(self, verdict: EquivalenceVerdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def load_backend(store: ModelStore, vocabulary: Vocabulary, wanted: str = AUTO) -> FallbackBackend:
    """The backend for a model's vocabulary; verdicts are kept in the store, so that the test's
    seconds are spent once per machine, version and vocabulary, which models of a family share.
    Blocks; raises ModelStoreError."""

    def stored_verdict(package: str) -> EquivalenceVerdict:
        versions = f"{installed_version(package)}-{installed_version(REFERENCE)}"
        name = f"{package}-{versions}-v{_TEST_VERSION}"

        def build(folder: Path) -> None:
            verdict = check_equivalence(package, vocabulary)
            if not verdict.is_final:
                raise _UndecidedError(verdict)
            (folder / _VERDICT_FILE).write_text(verdict.to_json(), "utf-8")

        try:
            folder = store.derived_of(vocabulary.digest.hex(), name, build)
        except _UndecidedError as undecided:
            return undecided.verdict
        return EquivalenceVerdict.from_json((folder / _VERDICT_FILE).read_text("utf-8"))

    return select_backend(vocabulary, wanted, test=stored_verdict)


def select_backend(
    vocabulary: Vocabulary, wanted: str = AUTO, *, test: EquivalenceTest | None = None
) -> FallbackBackend:
    """The first installed backend that passes and is faster, with the reference behind it; only the
    reference if none is, or if `wanted` is the reference. `test` returns the verdict on an
    installed package. Raises ConfigError for any other name."""
    if wanted not in CHOICES:
        raise ConfigError(f"tokenizer backend {wanted!r}; use one of {', '.join(CHOICES)}")
    reference = Reference(vocabulary)
    if wanted == REFERENCE:
        return FallbackBackend(None, reference, reason="it is the one that was asked for")
    if vocabulary.pipeline["model"]["type"] == "Unigram":
        # Which of several splits of one sum is taken depends on how a program adds
        # (models.unigram): texts where that shows are too rare for a test to find.
        return FallbackBackend(None, reference, reason="scores are added up by no other one")
    packages = packages_by_speed(vocabulary) if wanted == AUTO else (wanted,)
    tested = test or partial(check_equivalence, vocabulary=vocabulary)
    refused = []
    for package in filter(installed_version, packages):
        verdict = tested(package)
        if verdict.passed and verdict.speedup > 1:
            return FallbackBackend(
                make_backend(package, vocabulary), reference, reason=_reason(verdict)
            )
        refused.append(f"{package}: {verdict.reason or 'it is not faster'}")
        log.warning("tokenizer_backend_not_used", backend=package, reason=verdict.reason)
    return FallbackBackend(None, reference, reason="; ".join(refused) or _NONE_INSTALLED)


def adopt_backend(vocabulary: Vocabulary, package: str, reason: str) -> FallbackBackend:
    """The backend of a process that relies on the test of another one with the same versions of
    the packages; REFERENCE for none. Shadow checks are made here too."""
    reference = Reference(vocabulary)
    fast = None if package == REFERENCE else make_backend(package, vocabulary)
    return FallbackBackend(fast, reference, reason=reason)


def packages_by_speed(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The packages, the one first that is faster for pre-tokenizers of this kind: a pattern of
    their own (Llama 3, Qwen) or GPT-2's, which is built in."""
    steps = json.dumps(vocabulary.pipeline["pre_tokenizer"])
    own_pattern = '"Split"' in steps
    return (Fastokens.name, Splintr.name) if own_pattern else (Splintr.name, Fastokens.name)


def _reason(verdict: EquivalenceVerdict) -> str:
    times = f"{verdict.speedup:.0f} times as fast as {REFERENCE}"
    return f"{times}, equal to it on {verdict.num_texts:,} texts"
