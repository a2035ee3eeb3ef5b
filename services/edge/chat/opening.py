"""How a chat begins: whose it is, whether another edge has its reply, which model it gets, and the
waits for these."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from outrider.access.api_keys import Scope
from outrider.errors import KeyReusedError, OutriderError
from outrider.models.template_variables import date_in
from outrider.session.runs import UNKNOWN_RUN, next_run
from outrider.today import today
from services.edge.access.identity import Credential, Identity
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.chat import AskedChat, Chat
from services.edge.chat.context import EdgeContext
from services.edge.chat.replay import ReplayLog, ReplayReader
from services.edge.chat.resumption import check_model
from services.edge.chat.resumption_table import ChatKey
from services.edge.chat.shared_replies import Claim, SharedReplies
from services.edge.chat.stream import Peer, RequestStream
from services.edge.chat.waiting import Waiting
from services.edge.models.choice import choose
from services.edge.models.served import ServedModel
from services.edge.session.events import ChatRequest
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
        run=request.run or next_run(UNKNOWN_RUN, time.time()),
        is_run_ours=request.run == UNKNOWN_RUN,
    )
    asked = AskedChat(stream, request, identity, ahead)
    if _is_joined(asked, context):
        return
    name = choose(asked.request.model, context.models.names, asked.identity.models)
    leave = stream.begin_chat(asked.identity.client)
    if context.shared_replies is not None and request.is_keyed:
        claiming = ClaimingChat(asked, context, leave, name)
        stream.follow(claiming)
        claiming.start(context.shared_replies)
        return
    _use_model(asked, name, context, leave)


def _use_model(
    asked: AskedChat,
    name: str,
    context: EdgeContext,
    leave: Callable[[], None],
    waited_s: float = 0.0,
) -> None:
    """Begin with the model of this name, at once or when it is loaded. Raises OutriderError."""
    asked = replace(asked, request=replace(asked.request, model=name))
    model = context.models.use(name)
    if model is not None:
        _start(asked, model, context, _held(model, leave, context), waited_s)
        return
    waiting = WaitingChat(asked, context, leave)
    asked.stream.follow(waiting)
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
        entry.chat.join(stream, asked.cursor, asked.request.provisional, asked.request.run)
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


class ClaimingChat(Waiting):
    """Waits to learn whether another edge has, or had, the reply."""

    def __init__(
        self, asked: AskedChat, context: EdgeContext, leave: Callable[[], None], model: str
    ) -> None:
        """`model`: name of the model of a chat that begins."""
        super().__init__(asked, context, leave)
        self._model = model
        self._claim: Claim | None = None

    def start(self, shared: SharedReplies) -> None:
        """Begin to wait. The stream passes inputs here by now."""
        request, owner = self._asked.request, self._asked.identity.owner
        key = ChatKey(owner, request.request_id)
        self._claim = shared.claim(key, request.digest, self._claimed)

    def _give_up(self) -> None:
        if self._claim is not None:
            self._claim.give_up()

    def _claimed(self, found: ReplayLog | KeyReusedError | None) -> None:
        if isinstance(found, KeyReusedError):
            self._fail(found)
        else:
            self._go_on(lambda: self._begin(found))

    def _begin(self, found: ReplayLog | None) -> None:
        asked, context = self._asked, self._context
        with contextlib.ExitStack() as held:
            held.callback(self._leave)
            # The same request may have come again here, and have been answered before.
            if _is_joined(asked, context):
                return
            if found is not None and found.accepted is not None:
                model = found.accepted.model
                check_model(asked.request, model, asked.identity.models)
                if found.done is not None:
                    context.telemetry.resumed("replayed")
                    asked.stream.catch_up(ReplayReader(found, asked.cursor, lambda: ""))
                    asked.stream.end()
                    return
                self._model = choose(model, context.models.names, asked.identity.models)
                asked = _continued(asked, found)
            held.pop_all()
            _use_model(asked, self._model, context, self._leave, self.waited_s)


def _continued(asked: AskedChat, found: ReplayLog) -> AskedChat:
    """The request, for what follows the part of its reply that another edge computed."""
    had, accepted = asked.request.resume, found.accepted
    assert accepted is not None
    resume = replace(had, template_date=accepted.template_date)
    # What is read of log probabilities comes with the tokens, so that those are computed anew.
    if found.upto and asked.request.sampling.num_logprobs < 0:
        resume = replace(
            resume,
            upto=found.upto,
            num_chars=found.num_chars,
            ids=found.ids,
            # Of unknown origin: what follows is called inexact too.
            model_identity=b"" if found.is_inexact else found.model_identity or b"",
        )
    return replace(asked, request=replace(asked.request, resume=resume), had=had)


class WaitingChat(Waiting):
    """Waits for the chat's model."""

    def __init__(self, asked: AskedChat, context: EdgeContext, leave: Callable[[], None]) -> None:
        super().__init__(asked, context, leave)
        self._model: ServedModel | None = None
        """Once it has been granted."""

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
        self._context.time_slicer.defer(self._loaded)

    def refused(self, error: OutriderError) -> None:
        """There is no such model, not now."""
        if not self.closed:
            self._fail(error)

    def _loaded(self) -> None:
        if not self.closed and self._model is not None:
            self._go_on(self._begin)

    def _begin(self) -> None:
        model, self._model = self._model, None
        assert model is not None
        asked, context = self._asked, self._context
        with _held(model, self._leave, context) as held:
            # The same request may have come again, and have got its model before.
            if not _is_joined(asked, context):
                _start(asked, model, context, held.pop_all(), self.waited_s)

    def _give_up(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            self._context.models.release(model)
        else:
            self._context.models.leave(self)
