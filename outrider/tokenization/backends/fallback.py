"""A fast backend with the reference behind it. A sample of texts is encoded by both (a shadow
check), and the first difference turns the fast backend off for good."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from outrider.fair_work.defects import is_defect
from outrider.tokenization.backends.base import Backend, Batch
from outrider.tokenization.backends.equivalence import describe

SAMPLE_EVERY: Final = 256
"""One text in so many gets a shadow check."""
MAX_SAMPLE_CHARS: Final = 16_384
"""Only the beginning of a longer text is compared: the reference takes milliseconds for this
much."""

log = structlog.get_logger()


@dataclass(slots=True)
class ShadowChecks:
    """Counts of shadow checks and their results."""

    num_texts: int = 0
    """Texts that were encoded, checked or not."""
    num_checked: int = 0
    num_mismatches: int = 0
    num_failures: int = 0
    """Calls in which the fast backend raised."""


class FallbackBackend:
    """Encodes with the fast backend while it agrees with the reference. Thread-safe."""

    def __init__(
        self,
        fast: Backend | None,
        reference: Backend,
        *,
        reason: str,
        sample_every: int = SAMPLE_EVERY,
    ) -> None:
        """`fast` passed the equivalence test; with None only the reference is used. `reason`
        explains why this backend is in use."""
        self._fast = fast
        self._reference = reference
        self._sample_every = sample_every
        self._lock = threading.Lock()
        self.reason = reason
        """Why the backend in use is in use, in words."""
        self.checks = ShadowChecks()
        self.generation = 0
        """Rises when a backend is turned off: ids that it gave before must not stay cached."""

    @property
    def name(self) -> str:
        """The backend in use."""
        return (self._fast or self._reference).name

    @property
    def is_fast(self) -> bool:
        """Whether a fast backend is in use."""
        return self._fast is not None

    @property
    def fast(self) -> Backend | None:
        """The fast backend, if it is in use."""
        return self._fast

    @property
    def both(self) -> Sequence[Backend]:
        """The fast backend, if it is in use, and the reference."""
        return [one for one in (self._fast, self._reference) if one is not None]

    def encode(self, text: str) -> array[int]:
        """The ids of `text`."""
        fast = self._fast
        if fast is None:
            return self._reference.encode(text)
        try:
            ids = fast.encode(text)
            if all(self._agrees(fast, text, ids) for _ in self._sampled(1)):
                return ids
        except BaseException as failure:
            self._failed(fast, failure)
        return self._reference.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> Batch:
        """The ids of each of `texts`."""
        fast = self._fast
        if fast is None:
            return self._reference.encode_batch(texts)
        try:
            batch = fast.encode_batch(texts)
            sampled = self._sampled(len(texts))
            if all(self._agrees(fast, texts[i], batch.ids_of(i)) for i in sampled):
                return batch
        except BaseException as failure:
            self._failed(fast, failure)
        return self._reference.encode_batch(texts)

    def _sampled(self, count: int) -> range:
        """Which of the next `count` texts get a shadow check."""
        every = self._sample_every
        with self._lock:
            first = self.checks.num_texts
            self.checks.num_texts += count
        return range(-first % every, count, every)

    def _agrees(self, fast: Backend, text: str, ids: array[int]) -> bool:
        sample = text[:MAX_SAMPLE_CHARS]
        found = ids if len(sample) == len(text) else fast.encode(sample)
        expected = self._reference.encode(sample)
        with self._lock:
            self.checks.num_checked += 1
        if found == expected:
            return True
        self.checks.num_mismatches += 1
        self._turn_off(fast, describe(sample, found, expected))
        return False

    def _failed(self, fast: Backend, failure: BaseException) -> None:
        """Turn the backend off; raises `failure` again if it is no defect of the backend."""
        if not is_defect(failure):
            raise failure
        self.checks.num_failures += 1
        self._turn_off(fast, f"it raised {type(failure).__name__}")

    def _turn_off(self, fast: Backend, problem: str) -> None:
        with self._lock:
            if self._fast is not fast:
                return
            self._fast = None
            self.generation += 1
            self.reason = f"{fast.name} was turned off: {problem}"
        log.error("tokenizer_backend_off", backend=fast.name, problem=problem)
