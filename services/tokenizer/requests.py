"""One request to one answer. Synchronous and thread-safe: RequestThreads calls these."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from outrider.codec.tokens import negotiate
from outrider.codec.varint import U32
from outrider.errors import (
    EmptyPromptError,
    FrameTooLargeError,
    InvalidRequestError,
)
from outrider.models.chat import Message, check_num_messages
from outrider.models.detokenizer import Detokenizer
from outrider.models.template_variables import check_variables
from outrider.models.tools import check_tools
from outrider.tokenization.encoder import CacheScope
from outrider.tokenization.pool.job_queue import LONG_CHARS, JobClass
from outrider.tokenization.pool.pool import Shortened
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import ContentClass
from outrider.v1 import tokenizer_pb2
from outrider.wire import message_from_proto, token_block_from_proto, token_block_to_proto
from services.tokenizer.vocabularies import ServedVocabulary

_LONG_IDS: Final = 16_384
"""Decoding a block of so many ids takes milliseconds."""
_STEP_IDS: Final = 4096
"""Ids decoded between two chances for other threads to take the GIL."""


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
    ) -> tokenizer_pb2.EncodeResponse:
        """Text or a conversation to ids.

        Raises FrameTooLargeError, EmptyPromptError, PromptTooLongError, InvalidRequestError, and
        BadTokenBlockError when the caller reads none of our codecs.
        """
        codec = negotiate(request.codecs, served.coder.supported)
        block = served.coder.encode(self._ids(request, served), codec)
        return tokenizer_pb2.EncodeResponse(
            number=request.number,
            ids=token_block_to_proto(block),
            vocabulary_digest=served.vocabulary.digest,
        )

    def _ids(self, request: tokenizer_pb2.EncodeRequest, served: ServedVocabulary) -> array[int]:
        # The message's size bounds its text's, and costs nothing: no second encoding to UTF-8.
        if request.ByteSize() > self.max_text_bytes:
            raise FrameTooLargeError(
                f"the request has {request.ByteSize()} bytes, at most {self.max_text_bytes} are "
                "tokenized at once; split the text"
            )
        kind = request.WhichOneof("input")
        scope = request.cache_salt or None
        if kind == "conversation":
            return self._prompt(request, served, scope)
        if kind == "text":
            return served.encoder.encode(request.text, ContentClass.DOCUMENT, scope)
        raise EmptyPromptError("the request has no text; send text or a conversation")

    def _prompt(
        self, request: tokenizer_pb2.EncodeRequest, served: ServedVocabulary, scope: CacheScope
    ) -> array[int]:
        """The prompt ids of a conversation, with the edge's system prefix or ours, shortened to
        `max_prompt_tokens`."""
        conversation = request.conversation
        check_num_messages(len(conversation.messages))
        messages: Sequence[Message] = [message_from_proto(it) for it in conversation.messages]
        tools = check_tools(conversation.tools)
        variables = check_variables(conversation.template_variables)
        if not conversation.prefixed:
            messages = self.rewriter.prepare(messages)
        encode = partial(served.encoder.encode_chat, scope=scope, tools=tools, variables=variables)
        ids = encode(messages)
        max_tokens = request.max_prompt_tokens
        if not max_tokens or len(ids) <= max_tokens:
            return ids
        fitted = self.rewriter.fitted(
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
    ) -> tokenizer_pb2.DecodeResponse:
        """Ids to text. Raises InvalidRequestError, BadTokenBlockError."""
        if not request.HasField("ids"):
            raise InvalidRequestError("the request has no tokens; send a token block")
        block = token_block_from_proto(request.ids)
        ids = served.coder.decode_array(block, max_count=self.max_decode_ids)
        detokenizer = served.vocabulary.detokenizer(keep_special=request.keep_special)
        text = push_in_steps(detokenizer, ids) + detokenizer.finish()
        return tokenizer_pb2.DecodeResponse(number=request.number, text=text)


def job_class_of(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.DecodeRequest) -> JobClass:
    """LONG for a request that takes a thread for milliseconds, so that short ones do not wait."""
    if isinstance(request, tokenizer_pb2.DecodeRequest):
        return JobClass.LONG if request.ids.count >= _LONG_IDS else JobClass.SHORT
    return JobClass.LONG if request.ByteSize() >= LONG_CHARS else JobClass.SHORT


def push_in_steps(detokenizer: Detokenizer, ids: U32) -> str:
    """The text that `ids` complete, in steps that hold the GIL only briefly."""
    steps = range(0, len(ids), _STEP_IDS)
    return "".join([detokenizer.push_all(ids[at : at + _STEP_IDS].tolist()) for at in steps])
