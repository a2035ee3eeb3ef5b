"""How a chat begins: whose it is, which model it gets, and the wait for that model."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace

import structlog

from outrider.access.api_keys import Scope
from outrider.errors import (
    CancelledError,
    MalformedFrameError,
    OutriderError,
)
from outrider.models.template_variables import date_in
from outrider.session.client import Done, Failed
from outrider.session.types import FinishReason, Timings, Usage
from outrider.today import today
from services.edge.access.identity import Credential, Identity
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.chat import AskedChat, Chat
from services.edge.chat.context import EdgeContext
from services.edge.chat.replay import ReplayReader
from services.edge.chat.stream import Peer, RequestStream
from services.edge.models.choice import choose
from services.edge.models.served import ServedModel
from services.edge.session.events import CancelAsked, ChatAsked, ChatRequest, ClientFailed, Input
from services.edge.upstream.distance import check_added_rtt

log = structlog.get_logger()


def identify(
    peer: Peer, credential: Credential, context: EdgeContext, *, needs_key: bool = False
) -> Identity:
    """The identity behind a request, checked before anything else of the request is read.
    `needs_key`: only clients with a key are served. Raises UnauthenticatedError,
    PermissionDeniedError and InvalidRequestError."""
    return context.identities.of(
        credential,
        peer.connection_secret,
        secrets.token_bytes(16),
        peer.address,
        needs_key=needs_key,
    )


def open_chat(
    stream: RequestStream,
    request: ChatRequest,
    identity: Identity,
    context: EdgeContext,
    ahead: AnswerAhead | None = None,
) -> None:
    """Serve a stream on which `request` came. If it repeats or continues a chat that this edge
    holds, the stream joins that chat; otherwise a new one begins, which may have to wait for its
    model. `ahead` may hold the beginning of its reply. Raises OutriderError for a request that
    cannot be served."""
    try:
        _open_chat(stream, request, identity, context, ahead)
    except OutriderError:
        if ahead is not None:
            ahead.close()
        raise


def _open_chat(
    stream: RequestStream,
    request: ChatRequest,
    identity: Identity,
    context: EdgeContext,
    ahead: AnswerAhead | None,
) -> None:
    identity.require(Scope.CHAT)
    if request.added_rtt_ms:
        check_added_rtt(request.added_rtt_ms, is_allowed=context.added_distance)
    request = replace(
        request,
        priority=identity.class_of(request.priority),
        residency=identity.residency(request.residency),
    )
    asked = AskedChat(stream, request, identity, ahead)
    if _is_joined(asked, context):
        return
    name = choose(asked.request.model, context.models.names, asked.identity.models)
    asked = replace(asked, request=replace(asked.request, model=name))
    leave = stream.begin_chat(asked.identity.client)
    model = context.models.use(name)
    if model is not None:
        _start(asked, model, context, _held(model, leave, context))
        return
    waiting = WaitingChat(asked, context, leave)
    stream.follow(waiting)
    waiting.start()


def _is_joined(asked: AskedChat, context: EdgeContext) -> bool:
    """Go on with the chat that the request is about, if it is here: with its own model, whatever is
    served by now. Raises OutriderError."""
    resumable, stream = context.resumable, asked.stream
    entry = resumable.find(asked.request, asked.identity)
    if entry is None:
        return False
    if asked.ahead is not None:
        asked.ahead.close()
    if entry.chat is None:
        token = entry.token
        stream.catch_up(ReplayReader(entry.log, asked.cursor, lambda: token))
        resumable.joined(entry)
        stream.end()
    else:
        context.keyed_chats.add(entry.chat, asked.identity)
        entry.chat.join(stream, asked.cursor, asked.request.provisional)
        resumable.joined(entry)
    return True


def _held(
    model: ServedModel, leave: Callable[[], None], context: EdgeContext
) -> contextlib.ExitStack:
    """Releases a chat's model, and its place among the running chats, when closed."""
    held = contextlib.ExitStack()
    held.callback(context.models.release, model)
    held.callback(leave)
    return held


