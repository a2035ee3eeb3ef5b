"""One long sequence of ids to text, as its blocks arrive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from outrider.errors import InvalidRequestError
from outrider.models.detokenizer import Detokenizer
from outrider.rpc import incoming
from outrider.tokenization.pool.job_queue import Kind
from outrider.v1 import tokenizer_pb2
from outrider.wire import tokens as wire_tokens
from services.tokenizer.requests import push_in_steps
from services.tokenizer.vocabularies import Served, Vocabularies
from services.tokenizer.workers import Workers

Requests = AsyncIterator[tokenizer_pb2.DetokenizeRequest]


@dataclass(frozen=True, slots=True)
class Detokenizing:
    """Holds one block at a time, and the bytes of an unfinished character."""

    vocabularies: Vocabularies
    workers: Workers
    max_decode_ids: int

    async def texts(self, requests: Requests) -> AsyncGenerator[str, None]:
        """The text that each block completes, and at the end what an unfinished character becomes.

        Raises InvalidRequestError for no ids, UnknownModelError, VocabularyMismatchError,
        BadTokenBlockError, OverloadedError.
        """
        messages = incoming(requests)
        message = await anext(messages, None)
        if message is None:
            raise InvalidRequestError("There is nothing to detokenize: send a token block.")
        served = self.vocabularies.find(message.model, message.vocabulary_digest)
        detokenizer = served.vocabulary.detokenizer(keep_special=message.keep_special)
        step = _Step(served, detokenizer, self.max_decode_ids)
        while message is not None:
            if text := await self.workers.run(step, message, Kind.LONG):
                yield text
            message = await anext(messages, None)
        if rest := detokenizer.finish():
            yield rest


@dataclass(frozen=True, slots=True)
class _Step:
    served: Served
    detokenizer: Detokenizer
    max_ids: int

    def __call__(self, message: tokenizer_pb2.DetokenizeRequest) -> str:
        block = wire_tokens.from_proto(message.ids)
        ids = self.served.coder.decode_array(block, max_count=self.max_ids)
        return push_in_steps(self.detokenizer, ids)
