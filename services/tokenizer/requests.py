"""One request to one answer, in slices. Synchronous and thread-safe: FairThreads runs these."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from outrider.codec.tokens import negotiate
from outrider.errors import (
    EmptyPromptError,
    FrameTooLargeError,
    InvalidRequestError,
)
from outrider.fair_work.job_queue import JobClass
from outrider.models.chat import Message, check_num_messages
from outrider.models.template_variables import check_variables
from outrider.models.tools import check_tools
from outrider.tokenization.encoder import CacheScope
from outrider.tokenization.pool.pool import Shortened
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import ContentClass
from outrider.v1 import tokenizer_pb2
from outrider.wire import message_from_proto, token_block_from_proto, token_block_to_proto
from services.tokenizer.vocabularies import ServedVocabulary

_LONG_IDS: Final = 16_384
"""Decoding a block of so many ids takes milliseconds."""

AnswerT = TypeVar("AnswerT")
Slices: TypeAlias = Generator[int, None, AnswerT]
"""Work that yields between its slices, and returns its answer."""


@dataclass(frozen=True, slots=True)
class RequestHandler:
    """Answers requests, within limits of size."""

    max_text_bytes: int
    max_decode_ids: int
    rewriter: Rewriter = field(default_factory=Rewriter)
    """Applied to conversations, not to texts."""
    shortened: Shortened = lambda before, after: None

    def encode(
        self, served: ServedVocabulary, request: tokenizer_pb2.EncodeRequest
    ) -> Slices[tokenizer_pb2.EncodeResponse]:
        """Text or a conversation to ids.

        Raises FrameTooLargeError, EmptyPromptError, PromptTooLongError, InvalidRequestError, and
        BadTokenBlockError when the caller reads none of our codecs.
        """
        codec = negotiate(request.codecs, served.coder.supported)
        ids = yield from self._ids(request, served)
        block = served.coder.encode(ids, codec)
        return tokenizer_pb2.EncodeResponse(
            number=request.number,
            ids=token_block_to_proto(block),
            vocabulary_digest=served.vocabulary.digest,
        )

    def _ids(
        self, request: tokenizer_pb2.EncodeRequest, served: ServedVocabulary
    ) -> Slices[array[int]]:
        # The message's size bounds its text's, and costs nothing: no second encoding to UTF-8.
        if request.ByteSize() > self.max_text_bytes:
            raise FrameTooLargeError(
                f"the request has {request.ByteSize()} bytes, at most {self.max_text_bytes} are "
                "tokenized at once; split the text"
            )
        kind = request.WhichOneof("input")
        scope = request.cache_salt or None
        if kind == "conversation":
            return (yield from self._prompt(request, served, scope))
        if kind == "text":
            slices = served.encoder.text_slices(request.text, ContentClass.DOCUMENT, scope)
            return (yield from slices)
        raise EmptyPromptError("the request has no text; send text or a conversation")

    def _prompt(
        self, request: tokenizer_pb2.EncodeRequest, served: ServedVocabulary, scope: CacheScope
    ) -> Slices[array[int]]:
        """The prompt ids of a conversation, with the edge's system prefix or ours, shortened to
        `max_prompt_tokens`."""
        conversation = request.conversation
        check_num_messages(len(conversation.messages))
        messages: Sequence[Message] = [message_from_proto(it) for it in conversation.messages]
        tools = check_tools(conversation.tools)
        variables = check_variables(conversation.template_variables)
        if not conversation.prefixed:
            messages = self.rewriter.prepare(messages)

        def encode(said: Sequence[Message]) -> Slices[array[int]]:
            begun = served.encoder.begin(said, scope, tools=tools, variables=variables)
            return served.encoder.in_slices(begun)

        ids = yield from encode(messages)
        max_tokens = request.max_prompt_tokens
        if not max_tokens or len(ids) <= max_tokens:
            return ids
        fitted = yield from self.rewriter.fitted(
            messages,
            len(ids),
            max_tokens,
            encode,
            num_fixed_chars=sum(map(len, tools)) + len(variables),
        )
        self.shortened(len(ids), len(fitted))
        return fitted

    def decode(
        self, served: ServedVocabulary, request: tokenizer_pb2.DecodeRequest
    ) -> Slices[tokenizer_pb2.DecodeResponse]:
        """Ids to text. Raises InvalidRequestError, BadTokenBlockError."""
        if not request.HasField("ids"):
            raise InvalidRequestError("the request has no tokens; send a token block")
        block = token_block_from_proto(request.ids)
        ids = served.coder.decode_array(block, max_count=self.max_decode_ids)
        detokenizer = served.vocabulary.detokenizer(keep_special=request.keep_special)
        text = (yield from detokenizer.slices(ids.tolist())) + detokenizer.finish()
        return tokenizer_pb2.DecodeResponse(number=request.number, text=text)


def job_class_of(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.DecodeRequest) -> JobClass:
    """LONG for a request that takes a thread for milliseconds, so that short ones do not wait."""
    if isinstance(request, tokenizer_pb2.DecodeRequest):
        return JobClass.LONG if request.ids.count >= _LONG_IDS else JobClass.SHORT
    return JobClass.of(request.ByteSize())