def _start(
    asked: AskedChat,
    model: ServedModel,
    context: EdgeContext,
    held: contextlib.ExitStack,
    waited_s: float = 0.0,
) -> None:
    """Begin a chat. `held` is given back when it ends, or if it does not begin. Raises
    OutriderError."""
    try:
        context.identities.check(asked.identity)  # it may have waited for its model
        request = model.template_control.applied(model.limits.fitted(asked.request), today())
        if day := date_in(request.template_variables):
            log.info("prompt_dated", request_id=request.request_id, date=day)
        request = model.tool_calling.applied(request)
        allowance = context.limiter.begin(asked.identity)
        held.callback(allowance.close)
        chat = Chat(replace(asked, request=request), model, context, allowance, held.close)
    except BaseException:
        held.close()
        raise
    context.keyed_chats.add(chat, asked.identity)
    held.callback(context.keyed_chats.remove, chat)
    asked.stream.follow(chat)
    chat.start(waited_s)


class WaitingChat:
    """Handles a stream while the chat waits for its model. It counts as a chat under way, and is
    kept for no client that goes away: a request that is sent again waits again."""

    is_placed = False

    def __init__(self, asked: AskedChat, context: EdgeContext, leave: Callable[[], None]) -> None:
        """`leave` is called when the chat ends."""
        self._loop = asyncio.get_running_loop()
        self._asked = asked
        self._context = context
        self._leave = leave
        self._model: ServedModel | None = None
        """Once it has been granted."""
        self._asked_at = self._loop.time()
        self.closed = False
        context.telemetry.chat_opened()

    def start(self) -> None:
        """Begin to wait. The stream passes inputs here by now."""
        request = self._asked.request
        patience_s = request.deadline_ms / 1000 if request.deadline_ms else None
        requester = self._asked.identity.requester
        self._context.models.ask(request.model, self, patience_s, requester)

    # For the models.

    def granted(self, model: ServedModel) -> None:
        """The model is loaded. Many chats may have waited for it."""
        if self.closed:
            self._context.models.release(model)
            return
        self._model = model
        self._context.time_slicer.defer(self._begin)

    def refused(self, error: OutriderError) -> None:
        """There is no such model, not now."""
        if not self.closed:
            self._fail(error)

    # For the stream.

    def feed(self, item: Input) -> None:
        """The client said something further, or the stream ends, for this reason."""
        if self.closed:
            return
        match item:
            case ClientFailed(error):
                self._fail(error)
            case ChatAsked():
                self._fail(
                    MalformedFrameError("a second request is out of place; a stream is one chat")
                )
            case CancelAsked():
                self._end(CancelledError("the client cancelled"), self._cancelled())
            case _:
                self.client_lost()

    def token_arrived(self) -> None:
        """There is no token yet."""

    def client_lost(self) -> None:
        """The client is gone."""
        if not self.closed:
            self._end(CancelledError("the client is gone"), None)

    def _begin(self) -> None:
        model = self._model
        if self.closed or model is None:
            return
        self.closed = True
        self._model = None
        asked, context = self._asked, self._context
        waited_s = self._loop.time() - self._asked_at
        try:
            with _held(model, self._leave, context) as held:
                # The same request may have come again, and have got its model before.
                if not _is_joined(asked, context):
                    _start(asked, model, context, held.pop_all(), waited_s)
        except Exception as failure:
            error = self._error_of(failure)
            context.telemetry.record_unopened(asked.request, waited_s, error)
            asked.stream.end(Failed(error.bare()))
        finally:
            context.telemetry.chat_closed()

    def _error_of(self, failure: Exception) -> OutriderError:
        if isinstance(failure, OutriderError):
            return failure
        log.error("chat_failed", exc_info=failure)
        return OutriderError(f"the edge failed in this chat: {type(failure).__name__}")

    def _cancelled(self) -> Done:
        took = Timings(total_ms=(self._loop.time() - self._asked_at) * 1000)
        return Done(FinishReason.CANCELLED, Usage(), Timings(), took, 0, "", "")

    def _fail(self, error: OutriderError) -> None:
        self._end(error, Failed(error.bare()))

    def _end(self, error: OutriderError, last: Done | Failed | None) -> None:
        """Give up the wait, or the model if it is there."""
        self.closed = True
        context = self._context
        model, self._model = self._model, None
        if model is not None:
            context.models.release(model)
        else:
            context.models.leave(self)
        self._leave()
        self._asked.stream.end(last)
        waited_s = self._loop.time() - self._asked_at
        context.telemetry.record_unopened(self._asked.request, waited_s, error)
        context.telemetry.chat_closed()
