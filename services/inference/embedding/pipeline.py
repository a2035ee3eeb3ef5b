"""The threads of an embedding replica: tokenizers fill the token buffer, engines empty it.

All of them share the queue under one lock, which is held for microseconds; tokenizers and engines
release Python's lock while they work. Results are posted to the event loop, an engine call at a
time; the loop waits for no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import structlog

from outrider.engines.embedding import Embedder, Ids, Vectors
from outrider.errors import CancelledError, DeadlineError, EngineError, OutriderError
from outrider.fair_work.defects import is_defect
from outrider.fair_work.job_queue import given_up
from outrider.fair_work.turns import Requester
from outrider.models.embedding_folder import TextTokenizer
from outrider.session.types import Priority
from services.inference.embedding.queue import EmbeddingBatch, EmbeddingQueue
from services.inference.embedding_limits import EmbeddingLimits

_MAX_FAILURES: Final = 3
"""Engine calls that may fail in a row before the replica stops."""
_EXPIRY_S: Final = 0.1
"""Between two looks at deadlines."""
_SMOOTHING: Final = 0.1
"""Weight of the latest engine call in the cost of a token."""
_FIRST_TOKEN_MS: Final = 0.5
"""Assumed cost of a token before a call was measured."""

_log = structlog.get_logger()

Outcome: TypeAlias = "tuple[Vectors, int] | OutriderError"
"""A vector [d] and the number of its text's tokens, or the error."""


@dataclass(frozen=True, slots=True)
class EmbeddingInput:
    """One text, or its ids."""

    content: str | Ids
    num_bytes: int
    truncate: bool
    requester: Requester
    priority: Priority
    deadline_at: float | None
    """On the pipeline's clock."""
    answer: Callable[[list[tuple[int, Outcome]]], None]
    """Called on the event loop with the keys of inputs that have the same `answer`, and what became
    of each: once for every input."""


@dataclass(frozen=True, slots=True)
class EmbeddingLoad:
    """Waiting and running work of the pipeline, for routers and metrics."""

    num_inputs: int
    num_tokens: int
    token_ms: float
    """Time per token, padding included, while all engines compute."""


@dataclass(slots=True)
class EmbeddingCounts:
    """Since the start."""

    tokens: int = 0
    """Tokens that engines computed, without padding."""
    padding: int = 0
    busy_s: float = 0.0
    """Seconds that engines computed."""
    waited_s: float = 0.0
    """Seconds that engines waited for a tokenizer: texts were waiting, but no tokens."""
    vectors: int = 0
    failed: int = 0


