"""Turns chats into prompt ids without holding the event loop, through tiers from cheap to
expensive.

A chat takes the first tier that has room: cache and very short texts in the event loop; worker
threads; another process, when as many chats wait as there are threads; when none of them has room,
a short chat in the event loop after all, one per iteration of it; at last a refusal. After
"Tokenization Is the Bottleneck You're Not Measuring" (ranvier.systems, 2026-05), with threads that
share one frozen tokenizer, since the library's calls release the GIL now, and other processes
chosen by load.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from outrider.errors import OutriderError, OverloadedError, PromptTooLongError
from outrider.fair_work.defects import defect, is_defect
from outrider.fair_work.job_queue import JobClass, given_up
from outrider.fair_work.threads import WorkerThreads
from outrider.fair_work.turns import Requester
from outrider.models.chat import Message, num_chars_of
from outrider.tokenization.encoder import CacheScope, CachingEncoder, PartialPrompt, completed
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import ContentClass

_CHUNK_IDS: Final = 4096
_MAX_COUNTED: Final = 4
"""A prompt that cannot be shortened is counted up to so many times the tokens that fit: clients
shorten it by the number, and the rest would only cost time."""

THE_TOKENIZER: Final = "the tokenizer"
"""What failed, in errors of defects."""

TokenizationResult: TypeAlias = tuple[int, ...] | OutriderError
"""The prompt ids, or what made them impossible."""


class Tier(StrEnum):
    """Place where a prompt was tokenized."""

    CACHE = "cache"
    """In the event loop: every text of it was cached."""
    INLINE = "inline"
    """In the event loop: the uncached texts are so short that a handover would cost more."""
    THREAD = "thread"
    PROCESS = "process"
    """In another process, because as many chats waited as there are threads."""
    FALLBACK = "fallback"
    """In the event loop, because neither threads nor processes had room."""
    REFUSED = "refused"
    """Nowhere: too many chats wait."""
    REGION = "region"
    """Not here: it took too long, and was left to the region."""
    DROPPED = "dropped"
    """Not at all: a typeahead prompt, whose ids would only have saved time."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Sizes that decide on a chat's tier."""

    num_workers: int = 2
    """Threads that tokenize."""
    max_queued: int = 64
    """Chats that may wait for a thread."""
    max_pending_chars: int = 8 << 20
    """Characters of the chats that wait or are tokenized: at most 32 MB of memory."""
    max_inline_chars: int = 4096
    """A longer chat is not looked up in the event loop: it goes to a thread at once."""
    max_inline_messages: int = 8
    """Nor is one of more messages, for the chat template takes time for each."""
    max_inline_missing: int = 1024
    """Uncached characters that a fast backend encodes in the event loop: it takes microseconds
    for them, a handover to a thread takes a hundred."""
    max_reference_missing: int = 256
    """Uncached characters that the reference backend encodes in the event loop."""
    max_local_chars: int = 8192
    """Longest chat that is encoded in the event loop as the last resort (Tier.FALLBACK)."""
    max_tokens: int = 1 << 30
    """Longest prompt. A longer one is shortened or refused while its ids are an array: as Python
    objects the garbage collector would look at them one by one."""


@dataclass(slots=True, eq=False)
class TokenizationJob:
    """One chat on its way to ids."""

    messages: Sequence[Message]
    answer: Callable[[TokenizationResult], None]
    job_class: JobClass
    requester: Requester
    num_chars: int
    loop: asyncio.AbstractEventLoop
    begun_at: float
    """Seconds, by the pool's clock."""
    scope: CacheScope = None
    tools: Sequence[str] = ()
    variables: str = ""
    text: str | None = None
    """The prompt, where it is no chat."""
    is_prompt: bool = False
    """Whether `text` gets the tokens that the model's prompts begin and end with."""
    prompt: PartialPrompt | None = None
    """The part of the prompt that the event loop found in the cache."""
    is_plain: bool = False
    """Whether it is text rather than a prompt: one that is too long is cut."""
    slices: Generator[int, None, TokenizationResult] | None = None
    """Its tokenization in a thread, once it has begun."""
    is_cancelled: bool = False

    def deliver(self, result: TokenizationResult) -> None:
        """In the event loop: hand the result over, unless the job was cancelled."""
        if not self.is_cancelled:
            self.answer(result)


