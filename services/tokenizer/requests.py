"""One request to one answer. Synchronous and thread-safe: the workers call these off the loop."""

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
from outrider.models.chat import Message
from outrider.models.detokenizer import Detokenizer
from outrider.tokenization.encoder import CacheScope
from outrider.tokenization.pool.job_queue import LONG_CHARS, Kind
from outrider.tokenization.pool.pool import Shortened
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import ContentClass
from outrider.v1 import tokenizer_pb2
from outrider.wire import tokens as wire_tokens
from services.tokenizer.vocabularies import Served, Vocabularies

_LONG_IDS: Final = 16_384
"""Ids of a block that take milliseconds to become text."""
_STEP_IDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Answering:
    """What requests are answered from, and how large they may be."""

    vocabularies: Vocabularies
    max_text_bytes: int
    max_decode_ids: int
    rewriter: Rewriter = field(default_factory=Rewriter)
    """What is done to conversations; texts stay as they are."""
    shortened: Shortened = lambda before, after: None

    def encode(self, request: tokenizer_pb2.EncodeRequest) -> tokenizer_pb2.EncodeResponse:
        """Text or a conversation to ids.

        Raises UnknownModelError, VocabularyMismatchError, FrameTooLargeError, EmptyPromptError,
        PromptTooLongError, InvalidRequestError, and BadTokenBlockError when the caller reads none
        of our codecs.
        """
        served = self.vocabularies.find(request.model, request.vocabulary_digest)
        codec = negotiate(request.codecs, served.coder.supported)
        block = served.coder.encode(self._ids(request, served), codec)
        return tokenizer_pb2.EncodeResponse(
            number=request.number,
            ids=wire_tokens.to_proto(block),
            vocabulary_digest=served.vocabulary.digest,
        )

    def _ids(self, request: tokenizer_pb2.EncodeRequest, served: Served) -> array[int]:
        # The message's size bounds its text's, and costs nothing: no second encoding to UTF-8.
        if request.ByteSize() > self.max_text_bytes:
            raise FrameTooLargeError(
                f"A request of {request.ByteSize()} bytes, at most {self.max_text_bytes} are "
                "tokenized at once: split the text."
            )
        kind = request.WhichOneof("input")
        scope = request.cache_salt or None
        if kind == "conversation":
            return self._prompt(request, served, scope)
        if kind == "text":
            return served.encoder.encode(request.text, ContentClass.DOCUMENT, scope)
        raise EmptyPromptError("There is nothing to tokenize: send text or a conversation.")

    def _prompt(
        self, request: tokenizer_pb2.EncodeRequest, served: Served, scope: CacheScope
    ) -> array[int]:
        """A conversation's, with one prefix, its own or ours, and no longer than it may be."""
        asked = request.conversation
        messages: Sequence[Message] = [Message(t.role, t.content) for t in asked.messages]
        if not asked.prefixed:
            messages = self.rewriter.prepare(messages)
        encode = partial(served.encoder.encode_chat, scope=scope)
        ids, longest = encode(messages), request.max_prompt_tokens
        if not longest or len(ids) <= longest:
            return ids
        fitted = self.rewriter.fitted(messages, len(ids), longest, encode)
        self.shortened(len(ids), len(fitted))
        return fitted

    def decode(self, request: tokenizer_pb2.DecodeRequest) -> tokenizer_pb2.DecodeResponse:
        """Ids to text.

        Raises UnknownModelError, VocabularyMismatchError, BadTokenBlockError.
        """
        served = self.vocabularies.find(request.model, request.vocabulary_digest)
        if not request.HasField("ids"):
            raise InvalidRequestError("There is nothing to decode: send a token block.")
        block = wire_tokens.from_proto(request.ids)
        ids = served.coder.decode_array(block, max_count=self.max_decode_ids)
        detokenizer = served.vocabulary.detokenizer(keep_special=request.keep_special)
        text = push_in_steps(detokenizer, ids) + detokenizer.finish()
        return tokenizer_pb2.DecodeResponse(number=request.number, text=text)


def kind_of(request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.DecodeRequest) -> Kind:
    """Whether a request takes a thread for so long that short ones should not wait for it."""
    if isinstance(request, tokenizer_pb2.DecodeRequest):
        return Kind.LONG if request.ids.count >= _LONG_IDS else Kind.SHORT
    return Kind.LONG if request.ByteSize() >= LONG_CHARS else Kind.SHORT


def push_in_steps(detokenizer: Detokenizer, ids: U32) -> str:
    """The text that `ids` complete; no step holds the GIL for long."""
    steps = range(0, len(ids), _STEP_IDS)
    return "".join([detokenizer.push_all(ids[at : at + _STEP_IDS].tolist()) for at in steps])
