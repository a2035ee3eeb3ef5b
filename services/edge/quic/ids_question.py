"""A stream on which a client asks for the ids of a text."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from outrider.access.api_keys import Scope
from outrider.errors import OutriderError, PromptTooLongError
from outrider.session.client import Failed
from services.edge.access.identity import UNIDENTIFIED, Credential, Identity
from services.edge.chat.context import EdgeContext
from services.edge.chat.opening import identify
from services.edge.chat.stream import RequestStream
from services.edge.chat.tokenizing import text_ids, using_model
from services.edge.session.events import ClientFailed, Input
from services.edge.wire import client as client_wire

log = structlog.get_logger()


class QuestionStream(RequestStream, Protocol):
    """A client's stream on which an answer goes that is no event of a chat."""

    def send(self, payload: bytes) -> None:
        """Queue a frame."""
        ...


class IdsQuestion:
    """One question, and its answer of at most `max_answer_bytes`."""

    is_placed = False

    def __init__(self, stream: QuestionStream, context: EdgeContext, max_answer_bytes: int) -> None:
        self._stream = stream
        self._context = context
        self._max_answer_bytes = max_answer_bytes
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def receive(self, payload: bytes) -> None:
        """Start answering the question. Raises OutriderError if the client may not ask it."""
        identity = UNIDENTIFIED

        def admit(credential: Credential) -> None:
            nonlocal identity
            identity = identify(self._stream, credential, self._context)
            identity.require(Scope.TOKENIZE)

        text, model = client_wire.read_text(payload, admit)
        self._context.keyed_chats.add(self, identity)
        self._task = asyncio.create_task(self._answer(text, model, identity))

    def feed(self, item: Input) -> None:
        """The client does not want the answer any more, or does not get it, for this reason."""
        self._end(Failed(item.error.bare()) if isinstance(item, ClientFailed) else None)

    def token_arrived(self) -> None:
        """There is no token."""

    def client_lost(self) -> None:
        """The client is gone."""
        self._end(None)

    async def _answer(self, text: str, model_name: str, identity: Identity) -> None:
        begin_chat = self._stream.begin_chat
        try:
            async with using_model(self._context, identity, begin_chat, model_name) as model:
                ids = await text_ids(text, model, identity, self._context)
                frame = client_wire.tokenized(ids, model.vocabulary_digest, model.limits.model)
            if len(frame) > self._max_answer_bytes:
                raise PromptTooLongError(
                    f"the ids take {len(frame)} bytes, and an answer has at most "
                    f"{self._max_answer_bytes}; ask for parts of the text, or over HTTP"
                )
        except OutriderError as error:
            self._context.telemetry.refused(error.reason)
            self._end(Failed(error.bare()))
        except Exception as failure:
            log.error("text_not_tokenized", exc_info=failure)
            self._end(Failed(OutriderError(f"the edge failed: {type(failure).__name__}")))
        else:
            self._stream.send(frame)
            self._end(None)

    def _end(self, last: Failed | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._context.keyed_chats.remove(self)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._stream.end(last)
