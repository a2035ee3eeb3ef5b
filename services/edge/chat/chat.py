"""One chat: the shell that feeds its session and does what the session wants done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from outrider.codec.prompt_memory import PromptMemory
from outrider.errors import CancelledError, OutriderError, PeerFaultError
from outrider.session.client import Committed, Failed
from outrider.session.region import Commit, Draft
from outrider.telemetry import names
from outrider.telemetry.tracing import Span, start_span
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.access.identity import Identity
from services.edge.access.limiter import Allowance
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.context import EdgeContext
from services.edge.chat.replay import ClientChannel, ReplayCursor
from services.edge.chat.resumption import Entry
from services.edge.chat.stream import RequestStream
from services.edge.chat.time_slicing import TimeSlicer
from services.edge.chat.timers import Call
from services.edge.models.served import ServedModel
from services.edge.session.events import (
    Action,
    CancelAsked,
    CancelRegion,
    ChatAsked,
    ChatRequest,
    ClientChanged,
    ClientEvent,
    ClientFailed,
    ClientGone,
    DraftDropped,
    DrafterReport,
    DraftsReady,
    Finish,
    Input,
    LeaveToRegion,
    OpenDrafter,
    OpenRegion,
    PromptFailed,
    PromptReady,
    RegionDone,
    RegionFailed,
    RegionOpened,
    ResumePoint,
    TellDrafter,
    Tick,
    Tokenize,
)
from services.edge.session.machine import ChatSession, SessionState
from services.edge.session.reply import ReplyFlow
from services.edge.upstream.distance import DistantLink, SessionLink
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()

_MAX_EARLY: Final = 8
"""Most client messages kept while a request waits for the shared limits. Further ones would add
nothing new."""


@dataclass(frozen=True, slots=True)
class AskedChat:
    """A request on its stream."""

    stream: RequestStream
    request: ChatRequest
    identity: Identity
    ahead: AnswerAhead | None = None
    """Holds the beginning of the reply, if it was begun before the request came."""
    had: ResumePoint | None = None
    """What its client has of the reply; None: what the request resumes after."""

    @property
    def cursor(self) -> ReplayCursor:
        """How much of the reply its client has from an earlier run."""
        had = self.had or self.request.resume
        return ReplayCursor(had.upto, had.num_chars)


class ResumeToken:
    """Reads the token with which a client may resume the chat. Not a method of the chat: the chat
    would refer to itself, and be freed only by the garbage collector."""

    def __init__(self) -> None:
        self.entry: Entry | None = None

    def __call__(self) -> str:
        """The token of the moment; empty once the chat has ended."""
        return self.entry.token if self.entry else ""


class Chat:
    """Feeds a ChatSession, carries out its actions, arms one timer. Single-threaded."""

    def __init__(
        self,
        asked: AskedChat,
        model: ServedModel,
        context: EdgeContext,
        allowance: Allowance,
        leave: Callable[[], None],
    ) -> None:
        """`leave` is called when the chat ends, and gives `model` and `allowance` back."""
        request, identity = asked.request, asked.identity
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._model = model
        self._request = replace(
            request,
            request_id=identity.request_id(request.request_id),
            group=identity.group,
            group_lasts=identity.group_lasts,
        )
        self._leave = leave
        self._ahead = asked.ahead
        self._identity = identity
        self._tenant = identity.tenant
        self._requester = identity.requester
        self._allowance = allowance
        self._num_charged = len(request.resume.ids)
        """Tokens of the reply that its tenant has paid for as output: here, or in an earlier
        run."""
        self._num_resumed = len(request.resume.ids)
        """Tokens of the reply that the client brings: a region computes them as it does a prompt,
        and takes the client's word for them, so they count as input."""
        self._is_prompt_charged = not request.thin
        self._token = ResumeToken()
        self._channel = ClientChannel(asked.stream, self._token, asked.cursor)
        self._entry: Entry | None = context.resumable.add(
            request, identity, self._channel.log, self
        )
        """None: the chat has ended."""
        self._token.entry = self._entry
        self._provisional = request.provisional
        self._wire = RegionWire(
            model.coder,
            model.vocabulary_digest,
            context.region,
            identity,
            context.rewriter,
            model.region_codec,
        )
        self._session = ChatSession(model.policy, model.tools, self._loop.time())
        self._span = context.telemetry.chat_span(self._request, continues=identity.trusts_trace)
        self._inbox: deque[Input] = deque()
        self._is_feeding = False
        self._timer: Call | None = None
        self._armed_at: float | None = None
        self._due_at = 0.0
        """Clock time for which the timer was last set."""
        self._is_tick_submitted = False
        self._tokenizing: tuple[TokenizationJob, Span] | None = None
        self._is_prompt_ready = False
        """Whether its ids were made here, or left to the region."""
        self._link: SessionLink | None = None
        self._session_id = 0
        """Id of the session on `_link`."""
        self._drafter_number = 0
        """Number of the session in the drafter process; 0: none."""
        self._is_finished = False
        self._early: list[Input] | None = None
        """Client messages that came while the request waits for the limits of all edges; None: it
        does not wait."""
        self._is_waking = False
        """Whether its region starts a replica for it."""
        context.telemetry.chat_opened()

    @property
    def closed(self) -> bool:
        """Whether the chat is over."""
        return self._session.state is SessionState.CLOSED

    @property
    def is_placed(self) -> bool:
        """Whether a region has, or had, its session, or starts a replica for it."""
        return self._session.is_placed or self._is_waking

    def start(self, waited_s: float = 0.0) -> None:
        """Begin, `waited_s` seconds after the request came. `stream` already passes inputs to the
        chat."""
        asked = ChatAsked(self._request, waited_s)
        raw = self._request.raw_prompt
        if self._request.thin or isinstance(raw, tuple):
            # Of a thin one the region will say how long the prompt is.
            num_tokens = len(raw or ()) + self._num_resumed
            self._early = []
            self._allowance.ask(num_tokens, partial(self._allowed, asked))
        else:
            self.feed(asked)

    def token_arrived(self) -> None:
        """The client has received its newest resume token."""
        if self._entry is not None:
            self._context.resumable.acknowledged(self._entry)

    def join(
        self, stream: RequestStream, cursor: ReplayCursor, provisional: bool, run: int
    ) -> None:
        """The client is back, on another stream, as this run."""
        self._provisional = provisional
        stream.follow(self)
        self._channel.join(stream, cursor)
        self.feed(ClientChanged(provisional, run))

    def client_lost(self) -> None:
        """The client's connection was lost, and it did not say why: it may come back."""
        self._channel.lose()
        if self._entry is None:
            self.feed(ClientGone())
        else:
            self.feed(ClientChanged(False))
            self._context.resumable.lost(self._entry)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region."""
        if frame.HasField("prompt_unknown"):
            self._send_whole_prompt()
            return
        if frame.HasField("waking"):
            self._is_waking = True
            return
        try:
            item: Input = self._wire.read(frame)
        except OutriderError as error:
            # Not RegionFailed: the region believes the session alive and has to be told.
            item = ClientFailed(PeerFaultError.of(error))
        if type(item) is Commit:  # as nearly all are
            self.feed(item)
            return
        if isinstance(item, RegionFailed):
            item = self._region_failed(item.error, is_cut_off=item.is_cut_off)
        elif isinstance(item, RegionOpened) and not self._is_prompt_charged:
            self._is_prompt_charged = True
            self._allowance.charge(input_tokens=item.prompt_tokens)
        if isinstance(item, RegionDone):
            link = self._link
            self.feed(item)
            if link is not None:
                self._remember_reply(item, link.prompts)
        else:
            self.feed(item)

    def _remember_reply(self, done: RegionDone, known: PromptMemory) -> None:
        """Remember the reply for the next prompt of this conversation, which may extend it."""
        reply = self._session.reply
        if reply is not None and done.finish_reason.is_whole and done.checksum is not None:
            self._wire.replied(known, reply.ids, done.checksum)

    def _send_whole_prompt(self) -> None:
        """Send the whole prompt: the router does not know, or no longer knows, the part that was
        left out."""
        if self._link is None:
            return
        try:
            self._link.send(self._session_id, self._wire.whole_prompt(self._link.prompts))
        except OutriderError as error:
            self.feed(ClientFailed(error))

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self.feed(self._region_failed(error, is_cut_off=True))

    def _region_failed(self, error: OutriderError, *, is_cut_off: bool) -> RegionFailed:
        return RegionFailed(error, is_cut_off, self._context.upstream.clock.stalled_s)

    def feed(self, item: Input) -> None:
        """Take one input. What doing the actions brings about is taken after them."""
        if self._early is not None and isinstance(item, CancelAsked | ClientChanged):
            if len(self._early) < _MAX_EARLY:
                self._early.append(item)
            return
        self._inbox.append(item)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._is_feeding = False
        self._arm()

    def _step(self, item: Input) -> None:
        try:
            for action in self._session.handle(item, self._now):
                self._perform(action)
        except Exception as failure:
            # A defect of the edge ends this chat and no other.
            log.exception("chat_failed", kind=type(item).__name__)
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
                log.exception("chat_failed", kind=type(action).__name__)

    def _perform(self, action: Action) -> None:
        if type(action) is Committed:  # as nearly all are
            self._tell(action)
            return
        match action:
            case OpenRegion():
                self._open(action)
            case Draft():
                self._draft(action)
            case OpenDrafter():
                self._drafter_number = self._model.drafter.open(action, self._drafted, self._tenant)
            case TellDrafter(ids, lead):
                self._model.drafter.commit(self._drafter_number, ids, lead)
            case CancelRegion(reason):
                self._cancel(reason)
            case Tokenize():
                self._tokenize(action)
            case LeaveToRegion():
                self._leave_to_region()
            case Finish():
                self._finish()
            case _:
                self._tell(action)

    def _tell(self, event: ClientEvent) -> None:
        if isinstance(event, Committed) and event.upto > self._num_charged:
            self._allowance.charge(output_tokens=event.upto - self._num_charged)
            self._num_charged = event.upto
        if self._channel.tell(event):
            self._inbox.append(ClientChanged(self._provisional))
        if self._entry is not None and not self._channel.is_present:
            self._context.resumable.grew(self._entry)

    def _open(self, action: OpenRegion) -> None:
        avoid: tuple[str, ...] = ()
        if self._link is not None:  # it was open there, and lost
            self._link.forget(self._session_id)
            avoid, self._link = (self._link.address,), None
            self._context.telemetry.resumed("reopened")
        try:
            link: SessionLink = self._context.upstream.pick(avoid)
            if self._request.added_rtt_ms:
                link = DistantLink(link, self._request.added_rtt_ms)
            opening = self._wire.open(action, self._span.context, link.prompts)
            self._session_id = link.open(self, opening)
            self._link = link
        except OutriderError as error:
            # A router that was lost a moment ago may be back soon.
            is_cut_off = self._context.upstream.may_return
            self._inbox.append(self._region_failed(error, is_cut_off=is_cut_off))

    def _draft(self, action: Draft) -> None:
        if self._link is not None:
            sent = self._link.draft(self._session_id, self._wire.draft(action))
            self._context.telemetry.draft_frame(sent)
            if not sent:
                self._inbox.appendleft(DraftDropped(action))

    def _drafted(self, report: DrafterReport) -> None:
        self.feed(DraftsReady(report))

    def _cancel(self, reason: str) -> None:
        if self._link is not None:
            self._link.cancel(self._session_id, cancel(reason))

    def _tokenize(self, action: Tokenize) -> None:
        span = start_span(names.SPAN_TOKENIZE, parent=self._span.context)
        try:
            scope = self._request.group or None
            answer = partial(self._tokenized, action.prediction)
            pool = self._model.tokenization
            whose = self._requester
            if action.text is None:
                job = pool.submit(
                    action.messages,
                    answer,
                    requester=whose,
                    tools=action.tools,
                    variables=action.variables,
                    scope=scope,
                )
            else:
                job = pool.submit_text(
                    action.text,
                    answer,
                    requester=whose,
                    scope=scope,
                    is_prompt=action.is_prompt,
                )
            self._tokenizing = job, span
        except OutriderError as error:
            span.end(error)
            self._inbox.append(PromptFailed(error))

    def _tokenized(self, prediction: str, outcome: TokenizationResult) -> None:
        assert self._tokenizing is not None
        _, span = self._tokenizing
        self._tokenizing = None
        if isinstance(outcome, OutriderError):
            span.end(outcome)
            self.feed(PromptFailed(outcome))
        elif prediction:
            self._tokenize_prediction(prediction, outcome, span)
        else:
            span.end()
            self._ready(PromptReady(outcome))

    def _leave_to_region(self) -> None:
        if self._is_prompt_ready:
            return  # the limits are being asked for its ids
        if self._tokenizing is not None:
            job, span = self._tokenizing
            self._tokenizing = None
            self._model.tokenization.leave(job)
            span.end()
        self._is_prompt_charged = False
        self._ready(PromptReady(None))

    def _ready(self, item: PromptReady) -> None:
        self._is_prompt_ready = True
        item = self._with_ahead(item)
        num_tokens = len(item.ids or ()) + self._num_resumed
        self._allowance.ask(num_tokens, partial(self._allowed, item))

    def _with_ahead(self, item: PromptReady) -> PromptReady:
        """With the beginning of the reply that was computed before this was asked for, if any."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return item
        if item.ids is None or self._request.resume.upto:
            ahead.close()
            return item
        tokens = ahead.take(self._identity, self._model.key, self._request, item.ids)
        return replace(item, ahead=tokens)

    def _allowed(self, item: ChatAsked | PromptReady, refusal: OutriderError | None) -> None:
        """Continue with `item`, unless the tenant's quota is used up."""
        early, self._early = self._early or (), None
        if self.closed:
            return
        if refusal is None:
            self.feed(item)
            for later in early:
                self.feed(later)
        elif isinstance(item, ChatAsked):
            self.feed(ClientFailed(refusal))
        else:
            self.feed(PromptFailed(refusal))

    def _tokenize_prediction(self, text: str, prompt: tuple[int, ...], span: Span) -> None:
        def tokenized(outcome: TokenizationResult) -> None:
            self._tokenizing = None
            span.end()
            # Without its ids the chat is slower, and nothing else.
            ids = () if isinstance(outcome, OutriderError) else outcome
            self._ready(PromptReady(prompt, ids))

        try:
            pool = self._model.tokenization
            job = pool.submit_plain(text, tokenized, requester=self._requester)
            self._tokenizing = job, span
        except OutriderError as error:
            tokenized(error)

    def _finish(self) -> None:
        self._is_finished = True
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._leave()  # the model is unloaded in another turn at the soonest
        if self._tokenizing is not None:
            job, span = self._tokenizing
            self._model.tokenization.cancel(job)
            self._tokenizing = None
            span.end(CancelledError("the chat ended before its prompt was tokenized"))
        if self._link is not None:
            self._link.forget(self._session_id)
        self._model.drafter.close(self._drafter_number)
        self._channel.end()
        if self._entry is not None:
            self._context.resumable.ended(self._entry)
            # It refers to this chat, which would have to be collected as garbage.
            self._entry = self._token.entry = None
        if self._request.group and (reply := self._session.reply) is not None:
            self._context.time_slicer.defer(partial(_learn_rest, reply, self._context.time_slicer))
        telemetry = self._context.telemetry
        telemetry.chat_closed()
        # The last event is sent in this turn of the loop, the records are made in another.
        record = partial(telemetry.record, self._session, self._request, self._span, self._now)
        self._context.time_slicer.defer(record)

    def _arm(self) -> None:
        at = self._session.next_deadline()
        if at == self._armed_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._context.timer.call_at(at, self._due)
        self._armed_at = at

    def _due(self) -> None:
        assert self._armed_at is not None
        self._due_at = self._armed_at
        if not self._is_tick_submitted:
            self._is_tick_submitted = True
            self._context.time_slicer.submit(self._tick)

    def _tick(self) -> None:
        self._is_tick_submitted = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_at = None
        self.feed(Tick())

    @property
    def _now(self) -> float:
        """Not before the time that the timer was for: it comes up to a millisecond sooner, and a
        session that found nothing due would be woken again and again until then."""
        return max(self._loop.time(), self._due_at)


def _learn_rest(reply: ReplyFlow, time_slicer: TimeSlicer) -> None:
    """A piece in each turn of the loop."""
    if reply.learn_more():
        time_slicer.defer(partial(_learn_rest, reply, time_slicer))
