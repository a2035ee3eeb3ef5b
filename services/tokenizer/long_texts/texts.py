"""Texts of any size: cut as they arrive, tokenized by workers, their ids read in order; and long
sequences of ids to text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from outrider.codec.tokens import negotiate
from outrider.errors import EmptyPromptError, InvalidRequestError, UnavailableError
from outrider.fair_work.calls import FairThreads
from outrider.fair_work.job_queue import JobClass
from outrider.fair_work.turns import Requester
from outrider.rpc import incoming
from outrider.shared_calls import SharedCalls
from outrider.telemetry.metrics import Metrics
from outrider.tokenization.cut_proofs import UnprovenError, prove
from outrider.tokenization.cuts import CutRule, Cutter
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import requester_from_proto, token_block_from_proto
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.long_texts.jobs import DispatcherLimits
from services.tokenizer.long_texts.processes import WorkerProcesses
from services.tokenizer.long_texts.worker_pool import OpenJob, PartPayload, WorkerPool
from services.tokenizer.requests import Slices
from services.tokenizer.served_models import ServedModels
from services.tokenizer.vocabularies import ServedVocabulary

TokenizeRequests = AsyncIterator[tokenizer_pb2.TokenizeRequest]
DetokenizeRequests = AsyncIterator[tokenizer_pb2.DetokenizeRequest]

_STEP_CHARS: Final = 1 << 14
"""Characters searched for cuts at a time: at most about a millisecond of the event loop."""

_log = structlog.get_logger()


_MAX_RULES: Final = 256
"""Most vocabularies whose rules are remembered."""


class CutRules:
    """Rules for cutting texts, by vocabulary: found out in a thread when a vocabulary's first long
    text comes, and remembered."""

    def __init__(self) -> None:
        self._rules: SharedCalls[bytes, CutRule | None] = SharedCalls(_MAX_RULES)
        """By digest of the vocabulary."""

    async def of(self, served: ServedVocabulary) -> CutRule | None:
        """The rule of a vocabulary; None if its texts may not be cut."""
        found_out = partial(asyncio.to_thread, _rule, served)
        return await self._rules.result(served.vocabulary.digest, found_out)


@dataclass(frozen=True, slots=True)
class LongTexts:
    """Makes token blocks of texts of any size, in bounded memory."""

    models: ServedModels
    rules: CutRules
    workers: WorkerPool
    processes: WorkerProcesses
    part_chars: int
    max_part_chars: int

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, config: TokenizerConfig, models: ServedModels, metrics: Metrics
    ) -> AsyncIterator[LongTexts]:
        """Takes texts once `processes.address` is set. Leaves no process behind."""
        rules = CutRules()
        for served in models.loaded():
            await rules.of(served)
        processes = WorkerProcesses(config.worker_processes, metrics)
        limits = DispatcherLimits(
            max_jobs=config.max_long_texts,
            window_parts=config.window_parts,
            worker_timeout_s=config.worker_timeout_s,
            hedge_delay_s=config.part_hedge_delay_s,
        )
        workers = WorkerPool(limits, metrics, processes.kill)
        watching = asyncio.create_task(workers.watch())
        try:
            yield cls(models, rules, workers, processes, config.part_chars, config.max_part_chars)
        finally:
            watching.cancel()
            await processes.close()

    async def blocks(
        self, requests: TokenizeRequests, peer: str = ""
    ) -> AsyncGenerator[tuple[ServedVocabulary, common_pb2.TokenBlock], None]:
        """The blocks of one text, in order, each as soon as all up to it are there. Workers are
        shared fairly between those who ask, as `peer` says.

        Text is read while there is room for parts; taking blocks makes room. Raises
        EmptyPromptError, what `ServedModels.using` raises, BadTokenBlockError, FrameTooLargeError
        for text that cannot be cut, OverloadedError, UnavailableError without workers,
        PoisonousRequestError.
        """
        messages = incoming(requests)
        first = await anext(messages, None)
        if first is None:
            raise EmptyPromptError("the request has no text; send some")
        async with self.models.using(first.model, first.vocabulary_digest) as served:
            codec = negotiate(first.codecs, served.coder.supported)
            self._check_workers()
            rule = await self.rules.of(served)
            job = self.workers.open(requester_from_proto(first.requester, peer))
            template = PartPayload(served.model, served.vocabulary.digest, codec, "")
            writer = asyncio.create_task(self._write(job, template, rule, first, messages))
            writer.add_done_callback(lambda _: job.changed.set())
            try:
                async for block in _results(job, writer):
                    yield served, block
            finally:
                writer.cancel()
                self.workers.close(job)

    def _check_workers(self) -> None:
        self.processes.start()
        if not self.processes.count and not self.workers.num_workers:
            raise UnavailableError("no worker is connected; start one, or set worker_processes")

    async def _write(
        self,
        job: OpenJob,
        template: PartPayload,
        rule: CutRule | None,
        first: tokenizer_pb2.TokenizeRequest,
        rest: TokenizeRequests,
    ) -> None:
        cutter = Cutter(rule, target_chars=self.part_chars, max_chars=self.max_part_chars)
        async for step in _steps(first, rest):
            for part in cutter.feed(step):
                await self._add(job, template, part)
        for last in filter(None, cutter.finish()):
            await self._add(job, template, last)
        job.state.is_complete = True

    async def _add(self, job: OpenJob, template: PartPayload, text: str) -> None:
        while not job.state.has_room:
            job.room.clear()
            await job.room.wait()
        payload = PartPayload(template.model, template.vocabulary_digest, template.codec, text)
        self.workers.add(job, payload)


def _rule(served: ServedVocabulary) -> CutRule | None:
    try:
        return prove(served.vocabulary.tokenizer_json)
    except UnprovenError as error:
        _log.warning("texts_not_cut", model=served.model, reason=str(error))
        return None


async def _steps(
    first: tokenizer_pb2.TokenizeRequest, rest: TokenizeRequests
) -> AsyncIterator[str]:
    """The text as it comes, in short steps between which the event loop runs other tasks."""
    message: tokenizer_pb2.TokenizeRequest | None = first
    while message is not None:
        text = message.text  # protobuf copies it at every access
        for start in range(0, len(text), _STEP_CHARS):
            yield text[start : start + _STEP_CHARS]
            await asyncio.sleep(0)
        message = await anext(rest, None)


async def _results(
    job: OpenJob, writer: asyncio.Task[None]
) -> AsyncGenerator[common_pb2.TokenBlock, None]:
    while True:
        job.changed.clear()
        blocks = job.state.take()
        if blocks:
            job.room.set()
        for block in blocks:
            yield block
        if job.state.error is not None:
            raise job.state.error
        if writer.done():
            writer.result()
            if job.state.is_done:
                return
        await job.changed.wait()


@dataclass(frozen=True, slots=True)
class LongDetokenizer:
    """Ids to text as their blocks arrive. Holds one block at a time, and the bytes of an unfinished
    character."""

    models: ServedModels
    threads: FairThreads
    max_decode_ids: int

    async def texts(
        self, requests: DetokenizeRequests, peer: str = ""
    ) -> AsyncGenerator[str, None]:
        """The text that each block completes, and at the end what an unfinished character becomes.
        Threads are shared fairly between those who ask, as `peer` says.

        Raises InvalidRequestError for no ids, what `ServedModels.using` raises, BadTokenBlockError,
        OverloadedError.
        """
        messages = incoming(requests)
        message = await anext(messages, None)
        if message is None:
            raise InvalidRequestError("the request has no tokens; send a token block")
        requester = requester_from_proto(message.requester, peer)
        async with self.models.using(message.model, message.vocabulary_digest) as served:
            async for piece in self._texts(served, message, messages, requester):
                yield piece

    async def _texts(
        self,
        served: ServedVocabulary,
        first: tokenizer_pb2.DetokenizeRequest,
        rest: DetokenizeRequests,
        requester: Requester,
    ) -> AsyncGenerator[str, None]:
        detokenizer = served.vocabulary.detokenizer(keep_special=first.keep_special)

        def slices(message: tokenizer_pb2.DetokenizeRequest) -> Slices[str]:
            block = token_block_from_proto(message.ids)
            ids = served.coder.decode_array(block, max_count=self.max_decode_ids)
            return (yield from detokenizer.slices(ids.tolist()))

        message: tokenizer_pb2.DetokenizeRequest | None = first
        while message is not None:
            text = await self.threads.run_slices(
                slices(message),
                requester,
                num_bytes=message.ByteSize(),
                job_class=JobClass.LONG,
            )
            if text:
                yield text
            message = await anext(rest, None)
        if unfinished := detokenizer.finish():
            yield unfinished
