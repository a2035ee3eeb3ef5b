"""Chats to ids without ever holding the event loop: what is asked first, and what next.

Cache and very short texts in the event loop; then worker threads; when as many chats wait as
there are threads, another process; when no one has room, a short text once more in the loop,
one in a turn of it; at last a refusal. After "Tokenization Is the Bottleneck You're Not Measuring"
(ranvier.systems, 2026-05), with threads that share one frozen tokenizer, since the library's calls
release the GIL now, and other processes chosen by load.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from outrider.errors import OutriderError, OverloadedError
from outrider.models.chat import Message
from outrider.tokenization.front.encoder import CachingEncoder, Scope
from outrider.tokenization.front.job import Job, Layer, Outcome
from outrider.tokenization.front.line import LONG_CHARS, Kind
from outrider.tokenization.front.threads import Threads
from outrider.tokenization.rewriting import Rewriter

_CHUNK_IDS: Final = 4096

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FrontPolicy:
    """What goes where."""

    num_workers: int = 2
    """Threads that tokenize."""
    max_queued: int = 64
    """Chats that may wait for a thread."""
    max_inline_chars: int = 4096
    """A longer chat is not even looked up in the event loop..."""
    max_inline_messages: int = 8
    """...nor one of more messages: the template takes its time for each."""
    max_inline_missing: int = 1024
    """Characters not in the cache that a fast backend encodes in the event loop: in microseconds,
    where handing them to a thread takes a hundred..."""
    max_reference_missing: int = 256
    """...and those that the reference encodes there."""
    max_local_chars: int = 8192
    """A chat of at most so many characters is encoded in the event loop as the last resort."""
    max_tokens: int = 1 << 30
    """A longer prompt is refused: its ids are counted, and never become Python objects, which
    collections of garbage would look at one by one."""


class Spill(Protocol):
    """Other processes that tokenize."""

    def offer(self, job: Job, finish: Callable[[Job, Outcome], None]) -> bool:
        """Take the job and call `finish`, from any thread, when its outcome is there; False if no
        process has room."""

    def close(self) -> None:
        """End the processes."""


Record = Callable[[Layer, float], None]
"""A chat was tokenized there, in so many milliseconds from submission; from any thread."""
Shortened = Callable[[int, int], None]
"""A chat of so many tokens was made one of so many; from any thread."""


class Front:
    """Verbs belong to the event loop."""

    def __init__(
        self,
        encoder: CachingEncoder,
        policy: FrontPolicy,
        *,
        rewriter: Rewriter | None = None,
        record: Record = lambda layer, ms: None,
        shortened: Shortened = lambda before, after: None,
        spill: Spill | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`rewriter`: what is done to chats before."""
        self.encoder = encoder
        self._policy = policy
        self._rewriter = rewriter or Rewriter()
        self._record = record
        self._shortened = shortened
        self._spill = spill
        self._clock = clock
        self._has_permit = True
        self._threads: Threads[Job] = Threads(policy.num_workers, policy.max_queued, self._work)

    def submit(
        self,
        messages: Sequence[Message],
        answer: Callable[[Outcome], None],
        *,
        scope: Scope = None,
        is_typed: bool = False,
    ) -> Job:
        """Call `answer` in the event loop, never before this returns, once the ids are there.

        `scope`: whose chat it is; by default its texts leave nothing.
        `is_typed`: the prompt is still being typed, so its ids only save time: it comes after all
        chats and is given up rather than taken elsewhere. Raises OverloadedError when there is
        room nowhere.
        """
        messages = self._rewriter.prepare(messages)
        num_chars = sum(len(message.content) for message in messages)
        long = Kind.LONG if num_chars >= LONG_CHARS else Kind.SHORT
        kind = Kind.TYPED if is_typed else long
        job = Job(messages, answer, kind, asyncio.get_running_loop(), self._clock(), scope)
        if not self._is_answered_inline(job, num_chars):
            self._place(job, num_chars)
        return job

    def cancel(self, job: Job) -> None:
        """The outcome is not wanted any more; it will not be delivered."""
        job.is_cancelled = True
        self._threads.remove(job, job.kind)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        self._threads.close()
        if self._spill is not None:
            self._spill.close()

    def join(self) -> None:
        """After `close`: wait for what runs. Blocks, so not in the event loop."""
        self._threads.join()

    def _is_answered_inline(self, job: Job, num_chars: int) -> bool:
        policy = self._policy
        if num_chars > policy.max_inline_chars or len(job.messages) > policy.max_inline_messages:
            return False
        try:
            job.draft = self.encoder.begin(job.messages, job.scope)
        except OutriderError as error:
            self._finish(job, error, Layer.CACHE)
            return True
        except Exception as failure:
            self._finish(job, _defect(failure), Layer.INLINE)
            return True
        is_fast = self.encoder.backend.is_fast
        limit = policy.max_inline_missing if is_fast else policy.max_reference_missing
        if job.draft.missing_chars > limit:
            return False
        layer = Layer.INLINE if job.draft.missing_chars else Layer.CACHE
        self._finish(job, self._encode(job, may_wait=False), layer)
        return True

    def _place(self, job: Job, num_chars: int) -> None:
        """Give the job to whoever has room."""
        is_needed = job.kind is not Kind.TYPED
        if is_needed and self._threads.is_saturated and self._is_spilt(job):
            return
        try:
            self._threads.enter(job, job.kind)
        except OverloadedError:
            if is_needed and self._has_permit and num_chars <= self._policy.max_local_chars:
                self._encode_locally(job)
                return
            layer = Layer.REFUSED if is_needed else Layer.BAILED
            self._record(layer, (self._clock() - job.begun_at) * 1e3)
            raise

    def _is_spilt(self, job: Job) -> bool:
        return self._spill is not None and self._spill.offer(
            job, lambda done, outcome: self._finish(done, self._fit(done, outcome), Layer.PROCESS)
        )

    def _encode_locally(self, job: Job) -> None:
        """The only permit is back at the loop's next turn: one stall of a millisecond or so at a
        time, whatever comes at once."""
        self._has_permit = False
        job.loop.call_soon(self._return_permit)
        self._finish(job, self._encode(job, may_wait=False), Layer.LOCAL)

    def _return_permit(self) -> None:
        self._has_permit = True

    # What follows runs in any thread.

    def _work(self, job: Job) -> None:
        self._finish(job, self._encode(job, may_wait=True), Layer.THREAD)

    def _finish(self, job: Job, outcome: Outcome, layer: Layer) -> None:
        self._record(layer, (self._clock() - job.begun_at) * 1e3)
        if isinstance(outcome, OutriderError):
            outcome.bare()  # it would keep the prompt's text and ids, megabytes of a long one
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            job.loop.call_soon_threadsafe(job.deliver, outcome)

    def _encode(self, job: Job, *, may_wait: bool) -> Outcome:
        return _outcome(lambda: self._ids(job, may_wait=may_wait))

    def _ids(self, job: Job, *, may_wait: bool) -> array[int]:
        draft = job.draft or self.encoder.begin(job.messages, job.scope)
        ids = self.encoder.finish(draft, may_wait=may_wait)
        if len(ids) <= self._policy.max_tokens:
            return ids
        return self._fitted(job, len(ids), may_wait=may_wait)

    def _fit(self, job: Job, outcome: Outcome) -> Outcome:
        """What another process found, made shorter where it is too long."""
        if isinstance(outcome, OutriderError) or len(outcome) <= self._policy.max_tokens:
            return outcome
        num_tokens = len(outcome)
        return _outcome(lambda: self._fitted(job, num_tokens, may_wait=True))

    def _fitted(self, job: Job, num_tokens: int, *, may_wait: bool) -> array[int]:
        def encode(messages: Sequence[Message]) -> array[int]:
            draft = self.encoder.begin(messages, job.scope)
            return self.encoder.finish(draft, may_wait=may_wait)

        longest = self._policy.max_tokens
        ids = self._rewriter.fitted(job.messages, num_tokens, longest, encode)
        self._shortened(num_tokens, len(ids))
        return ids


def _outcome(work: Callable[[], array[int]]) -> Outcome:
    try:
        return as_tuple(work())
    except OutriderError as error:
        return error
    except Exception as failure:
        return _defect(failure)


def _defect(failure: Exception) -> OutriderError:
    """A defect fails its chat and leaves the worker to the others."""
    log.error("tokenization failed", exc_info=failure)
    return OutriderError(f"the tokenizer failed: {type(failure).__name__}")


def as_tuple(ids: array[int]) -> tuple[int, ...]:
    """In pieces: one call for a long prompt would hold the GIL for milliseconds."""
    if len(ids) <= _CHUNK_IDS:
        return tuple(ids)
    whole: list[int] = []
    for start in range(0, len(ids), _CHUNK_IDS):
        whole.extend(ids[start : start + _CHUNK_IDS])
    return tuple(whole)
