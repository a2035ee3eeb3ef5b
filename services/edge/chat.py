"""One chat: the shell that feeds its session and does what the session wants done."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from outrider.errors import (
    CancelledError,
    MalformedFrameError,
    OutriderError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from outrider.models.chat import Message
from outrider.telemetry import names
from outrider.telemetry.tracing import Span, start_span
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.identity import NOBODY, Credential, Identity
from services.edge.parts import EdgeParts
from services.edge.resumption.audience import Audience
from services.edge.resumption.journal import Listener
from services.edge.resumption.reception import HeldEntry, RequestStream
from services.edge.routers.link import RouterLink
from services.edge.session.actions import (
    Action,
    CancelRegion,
    ClientEvent,
    Failed,
    Finish,
    OpenDrafter,
    OpenRegion,
    SendDraft,
    TellDrafter,
    Tokenize,
)
from services.edge.session.inputs import (
    AudienceChanged,
    ChatAsked,
    ChatRequest,
    ClientFailed,
    ClientGone,
    DraftsReady,
    Heard,
    Input,
    PromptFailed,
    PromptReady,
    RegionFailed,
    Tick,
)
from services.edge.session.machine import ChatSession
from services.edge.session.policy import State
from services.edge.wire import client as client_wire
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()


class Wording:
    """Makes frames of what a client is told."""

    def __init__(self, edge: str) -> None:
        self._edge = edge
        self.held: HeldEntry | None = None

    def __call__(self, event: ClientEvent) -> bytes:
        """The frame of an event."""
        return client_wire.write(event, self._edge, self.held.token if self.held else "")


class Chat:
    """Feeds a ChatSession, carries out its actions, arms one timer. Single-threaded."""

    def __init__(self, stream: RequestStream, parts: EdgeParts) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._parts = parts
        self._wording = Wording(parts.name)
        self._audience = Audience(stream, self._wording)
        self._held: HeldEntry | None = None
        self._provisional = False
        self._identity = NOBODY
        self._session = ChatSession(parts.policy, parts.tools, self._loop.time())
        self._wire = self._region_wire(NOBODY)
        self._inbox: deque[Input] = deque()
        self._feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._tick_waits = False
        self._tokenizing: tuple[TokenizationJob, Span] | None = None
        self._link: RouterLink | None = None
        self._number = 0
        self._drafting = 0
        self._span: Span | None = None
        self._is_finished = False
        self._leave: Callable[[], None] | None = None
        parts.telemetry.chat_opened()

    @property
    def awaits_request(self) -> bool:
        """Whether the first frame has not come yet."""
        return self._session.state is State.AWAITING

    @property
    def closed(self) -> bool:
        """Whether the chat is over."""
        return self._session.state is State.CLOSED

    def receive(self, payload: bytes) -> None:
        """A frame from the client."""
        if self.closed:
            return
        try:
            read = client_wire.read(payload, self._parts.offer, self._admit)
            if isinstance(read, client_wire.TokenArrived):
                self._token_arrived()
                return
            item: Input = read
            if isinstance(read, ChatAsked) and self.awaits_request:
                item = self._arrived(read.request)
        except OutriderError as error:
            if isinstance(error, UnauthenticatedError | PermissionDeniedError):
                self._parts.telemetry.refused(error.reason)
            item = ClientFailed(error)
        self.feed(item)

    def _admit(self, credential: Credential) -> None:
        """Whose chat it is, before anything else of the request is looked at. Raises
        UnauthenticatedError, InvalidRequestError."""
        if self.awaits_request:
            fresh = secrets.token_bytes(16)
            identities, stream = self._parts.identities, self._stream
            secret, address = stream.connection_secret, stream.address
            self._identity = identities.of(credential, secret, fresh, address)
            self._wire = self._region_wire(self._identity)

    def _arrived(self, request: ChatRequest) -> Input:
        """The request, as it is served. Raises PermissionDeniedError, KeyReusedError."""
        identity = self._identity
        priority = identity.class_of(request.priority)
        if self._repeats(request):
            return ClientGone()
        request_id = identity.request_id(request.request_id)
        return ChatAsked(
            replace(request, priority=priority, request_id=request_id, group=identity.group)
        )

    def _token_arrived(self) -> None:
        if self._held is None:
            raise MalformedFrameError("there is no token yet to acknowledge; ask for a chat first")
        self._parts.reception.acknowledged(self._held)

    def _repeats(self, request: ChatRequest) -> bool:
        """Whether the request is about a chat that is here already, which then has the stream."""
        reception, identity = self._parts.reception, self._identity
        listener = Listener(request.resume.upto, request.resume.num_chars)
        held = reception.find(request, identity.owner)
        if held is None:
            self._leave = self._stream.begin_chat(identity.client)
            self._provisional = request.provisional
            self._audience.listen(listener)
            self._held = reception.enter(request, identity, self._audience.journal, self)
            self._wording.held = self._held
            return False
        if held.chat is None:
            for event in held.journal.replay(listener):
                self._stream.send(client_wire.write(event, self._parts.name, held.token))
        else:
            self._audience.lose()
            held.chat.join(self._stream, listener, request.provisional)
        reception.joined(held)
        return True

    def join(self, stream: RequestStream, listener: Listener, provisional: bool) -> None:
        """The client is back, on another stream."""
        self._provisional = provisional
        stream.follow(self)
        self._audience.join(stream, listener)
        self.feed(AudienceChanged(provisional))

    def client_lost(self) -> None:
        """The client's connection is no more, and it did not say why: it may come back."""
        self._audience.lose()
        if self._held is None:
            self.feed(ClientGone())
        else:
            self.feed(AudienceChanged(False))
            self._parts.reception.lost(self._held)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region."""
        try:
            item: Input = self._wire.read(frame)
        except OutriderError as error:
            # Not RegionFailed: the region believes the session alive and has to be told.
            item = ClientFailed(error)
        if isinstance(item, RegionFailed):
            item = self._region_failed(item.error, is_cut_off=item.is_cut_off)
        self.feed(item)

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self.feed(self._region_failed(error, is_cut_off=True))

    def _region_failed(self, error: OutriderError, *, is_cut_off: bool) -> RegionFailed:
        return RegionFailed(error, is_cut_off, self._parts.upstream.clock.stalled_s)

    def feed(self, item: Input) -> None:
        """Take one input. What doing the actions brings about is taken after them."""
        self._inbox.append(item)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._feeding = False
        self._arm()

    def _step(self, item: Input) -> None:
        if isinstance(item, ChatAsked):
            telemetry, continues = self._parts.telemetry, self._identity.trusts_trace
            self._span = self._span or telemetry.chat_span(item.request, continues=continues)
        try:
            for action in self._session.handle(item, self._loop.time()):
                self._perform(action)
        except Exception as failure:
            # A defect of the edge ends this chat and no other.
            log.exception("chat failed", kind=type(item).__name__)
            error = OutriderError(f"the edge failed in this chat: {type(failure).__name__}")
            if self.closed:
                self._abandon(error)
            else:
                self._inbox.appendleft(ClientFailed(error))

    def _abandon(self, error: OutriderError) -> None:
        """The session has ended, and its last actions failed: do without it."""
        for action in () if self._is_finished else (Failed(error), Finish()):
            try:
                self._perform(action)
            except Exception:
                log.exception("chat failed", kind=type(action).__name__)

    def _perform(self, action: Action) -> None:
        match action:
            case OpenRegion():
                self._open(action)
            case SendDraft():
                self._draft(action)
            case OpenDrafter():
                self._drafting = self._parts.drafter.open(action, self._guessed)
            case TellDrafter(ids, lead):
                self._parts.drafter.commit(self._drafting, ids, lead)
            case CancelRegion(reason):
                self._cancel(reason)
            case Tokenize(messages):
                self._tokenize(messages)
            case Finish():
                self._finish()
            case _:
                self._tell(action)

    def _tell(self, event: ClientEvent) -> None:
        if self._audience.tell(event):
            self._inbox.append(AudienceChanged(self._provisional))
        if self._held is not None and not self._audience.is_present:
            self._parts.reception.grew(self._held)

    def _open(self, action: OpenRegion) -> None:
        trace = self._span.context if self._span else ("", "")
        avoid: tuple[str, ...] = ()
        if self._link is not None:  # it was open there, and lost
            self._link.forget(self._number)
            avoid, self._link = (self._link.address,), None
            self._parts.telemetry.resumed("reopened")
        try:
            link = self._parts.upstream.pick(avoid)
            self._number = link.open(self, self._wire.open(action, trace))
            self._link = link
        except OutriderError as error:
            is_cut_off = self._parts.upstream.may_return
            self._inbox.append(self._region_failed(error, is_cut_off=is_cut_off))

    # Without a link the session could not be opened, and learns that next.

    def _draft(self, action: SendDraft) -> None:
        if self._link is not None:
            sent = self._link.draft(self._number, self._wire.draft(action))
            self._parts.telemetry.draft_frame(sent)
            if not sent and self._session.reply is not None:
                self._session.reply.chain.take_back(action)

    def _guessed(self, heard: Heard) -> None:
        self.feed(DraftsReady(heard))

    def _cancel(self, reason: str) -> None:
        if self._link is not None:
            self._link.cancel(self._number, cancel(reason))

    def _tokenize(self, messages: tuple[Message, ...]) -> None:
        parent = self._span.context if self._span else None
        span = start_span(names.SPAN_TOKENIZE, parent=parent)
        try:
            scope = self._identity.group or None
            job = self._parts.tokenization.submit(messages, self._tokenized, scope=scope)
            self._tokenizing = job, span
        except OutriderError as error:
            span.end(error)
            self._inbox.append(PromptFailed(error))

    def _tokenized(self, outcome: TokenizationResult) -> None:
        assert self._tokenizing is not None
        _, span = self._tokenizing
        self._tokenizing = None
        if isinstance(outcome, OutriderError):
            span.end(outcome)
            self.feed(PromptFailed(outcome))
        else:
            span.end()
            self.feed(PromptReady(outcome))

    def _region_wire(self, identity: Identity) -> RegionWire:
        parts = self._parts
        digest = parts.policy.vocabulary_digest
        return RegionWire(parts.coder, digest, parts.region, identity, parts.rewriter)

    def _finish(self) -> None:
        self._is_finished = True
        if self._leave is not None:
            self._leave()
        if self._tokenizing is not None:
            job, span = self._tokenizing
            self._parts.tokenization.cancel(job)
            self._tokenizing = None
            span.end(CancelledError("the chat ended before its prompt was tokenized"))
        if self._link is not None:
            self._link.forget(self._number)
        self._parts.drafter.close(self._drafting)
        self._audience.end()
        if self._held is not None:
            self._parts.reception.ended(self._held)
            # It knows this chat: what refers to itself would wait for a collection.
            self._held = self._wording.held = None
        telemetry = self._parts.telemetry
        telemetry.chat_closed()
        # The last frame leaves this turn of the loop, the records are made in another.
        record = partial(telemetry.record, self._session, self._span, self._loop.time())
        self._parts.slices.later(record)

    def _arm(self) -> None:
        at = self._session.next_deadline()
        if at == self._armed_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._due)
        self._armed_at = at

    def _due(self) -> None:
        if not self._tick_waits:
            self._tick_waits = True
            self._parts.slices.do(self._tick)

    def _tick(self) -> None:
        self._tick_waits = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_at = None
        self.feed(Tick())
