"""A fast backend in production, with a canary: a sample of texts is encoded again by the
reference, and the first difference turns the backend off for good."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import Final

import structlog

from outrider.tokenization.backends.base import Backend
from outrider.tokenization.backends.gate import describe, is_defect

SAMPLE_EVERY: Final = 256
"""Of how many texts one is encoded twice."""
MAX_SAMPLE_CHARS: Final = 16_384
"""Of a longer text the beginning is compared: the reference takes milliseconds for so much."""

log = structlog.get_logger()


@dataclass(slots=True)
class Canary:
    """What the canary has seen."""

    num_texts: int = 0
    num_checked: int = 0
    num_differences: int = 0
    num_failures: int = 0
    """Calls in which the fast backend raised."""


class Guarded:
    """Encodes with the fast backend while it agrees with the reference. Thread-safe."""

    def __init__(
        self,
        fast: Backend | None,
        reference: Backend,
        *,
        why: str,
        sample_every: int = SAMPLE_EVERY,
    ) -> None:
        """`fast` passed the gate; None: the reference alone, `why` says why."""
        self._fast = fast
        self._reference = reference
        self._sample_every = sample_every
        self._lock = threading.Lock()
        self.why = why
        """Why the backend in use is in use, in words."""
        self.canary = Canary()
        self.epoch = 0
        """Goes up when a backend is turned off: what it gave before is not to be kept."""

    @property
    def name(self) -> str:
        """The backend in use."""
        return (self._fast or self._reference).name

    @property
    def is_fast(self) -> bool:
        """Whether a fast backend is in use."""
        return self._fast is not None

    def encode(self, text: str) -> array[int]:
        """The ids of `text`."""
        fast = self._fast
        if fast is None:
            return self._reference.encode(text)
        try:
            ids = fast.encode(text)
            return self._checked(fast, text, ids) if self._is_sampled() else ids
        except BaseException as failure:
            if not is_defect(failure):
                raise
            self.canary.num_failures += 1
            self._turn_off(fast, f"it raised {type(failure).__name__}")
            return self._reference.encode(text)

    def _is_sampled(self) -> bool:
        with self._lock:
            self.canary.num_texts += 1
            return self.canary.num_texts % self._sample_every == 1 % self._sample_every

    def _checked(self, fast: Backend, text: str, ids: array[int]) -> array[int]:
        sample = text[:MAX_SAMPLE_CHARS]
        found = ids if len(sample) == len(text) else fast.encode(sample)
        expected = self._reference.encode(sample)
        with self._lock:
            self.canary.num_checked += 1
        if found == expected:
            return ids
        self.canary.num_differences += 1
        self._turn_off(fast, describe(sample, found, expected))
        return self._reference.encode(text)

    def _turn_off(self, fast: Backend, problem: str) -> None:
        with self._lock:
            if self._fast is not fast:
                return
            self._fast = None
            self.epoch += 1
            self.why = f"{fast.name} was turned off: {problem}"
        log.error("tokenizer backend turned off", backend=fast.name, problem=problem)
