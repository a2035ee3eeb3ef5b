"""One long text: cut as it arrives, its parts given to the crew, their ids read in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from outrider.codec.tokens import negotiate
from outrider.errors import EmptyPromptError, UnavailableError
from outrider.rpc import incoming
from outrider.tokenization.cuts import CutRule, Cutter
from outrider.v1 import common_pb2, tokenizer_pb2
from services.tokenizer.parts.crew import Crew, OpenJob, Payload
from services.tokenizer.parts.processes import Processes
from services.tokenizer.vocabularies import Served, Vocabularies

Requests = AsyncIterator[tokenizer_pb2.TokenizeRequest]

_STEP_CHARS: Final = 1 << 14
"""Characters looked at in one go: about a millisecond of the event loop at the worst."""


@dataclass(frozen=True, slots=True)
class LongTexts:
    """Makes token blocks of texts of any size, in bounded memory."""

    vocabularies: Vocabularies
    rules: Mapping[bytes, CutRule]
    """Of vocabularies whose texts may be cut, by digest."""
    crew: Crew
    processes: Processes
    part_chars: int
    max_part_chars: int

    async def blocks(
        self, requests: Requests
    ) -> AsyncGenerator[tuple[Served, common_pb2.TokenBlock], None]:
        """The blocks of one text, in order, each as soon as it and all before it are there.

        Text is read while there is room for parts, and room is made by taking blocks. Raises
        EmptyPromptError, UnknownModelError, BadTokenBlockError, FrameTooLargeError for text that
        cannot be cut, OverloadedError, UnavailableError without workers, PoisonousRequestError.
        """
        messages = incoming(requests)
        first = await anext(messages, None)
        if first is None:
            raise EmptyPromptError("There is nothing to tokenize: send text.")
        served = self.vocabularies.find(first.model, first.vocabulary_digest)
        codec = negotiate(first.codecs, served.coder.supported)
        self._need_workers()
        job = self.crew.open()
        like = Payload(served.model, served.vocabulary.digest, codec, "")
        writer = asyncio.create_task(self._write(job, like, first, messages))
        writer.add_done_callback(lambda _: job.changed.set())
        try:
            async for block in _taken(job, writer):
                yield served, block
        finally:
            writer.cancel()
            self.crew.close(job)

    def _need_workers(self) -> None:
        self.processes.start()
        if not self.processes.count and not self.crew.num_workers:
            raise UnavailableError("No worker is there: start one, or set worker_processes.")

    async def _write(
        self, job: OpenJob, like: Payload, first: tokenizer_pb2.TokenizeRequest, rest: Requests
    ) -> None:
        rule = self.rules.get(like.vocabulary_digest)
        cutter = Cutter(rule, target_chars=self.part_chars, max_chars=self.max_part_chars)
        async for step in _steps(first, rest):
            for part in cutter.feed(step):
                await self._add(job, like, part)
        last = cutter.finish()
        if last:
            await self._add(job, like, last)
        job.core.is_whole = True

    async def _add(self, job: OpenJob, like: Payload, text: str) -> None:
        while not job.core.has_room:
            job.room.clear()
            await job.room.wait()
        payload = Payload(like.model, like.vocabulary_digest, like.codec, text)
        self.crew.add(job, payload)


async def _steps(first: tokenizer_pb2.TokenizeRequest, rest: Requests) -> AsyncIterator[str]:
    """The text as it came, in short steps between which others have their turn."""
    message: tokenizer_pb2.TokenizeRequest | None = first
    while message is not None:
        text = message.text  # a copy each time that it is asked for
        for start in range(0, len(text), _STEP_CHARS):
            yield text[start : start + _STEP_CHARS]
            await asyncio.sleep(0)
        message = await anext(rest, None)


async def _taken(
    job: OpenJob, writer: asyncio.Task[None]
) -> AsyncGenerator[common_pb2.TokenBlock, None]:
    while True:
        job.changed.clear()
        blocks = job.core.take()
        if blocks:
            job.room.set()
        for block in blocks:
            yield block
        if job.core.error is not None:
            raise job.core.error
        if writer.done():
            writer.result()
            if job.core.is_done:
                return
        await job.changed.wait()