class OverflowPool(Protocol):
    """Other processes that tokenize while the threads are saturated."""

    @property
    def num_processes(self) -> int:
        """How many there are, started or not."""

    def offer(
        self, job: TokenizationJob, finish: Callable[[TokenizationJob, TokenizationResult], None]
    ) -> bool:
        """Take the job and call `finish` with its result, from any thread; False if no process
        has room."""

    def close(self) -> None:
        """End the processes."""


Record = Callable[[Tier, float], None]
"""Records a chat's tier and its milliseconds since submission; called from any thread."""
Shortened = Callable[[int, int], None]
"""Records a chat's tokens before and after it was shortened; called from any thread."""


class TokenizationPool:
    """Methods are called in the event loop, unless documented otherwise."""

    def __init__(
        self,
        encoder: CachingEncoder,
        policy: PoolPolicy,
        *,
        rewriter: Rewriter | None = None,
        record: Record = lambda tier, ms: None,
        shortened: Shortened = lambda before, after: None,
        overflow: OverflowPool | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`rewriter` is applied to every chat first."""
        self.encoder = encoder
        self._policy = policy
        self._rewriter = rewriter or Rewriter()
        self._record = record
        self._shortened = shortened
        self._overflow = overflow
        self._clock = clock
        self._may_fall_back = True
        self._threads: WorkerThreads[TokenizationJob] = WorkerThreads(
            policy.num_workers,
            policy.max_queued,
            policy.max_pending_chars,
            self._work,
            self._give_up,
        )

    @property
    def num_processes(self) -> int:
        """Other processes that tokenize while the threads are saturated."""
        return self._overflow.num_processes if self._overflow is not None else 0

    def submit(
        self,
        messages: Sequence[Message],
        answer: Callable[[TokenizationResult], None],
        *,
        requester: Requester,
        tools: Sequence[str] = (),
        variables: str = "",
        scope: CacheScope = None,
        is_typeahead: bool = False,
    ) -> TokenizationJob:
        """Call `answer` in the event loop with the ids, never before this returns.

        `tools`: what the model may call, as `check_tools` returned it. `scope`: the chat's cache
        scope; with None its texts are not cached. `requester`: with whom workers are shared. When
        too much waits, the answer may be an OverloadedError. `is_typeahead`: the prompt is still
        being typed, so it comes after all chats and is dropped rather than taken to an overflow or
        fallback tier. Raises OverloadedError when no tier has room.
        """
        messages = self._rewriter.prepare(messages)
        num_chars = num_chars_of(messages, tools) + len(variables)
        job_class = JobClass.TYPEAHEAD if is_typeahead else JobClass.of(num_chars)
        loop = asyncio.get_running_loop()
        job = TokenizationJob(
            *(messages, answer, job_class, requester, num_chars, loop, self._clock()),
            scope=scope,
            tools=tools,
            variables=variables,
        )
        if not self._is_answered_inline(job):
            self._enqueue(job)
        return job

    def submit_text(
        self,
        text: str,
        answer: Callable[[TokenizationResult], None],
        *,
        requester: Requester,
        scope: CacheScope = None,
        is_prompt: bool = False,
    ) -> TokenizationJob:
        """Like `submit`, for a text in which control tokens' names and markup are these tokens. It
        is not rewritten. `is_prompt`: with those that the model's prompts begin and end with.
        Raises OverloadedError."""
        loop = asyncio.get_running_loop()
        job_class = JobClass.of(len(text))
        job = TokenizationJob(
            *((), answer, job_class, requester, len(text), loop, self._clock()),
            scope=scope,
            text=text,
            is_prompt=is_prompt,
        )
        if not self._is_answered_inline(job):
            self._enqueue(job)
        return job

    def submit_plain(
        self,
        text: str,
        answer: Callable[[TokenizationResult], None],
        *,
        requester: Requester,
    ) -> TokenizationJob:
        """Like `submit`, for text that is no prompt: neither rewritten nor cached, and cut behind
        `max_tokens`. Only threads encode it. Raises OverloadedError when they have no room."""
        job_class = JobClass.of(len(text))
        loop = asyncio.get_running_loop()
        prompt = PartialPrompt(None, [(text, ContentClass.USER)], len(text))
        job = TokenizationJob(
            *((), answer, job_class, requester, len(text), loop, self._clock()),
            prompt=prompt,
            is_plain=True,
        )
        self._threads.put(job, job_class, requester, job.num_chars)
        return job

    def cancel(self, job: TokenizationJob) -> None:
        """The result is not wanted any more; it will not be delivered."""
        job.is_cancelled = True
        self._threads.remove(job)

    def leave(self, job: TokenizationJob) -> None:
        """Cancel it, because the region makes the ids instead."""
        self.cancel(job)
        self._record(Tier.REGION, (self._clock() - job.begun_at) * 1e3)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        self._threads.close()
        if self._overflow is not None:
            self._overflow.close()

    def join(self) -> None:
        """After `close`: wait for what runs. Blocks, so not in the event loop."""
        self._threads.join()

    def _is_answered_inline(self, job: TokenizationJob) -> bool:
        policy = self._policy
        is_long = job.num_chars > policy.max_inline_chars
        if is_long or len(job.messages) > policy.max_inline_messages:
            return False
        try:
            job.prompt = self._begin(job)
        except OutriderError as error:
            self._finish(job, error, Tier.CACHE)
            return True
        except BaseException as failure:
            if not is_defect(failure):
                raise
            self._finish(job, defect(failure, THE_TOKENIZER), Tier.INLINE)
            return True
        is_fast = self.encoder.backend.is_fast
        limit = policy.max_inline_missing if is_fast else policy.max_reference_missing
        if job.prompt.missing_chars > limit:
            return False
        tier = Tier.INLINE if job.prompt.missing_chars else Tier.CACHE
        self._finish(job, self._encode(job, may_wait=False), tier)
        return True

    def _enqueue(self, job: TokenizationJob) -> None:
        """Give the job to the first tier behind the event loop that has room."""
        is_chat = job.job_class is not JobClass.TYPEAHEAD
        if is_chat and self._threads.is_saturated and self._is_taken_by_overflow(job):
            return
        try:
            self._threads.put(job, job.job_class, job.requester, job.num_chars)
        except OverloadedError:
            is_short = job.num_chars <= self._policy.max_local_chars
            if is_chat and self._may_fall_back and is_short:
                self._encode_as_fallback(job)
                return
            tier = Tier.REFUSED if is_chat else Tier.DROPPED
            self._record(tier, (self._clock() - job.begun_at) * 1e3)
            raise

    def _give_up(self, job: TokenizationJob) -> None:
        is_chat = job.job_class is not JobClass.TYPEAHEAD
        self._finish(job, given_up(), Tier.REFUSED if is_chat else Tier.DROPPED)

    def _is_taken_by_overflow(self, job: TokenizationJob) -> bool:
        if self._overflow is None or job.text is not None or job.job_class is JobClass.LONG:
            return False  # other processes take short chats; threads cut long ones in slices
        return self._overflow.offer(
            job, lambda done, result: self._finish(done, self._fit(done, result), Tier.PROCESS)
        )

    def _encode_as_fallback(self, job: TokenizationJob) -> None:
        """At most one chat per iteration of the event loop, so that however many arrive at once,
        each stalls the loop for a millisecond or so and others run in between."""
        self._may_fall_back = False
        job.loop.call_soon(self._allow_fallback)
        self._finish(job, self._encode(job, may_wait=False), Tier.FALLBACK)

    def _allow_fallback(self) -> None:
        self._may_fall_back = True

    # What follows runs in any thread.

    def _work(self, job: TokenizationJob) -> bool:
        """One slice; whether there is another one that is wanted."""
        if job.is_cancelled:
            return False
        if job.slices is None:
            job.slices = self._in_slices(job, may_wait=True)
        try:
            next(job.slices)
        except StopIteration as done:
            self._finish(job, done.value, Tier.THREAD)
            return False
        return not job.is_cancelled

    def _finish(self, job: TokenizationJob, result: TokenizationResult, tier: Tier) -> None:
        if not job.is_plain and not job.is_cancelled:
            self._record(tier, (self._clock() - job.begun_at) * 1e3)
        if isinstance(result, OutriderError):
            result.bare()  # its traceback would keep the prompt's text and ids, perhaps megabytes
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            job.loop.call_soon_threadsafe(job.deliver, result)

    def _encode(self, job: TokenizationJob, *, may_wait: bool) -> TokenizationResult:
        return completed(self._in_slices(job, may_wait=may_wait))

    def _in_slices(
        self, job: TokenizationJob, *, may_wait: bool
    ) -> Generator[int, None, TokenizationResult]:
        return _settled(self._ids(job, may_wait=may_wait))

    def _ids(self, job: TokenizationJob, *, may_wait: bool) -> Generator[int, None, array[int]]:
        max_tokens = self._policy.max_tokens
        slices = self.encoder.in_slices(job.prompt or self._begin(job), may_wait=may_wait)
        is_refused = job.text is not None or not (self._rewriter.shortens or job.is_plain)
        most = _MAX_COUNTED * max_tokens if is_refused else math.inf
        ids = yield from _up_to(slices, most, max_tokens)
        if len(ids) <= max_tokens:
            return ids
        if job.is_plain:
            return ids[:max_tokens]
        return (yield from self._fitted(job, len(ids), may_wait=may_wait))

    def _fit(self, job: TokenizationJob, result: TokenizationResult) -> TokenizationResult:
        """The result of another process, shortened if it is too long."""
        if isinstance(result, OutriderError) or len(result) <= self._policy.max_tokens:
            return result
        return completed(_settled(self._fitted(job, len(result), may_wait=True)))

    def _begin(self, job: TokenizationJob) -> PartialPrompt:
        if job.text is not None:
            return self.encoder.begin_text(job.text, job.scope, is_prompt=job.is_prompt)
        return self._begin_chat(job, job.messages)

    def _begin_chat(self, job: TokenizationJob, messages: Sequence[Message]) -> PartialPrompt:
        return self.encoder.begin(messages, job.scope, tools=job.tools, variables=job.variables)

    def _fitted(
        self, job: TokenizationJob, num_tokens: int, *, may_wait: bool
    ) -> Generator[int, None, array[int]]:
        max_tokens = self._policy.max_tokens
        if job.text is not None:
            raise PromptTooLongError.of(num_tokens, max_tokens)

        def encode(messages: Sequence[Message]) -> Generator[int, None, array[int]]:
            return self.encoder.in_slices(self._begin_chat(job, messages), may_wait=may_wait)

        ids = yield from self._rewriter.fitted(
            job.messages,
            num_tokens,
            max_tokens,
            encode,
            num_fixed_chars=sum(map(len, job.tools)) + len(job.variables),
        )
        self._shortened(num_tokens, len(ids))
        return ids


def _up_to(
    slices: Generator[int, None, array[int]], most: float, max_tokens: int
) -> Generator[int, None, array[int]]:
    """All slices. Raises PromptTooLongError as soon as there are more than `most` ids."""
    while True:
        try:
            count = next(slices)
        except StopIteration as done:
            ids: array[int] = done.value
            return ids
        if count > most:
            raise PromptTooLongError.of(count, max_tokens, is_whole=False)
        yield count


def _settled(
    slices: Generator[int, None, array[int]],
) -> Generator[int, None, TokenizationResult]:
    """The same slices, and the ids or what made them impossible."""
    try:
        return as_tuple((yield from slices))
    except OutriderError as error:
        return error
    except BaseException as failure:
        if not is_defect(failure):
            raise
        return defect(failure, THE_TOKENIZER)


def as_tuple(ids: array[int]) -> tuple[int, ...]:
    """In chunks: one call for a long prompt would hold the GIL for milliseconds."""
    if len(ids) <= _CHUNK_IDS:
        return tuple(ids)
    whole: list[int] = []
    for start in range(0, len(ids), _CHUNK_IDS):
        whole.extend(ids[start : start + _CHUNK_IDS])
    return tuple(whole)