class EmbeddingPipeline:
    """The pipeline of one replica. Its methods are called on the event loop."""

    def __init__(
        self,
        limits: EmbeddingLimits,
        tokenizer: TextTokenizer,
        engines: Sequence[Embedder],
        *,
        wide: Embedder | None = None,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wide`: an engine of as many threads as all `engines` together, for a call that has
        nothing beside it. `on_change` is called on the loop when the load has changed."""
        self._limits = limits
        self._tokenizer = tokenizer
        self._engines = engines
        self._wide = wide
        self._num_computing = 0
        self._on_change = on_change
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._queue = EmbeddingQueue(limits)
        self._inputs: dict[int, EmbeddingInput] = {}
        self._last_key = 0
        self._changed = threading.Condition()
        self._is_stopping = False
        self._threads: list[threading.Thread] = []
        self._expiry: asyncio.Task[None] | None = None
        self._token_ms = _FIRST_TOKEN_MS
        self.counts = EmbeddingCounts()
        self.problem = ""
        """Why nothing can be computed any more."""

    @property
    def load(self) -> EmbeddingLoad:
        """The present load."""
        with self._changed:
            return EmbeddingLoad(len(self._queue), self._queue.num_tokens, self._token_ms)

    def start(self) -> None:
        """Start the threads; `stop` has to follow."""
        works: list[tuple[str, Callable[[], None]]] = [
            (f"tokenizer-{number}", self._tokenize)
            for number in range(self._limits.tokenizer_threads)
        ]
        for number, engine in enumerate(self._engines):
            works.append((f"embedder-{number}", partial(self._compute, engine)))
        self._threads = [
            threading.Thread(target=self._run, args=(name, work), name=name, daemon=True)
            for name, work in works
        ]
        for thread in self._threads:
            thread.start()
        self._expiry = asyncio.create_task(self._expiring())

    async def stop(self, error: OutriderError) -> None:
        """End the threads after their present work; remaining inputs end with `error`."""
        if self._expiry is not None:
            self._expiry.cancel()
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads = []
        self._answer([(key, error) for key in list(self._inputs)])
        for engine in (*self._engines, *([self._wide] if self._wide is not None else [])):
            engine.close()

    def submit(self, given: EmbeddingInput) -> int:
        """Take an input; returns its key. Others may lose their place to it. Raises
        OverloadedError, FrameTooLargeError, InvalidRequestError for ids that are none of the
        model's, PromptTooLongError."""
        ids: Ids | None = None
        if not isinstance(given.content, str):
            ids = self._tokenizer.checked(given.content, truncate=given.truncate)
        self._last_key += 1
        key = self._last_key
        with self._changed:
            lost = self._queue.add(
                key,
                given.num_bytes,
                given.priority,
                given.deadline_at,
                self._clock(),
                ids=ids,
                requester=given.requester,
            )
            self._inputs[key] = given
            self._changed.notify_all()
        self._answer([(one, given_up()) for one in lost])
        self._on_change()
        return key

    def cancel(self, keys: Sequence[int]) -> None:
        """Drop inputs that are no longer wanted; those without an answer get one."""
        error = CancelledError("the client cancelled the input")
        self._answer([(key, error) for key in keys if key in self._inputs])

    # On the threads.

    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Run a thread's body. A thread that ends too soon leaves inputs without answer: the
        replica must be restarted."""
        try:
            work()
        except BaseException as failure:
            _log.critical("embedding_thread_ended", thread=name, exc_info=failure)
            self.problem = f"the thread {name} ended: {type(failure).__name__}"
            self._call(self._on_change)

    def _tokenize(self) -> None:
        while True:
            with self._changed:
                key = self._queue.next_text(self._clock())
                while key is None and not self._is_stopping:
                    self._changed.wait()
                    key = self._queue.next_text(self._clock())
                if key is None or self._is_stopping:
                    return
                given = self._inputs.get(key)
            if given is None or not isinstance(given.content, str):
                continue
            try:
                ids = self._tokenizer.encode(given.content, truncate=given.truncate)
            except BaseException as failure:
                if not is_defect(failure):
                    raise
                self._post([(key, _error_of(failure, "the tokenizer"))])
                continue
            with self._changed:
                self._queue.tokenized(key, ids)
                self._changed.notify_all()

    def _compute(self, engine: Embedder) -> None:
        num_failures = 0
        while (found := self._next_batch()) is not None:
            batch, is_alone = found
            began_s = self._clock()
            chosen = self._wide if is_alone and self._wide is not None else engine
            try:
                vectors = chosen.embed(batch.texts)
            except BaseException as failure:
                if not is_defect(failure):
                    raise
                num_failures += 1
                self._computed()
                error = _error_of(failure, "the engine")
                _log.error("embedding_failed", num_texts=len(batch.keys), why=error.message)
                if num_failures >= _MAX_FAILURES:
                    self.problem = error.message
                self._post([(key, error) for key in batch.keys])
                continue
            num_failures = 0
            self._count(batch, self._clock() - began_s, chosen)
            self._post(
                [
                    (key, (vector, len(ids)))
                    for key, vector, ids in zip(batch.keys, vectors, batch.texts, strict=True)
                ]
            )

    def _next_batch(self) -> tuple[EmbeddingBatch, bool] | None:
        """Wait for a batch; returns it with whether no other input is left. None: the end."""
        with self._changed:
            batch = self._take()
            while batch is None and not self._is_stopping:
                has_texts, began_s = self._queue.num_untokenized > 0, self._clock()
                self._changed.wait()
                if has_texts:
                    self.counts.waited_s += self._clock() - began_s
                batch = self._take()
            if batch is None or self._is_stopping:
                return None
            self._num_computing += 1
            # There is room in the token buffer again.
            self._changed.notify_all()
            # One whose input was cancelled may still be computed, though it is no input any more.
            is_alone = self._num_computing == 1 and len(self._queue) == len(batch.keys)
            return batch, is_alone

    def _take(self) -> EmbeddingBatch | None:
        return self._queue.next_batch(self._clock(), len(self._engines) - self._num_computing)

    def _computed(self) -> None:
        with self._changed:
            self._num_computing -= 1

    def _count(self, batch: EmbeddingBatch, took_s: float, engine: Embedder) -> None:
        num_computed = batch.padded_tokens * len(batch.keys)
        num_engines = 1 if engine is self._wide else len(self._engines)
        with self._changed:
            self._num_computing -= 1
            self.counts.busy_s += took_s
            self.counts.tokens += batch.num_tokens
            self.counts.padding += num_computed - batch.num_tokens
            token_ms = took_s * 1e3 / num_computed / num_engines
            self._token_ms += (token_ms - self._token_ms) * _SMOOTHING

    def _post(self, outcomes: list[tuple[int, Outcome]]) -> None:
        self._call(partial(self._answer, outcomes))

    def _call(self, work: Callable[[], None]) -> None:
        """On the loop."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            pass  # the loop has ended, and whoever would hear of it

    # On the loop.

    def _answer(self, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        """Inputs that were answered before are left out."""
        by_answer: dict[int, tuple[EmbeddingInput, list[tuple[int, Outcome]]]] = {}
        for key, outcome in outcomes:
            given = self._inputs.pop(key, None)
            if given is None:
                continue
            with self._changed:
                self._queue.finished(key)
            if isinstance(outcome, OutriderError):
                self.counts.failed += 1
            else:
                self.counts.vectors += 1
            by_answer.setdefault(id(given.answer), (given, []))[1].append((key, outcome))
        for given, told in by_answer.values():
            given.answer(told)
        if by_answer:
            with self._changed:
                self._changed.notify_all()
            self._on_change()

    async def _expiring(self) -> None:
        error = DeadlineError("the deadline passed before the input was computed")
        while True:
            await asyncio.sleep(_EXPIRY_S)
            with self._changed:
                late = self._queue.expired(self._clock())
            self._answer([(key, error) for key in late])


def _error_of(failure: BaseException, who: str) -> OutriderError:
    if isinstance(failure, OutriderError):
        return failure.bare()
    _log.error("embedding_defect", exc_info=failure)
    return EngineError(f"{who} failed: {type(failure).__name__}")


def ids_of(data: bytes) -> Ids:
    """[n] token ids of little-endian u32, those beyond all vocabularies as -1."""
    wide = np.frombuffer(data, "<u4").astype(np.int64)
    return np.where(wide < 1 << 31, wide, -1).astype(np.int32)
