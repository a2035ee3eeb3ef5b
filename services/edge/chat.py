"""One chat: the shell that feeds its session and does what the session wants done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from outrider.codec.tokens import TokenCoder
from outrider.errors import CancelledError, OutriderError
from outrider.models.chat import Message
from outrider.telemetry import names
from outrider.telemetry.tracing import Span, start_span
from outrider.v1 import inference_pb2
from services.edge.session.actions import (
    Action,
    CancelRegion,
    Failed,
    Finish,
    OpenRegion,
    SendDraft,
    Tokenize,
)
from services.edge.session.inputs import (
    ChatAsked,
    ClientFailed,
    Input,
    PromptFailed,
    PromptReady,
    RegionFailed,
    Tick,
)
from services.edge.session.machine import ChatSession, State
from services.edge.session.policy import SessionPolicy
from services.edge.session.reply import ReplyTools
from services.edge.telemetry import EdgeTelemetry
from services.edge.tokenization import Job, Outcome, Tokenization
from services.edge.upstream import RouterLink, Upstream
from services.edge.wire import client as client_wire
from services.edge.wire.identity import Identity
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()


class ClientStream(Protocol):
    """The way back to the client."""

    def send(self, payload: bytes) -> None:
        """Send one EdgeFrame."""
        ...

    def end(self) -> None:
        """Nothing more follows."""
        ...


@dataclass(frozen=True, slots=True)
class EdgeParts:
    """What all chats of an edge share."""

    name: str
    region: str
    identity: Callable[[], Identity]
    """Whose chat the next one is."""
    offer: client_wire.Offer
    policy: SessionPolicy
    tools: ReplyTools
    coder: TokenCoder
    tokenization: Tokenization
    upstream: Upstream
    telemetry: EdgeTelemetry


class Chat:
    """Feeds a ChatSession, carries out its actions, arms one timer. Single-threaded."""

    def __init__(self, stream: ClientStream, parts: EdgeParts) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._parts = parts
        self._session = ChatSession(parts.policy, parts.tools, self._loop.time())
        self._wire = RegionWire(
            parts.coder, parts.policy.vocabulary_digest, parts.region, parts.identity()
        )
        self._inbox: deque[Input] = deque()
        self._feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._tokenizing: tuple[Job, Span] | None = None
        self._link: RouterLink | None = None
        self._number = 0
        self._span: Span | None = None
        self._is_finished = False
        parts.telemetry.chat_opened()
        self._arm()

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
            item: Input = client_wire.read(payload, self._parts.offer)
        except OutriderError as error:
            item = ClientFailed(error)
        self.feed(item)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region."""
        try:
            item: Input = self._wire.read(frame)
        except OutriderError as error:
            # Not RegionFailed: the region believes the session alive and has to be told.
            item = ClientFailed(error)
        self.feed(item)

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self.feed(RegionFailed(error))

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
            self._span = self._span or self._parts.telemetry.chat_span(item.request)
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
            case CancelRegion(reason):
                self._cancel(reason)
            case Tokenize(messages):
                self._tokenize(messages)
            case Finish():
                self._finish()
            case _:
                self._stream.send(client_wire.write(action, self._parts.name))

    def _open(self, action: OpenRegion) -> None:
        trace = self._span.context if self._span else ("", "")
        try:
            link = self._parts.upstream.pick()
            self._number = link.open(self, self._wire.open(action, trace))
            self._link = link
        except OutriderError as error:
            self._inbox.append(RegionFailed(error))

    # Without a link the session could not be opened, and learns that next.

    def _draft(self, action: SendDraft) -> None:
        if self._link is not None:
            sent = self._link.draft(self._number, self._wire.draft(action))
            self._parts.telemetry.draft_frame(sent)

    def _cancel(self, reason: str) -> None:
        if self._link is not None:
            self._link.cancel(self._number, cancel(reason))

    def _tokenize(self, messages: tuple[Message, ...]) -> None:
        parent = self._span.context if self._span else None
        span = start_span(names.SPAN_TOKENIZE, parent=parent)
        try:
            job = self._parts.tokenization.submit(messages, self._tokenized)
            self._tokenizing = job, span
        except OutriderError as error:
            span.end(error)
            self._inbox.append(PromptFailed(error))

    def _tokenized(self, outcome: Outcome) -> None:
        assert self._tokenizing is not None
        _, span = self._tokenizing
        self._tokenizing = None
        if isinstance(outcome, OutriderError):
            span.end(outcome)
            self.feed(PromptFailed(outcome))
        else:
            span.end()
            self.feed(PromptReady(outcome))

    def _finish(self) -> None:
        self._is_finished = True
        if self._tokenizing is not None:
            job, span = self._tokenizing
            self._parts.tokenization.cancel(job)
            span.end(CancelledError("the chat ended before its prompt was tokenized"))
        if self._link is not None:
            self._link.forget(self._number)
        self._stream.end()
        telemetry = self._parts.telemetry
        telemetry.chat_closed()
        # The last frame leaves this turn of the loop, the records are made in the next.
        self._loop.call_soon(telemetry.record, self._session, self._span, self._loop.time())

    def _arm(self) -> None:
        at = self._session.next_deadline()
        if at == self._armed_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)
        self._armed_at = at

    def _tick(self) -> None:
        self._timer = self._armed_at = None
        self.feed(Tick())
