"""One request to one answer. Synchronous and thread-safe: the workers call these off the loop."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.codec.tokens import negotiate
from outrider.errors import (
    EmptyPromptError,
    FrameTooLargeError,
    InvalidRequestError,
)
from outrider.models.chat import Message
from outrider.v1 import tokenizer_pb2
from outrider.wire import tokens as wire_tokens
from services.tokenizer.vocabularies import Served, Vocabularies


@dataclass(frozen=True, slots=True)
class Answering:
    """What requests are answered from, and how large they may be."""

    vocabularies: Vocabularies
    max_text_bytes: int
    max_decode_ids: int

    def encode(self, request: tokenizer_pb2.EncodeRequest) -> tokenizer_pb2.EncodeResponse:
        """Text or a conversation to ids.

        Raises UnknownModelError, FrameTooLargeError, EmptyPromptError, InvalidRequestError, and
        BadTokenBlockError when the caller reads none of our codecs.
        """
        served = self.vocabularies.find(request.model)
        codec = negotiate(request.codecs, served.coder.supported)
        block = served.coder.encode(self._ids(request, served), codec)
        return tokenizer_pb2.EncodeResponse(
            number=request.number,
            ids=wire_tokens.to_proto(block),
            vocabulary_digest=served.vocabulary.digest,
        )

    def _ids(self, request: tokenizer_pb2.EncodeRequest, served: Served) -> list[int]:
        # The message's size bounds its text's, and costs nothing: no second encoding to UTF-8.
        if request.ByteSize() > self.max_text_bytes:
            raise FrameTooLargeError(
                f"A request of {request.ByteSize()} bytes, at most {self.max_text_bytes} are "
                "tokenized at once: split the text."
            )
        kind = request.WhichOneof("input")
        if kind == "conversation":
            turns = request.conversation.messages
            return served.vocabulary.encode_chat([Message(t.role, t.content) for t in turns])
        if kind == "text":
            return served.vocabulary.encode(request.text)
        raise EmptyPromptError("There is nothing to tokenize: send text or a conversation.")

    def decode(self, request: tokenizer_pb2.DecodeRequest) -> tokenizer_pb2.DecodeResponse:
        """Ids to text.

        Raises UnknownModelError, VocabularyMismatchError, BadTokenBlockError.
        """
        served = self.vocabularies.find(request.model)
        served.check_digest(request.vocabulary_digest)
        if not request.HasField("ids"):
            raise InvalidRequestError("There is nothing to decode: send a token block.")
        block = wire_tokens.from_proto(request.ids)
        ids = served.coder.decode(block, max_count=self.max_decode_ids)
        text = served.vocabulary.decode(ids, keep_special=request.keep_special)
        return tokenizer_pb2.DecodeResponse(number=request.number, text=text)
