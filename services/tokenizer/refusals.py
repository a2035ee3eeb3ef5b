"""Errors for requests that do not get a vocabulary (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from outrider.errors import (
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.load_table import Refusal, Refuse

_BUSY_RETRY_MS: Final = 500
_LOADING_RETRY_MS: Final = 1000


def refusal_error(refused: Refuse[Any], served: Iterable[str]) -> OutriderError:
    """The error for a request; `served`: names of the models there are."""
    name = refused.name
    match refused.why:
        case Refusal.NOT_SERVED:
            return UnknownModelError(
                f"no vocabulary of model {name[:100]!r} here; use {', '.join(served)}"
            )
        case Refusal.FAILED:
            return VocabularyUnavailableError(
                f"the vocabulary of model {name} cannot be loaded here: {refused.reason}",
                retry_delay_ms=max(1, round(refused.retry_s * 1000)),
            )
        case Refusal.STILL_LOADING | Refusal.TOO_MANY_WAITING:
            return VocabularyUnavailableError(
                f"the vocabulary of model {name} is being loaded here; try again in a moment",
                retry_delay_ms=_LOADING_RETRY_MS,
            )
        case Refusal.IN_USE:
            return OverloadedError(
                "all vocabularies that may be loaded are in use; try again in a moment, or raise "
                "max_loaded_vocabularies",
                retry_delay_ms=_BUSY_RETRY_MS,
            )


def mismatch_error(model: str, *, ours: bytes, theirs: bytes) -> OutriderError:
    """The error for a request that wants a vocabulary of another digest than the model has."""
    return VocabularyMismatchError(
        f"vocabulary {theirs.hex()} of model {model} is not served here, {ours.hex()} is; use the "
        "model's own, or ask a tokenizer that has yours",
        metadata={"ours": ours.hex(), "theirs": theirs.hex()},
    )
