"""Prefills a prompt at a region while its user still types it, so that the chat finds it cached.
Of users who agreed to that the reply is begun, too (services.edge.chat.answer_ahead)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol
from uuid import uuid4

import structlog

from outrider.access.api_keys import Scope
from outrider.errors import EmptyPromptError, OutriderError
from outrider.models.chat import Message, check_messages
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority, Speculation
from outrider.today import today
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.access.identity import Credential, Identity
from services.edge.chat.answer_ahead import AnswerAhead, may_be_answered_ahead
from services.edge.chat.context import EdgeContext
from services.edge.chat.stream import Peer
from services.edge.limits.quotas import Rate
from services.edge.models.choice import choose
from services.edge.models.keys import ModelKey
from services.edge.models.served import ServedModel
from services.edge.session.events import ChatRequest, Input, OpenRegion
from services.edge.session.template_options import NO_OPTIONS
from services.edge.session.typeahead_plan import TypeaheadPlan
from services.edge.upstream.distance import DistantLink, SessionLink, check_added_rtt
from services.edge.wire.client import TypedText, read_typed_text
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()


def end_typing(handlers: Iterable[object]) -> AnswerAhead | None:
    """The prompt was sent on the connection that has these streams' handlers: nothing more is
    typed. Returns the reply that may have been begun to the text; None: none was."""
    found = [it.hand_over() for it in list(handlers) if isinstance(it, TypeaheadPrefill)]
    begun = [ahead for ahead in found if ahead is not None]
    for ahead in begun[:-1]:
        ahead.close()
    return begun[-1] if begun else None


class TypedStream(Peer, Protocol):
    """Carries typed text."""

    def end(self) -> None:
        """Nothing more is read."""
        ...

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Charge this amount to the client's rate limit and its address's; False if either is
        exceeded."""
        ...


@dataclass(frozen=True, slots=True)
class _Typist:
    """Whose text it is, and for which model."""

    identity: Identity
    residency: tuple[str, ...]
    """Regions that may hold the text; empty: any."""
    model: str
    added_rtt_ms: int = 0

    def request(self) -> ChatRequest:
        """For one prefill."""
        return ChatRequest(
            request_id=uuid4().hex,
            model=self.model,
            messages=(),
            sampling=SamplingParams(max_tokens=1),
            priority=Priority.LOW,
            speculation=Speculation.OFF,
            residency=self.residency,
            added_rtt_ms=self.added_rtt_ms,
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    """A prompt to compute ahead, in the ids of one definition of the model."""

    key: ModelKey
    plan: TypeaheadPlan
    wire: RegionWire


class TypeaheadPrefill:
    """One prompt that is being typed.

    A prefill is a session of one token at LOW priority, for the sake of what it leaves in the
    replica's prefix cache. Failures are only logged: without it the chat merely starts later. While
    its model is not loaded nothing is computed ahead, and nothing is loaded for it; between two
    texts it does not keep the model loaded.
    """

    def __init__(self, stream: TypedStream, context: EdgeContext) -> None:
        self._stream = stream
        self._context = context
        self._typist: _Typist | None = None
        """Known from the first frame on."""
        self._before: tuple[Message, ...] = ()
        self._tools: tuple[str, ...] = ()
        self._newest: bytes | None = None
        """A frame that is still to be read."""
        self._planned: _Planned | None = None
        """None: the model has not been loaded yet."""
        self._job: tuple[TokenizationJob, ServedModel] | None = None
        """Job of the text that is being tokenized, which uses the model; None: no text is."""
        self._session: tuple[SessionLink, int] | None = None
        """The newest prefill, and its number there."""
        self._ahead: AnswerAhead | None = None
        """None: its user has not agreed to it, or nothing can be begun ahead."""
        self.closed = False

    # For the stream.

    def receive(self, payload: bytes) -> None:
        """The text changed. It is read when there is time for it, unless it has changed again by
        then; the first frame, which says more, is read at once."""
        if self.closed:
            return
        # Before it is parsed, because parsing is what costs. The client of the first frame is not
        # known yet, so it counts for the address alone.
        client = b"" if self._typist is None else self._typist.identity.client
        if not self._stream.spend(Rate.TYPED_BYTES, len(payload), client):
            self._close()  # the conversation before the text may have been in this frame
            return
        if self._typist is None:
            self._read(payload)
            return
        if self._newest is None:
            self._context.time_slicer.defer(self._read_newest)
        self._newest = payload

    def feed(self, item: Input) -> None:
        """The user sent the prompt or left, or the edge stops."""
        self._close()

    def client_lost(self) -> None:
        """The client's connection is no more."""
        self._close()

    # For the region.

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """Take a frame from the region. Only the end of the session matters, and the frames needed
        to reach it."""
        kind = frame.WhichOneof("kind")
        if kind == "prompt_unknown":
            self._send_whole_prompt()
        elif kind in ("done", "error"):
            self._ended(well=kind == "done")

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self._ended(well=False)

    # What is typed.

    def _read_newest(self) -> None:
        payload, self._newest = self._newest, None
        if payload is not None and not self.closed:
            self._read(payload)

    def _read(self, payload: bytes) -> None:
        try:
            self.changed(read_typed_text(payload, self._admit))
        except OutriderError as error:
            log.debug("typed_text_refused", reason=error.reason)
            self._close()

    def changed(self, typed: TypedText) -> None:
        """This has been typed by now; the client has been admitted. Raises InvalidRequestError,
        PermissionDeniedError."""
        assert self._typist is not None
        self._before = typed.before or self._before
        self._tools = typed.tools or self._tools
        if typed.request is not None and self._ahead is None:
            self._begin_ahead(self._typist, typed.request)
        messages = (*self._before, Message("user", typed.text))
        try:
            check_messages(messages)
        except EmptyPromptError:  # all of it was deleted
            if self._ahead is not None:
                self._ahead.typed((Message("user", ""),), 0)
            return
        planned = self._plan_of(self._typist)
        if planned is not None:
            self._tokenize(planned, planned.plan.typed(messages))
            if self._ahead is not None:
                self._ahead.typed(messages, planned.plan.num_computed)

    def _begin_ahead(self, typist: _Typist, request: ChatRequest) -> None:
        identity = typist.identity
        check_added_rtt(request.added_rtt_ms, is_allowed=self._context.added_distance)
        asked = replace(
            request,
            model=typist.model,
            residency=identity.residency(request.residency),
            tools=self._tools,
        )
        self._typist = replace(typist, residency=asked.residency, added_rtt_ms=asked.added_rtt_ms)
        if may_be_answered_ahead(asked, identity, self._context):
            spend = partial(self._spend, identity.client)
            self._ahead = AnswerAhead(asked, identity, self._context, spend)

    def _spend(self, client: bytes, rate: Rate, amount: int) -> bool:
        return self._stream.spend(rate, amount, client)

    def _admit(self, credential: Credential, model: str) -> None:
        """Find out whose text it is, and for which model; of the first frame. Raises
        UnauthenticatedError, PermissionDeniedError, InvalidRequestError, UnknownModelError."""
        if self._typist is not None:
            return
        stream, fresh = self._stream, secrets.token_bytes(16)
        secret, address = stream.connection_secret, stream.address
        self.admit(self._context.identities.of(credential, secret, fresh, address), model)

    def admit(self, identity: Identity, model: str) -> None:
        """It is this client's text, for this model ("": the first that it may use). Raises
        PermissionDeniedError, UnknownModelError."""
        identity.require(Scope.CHAT)
        name = choose(model, self._context.models.names, identity.models)
        self._typist = _Typist(identity, identity.residency(()), name)
        self._context.keyed_chats.add(self, identity)

    def hand_over(self) -> AnswerAhead | None:
        """The prompt was sent: nothing more is typed. Returns the reply that may have been begun
        to it, for the chat; None: none was."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.hand_over()
        self._close()
        return ahead

    def _plan_of(self, typist: _Typist) -> _Planned | None:
        """None: nothing can be computed ahead now."""
        # Without a trust group the chat has a cache salt of its own and cannot hit the prefix.
        if self._planned is None and typist.identity.group:
            model = self._context.models.use(typist.model)
            if model is not None:
                wire = RegionWire(
                    model.coder,
                    model.vocabulary_digest,
                    self._context.region,
                    typist.identity,
                    region_codec=model.region_codec,
                )
                self._planned = _Planned(model.key, TypeaheadPlan(model.typeahead), wire)
                self._context.models.release(model)
        return self._planned

    # Its ids.

    def _tokenize(self, planned: _Planned, messages: tuple[Message, ...] | None) -> None:
        if messages is None or self._typist is None:
            return
        models = self._context.models
        model = models.use(self._typist.model)
        if model is None:
            planned.plan.tokenized(None)  # it was unloaded meanwhile
            return
        if model.key != planned.key:
            models.release(model)
            self._close()  # its definition has changed, and perhaps its ids
            return
        try:
            identity = self._typist.identity
            job = model.tokenization.submit(
                messages,
                self._tokenized,
                requester=identity.requester,
                tools=self._tools,
                variables=model.template_control.given(NO_OPTIONS, today()),
                scope=identity.group or None,
                is_typeahead=True,
            )
            self._job = job, model
        except OutriderError as error:
            models.release(model)
            log.debug("typed_text_not_tokenized", reason=error.reason)
            planned.plan.tokenized(None)

    def _tokenized(self, outcome: TokenizationResult) -> None:
        assert self._job is not None and self._planned is not None
        _, model = self._job
        self._job = None
        self._context.models.release(model)
        ids = None if isinstance(outcome, OutriderError) else outcome
        self._tokenize(self._planned, self._planned.plan.tokenized(ids))
        self._prefill(self._planned)

    # Its prefills.

    def _prefill(self, planned: _Planned) -> None:
        typist, context, num_new = self._typist, self._context, planned.plan.num_due
        if typist is None or not num_new or context.limiter.is_used_up(typist.identity):
            return
        if self._ahead is not None and num_new < context.ahead.min_prefill_tokens:
            return
        if not self._stream.spend(Rate.PREFILL_TOKENS, num_new, typist.identity.client):
            return
        ids = planned.plan.next_prefill()
        assert ids is not None
        try:
            link: SessionLink = context.upstream.pick()
            if typist.added_rtt_ms:
                link = DistantLink(link, typist.added_rtt_ms)
            opening = planned.wire.open(
                OpenRegion(typist.request(), ids, 0), ("", ""), link.prompts
            )
            self._session = link, link.open(self, opening)
            context.telemetry.prefilled(len(ids), typist.model)
        except OutriderError as error:
            log.debug("typed_text_not_prefilled", reason=error.reason)
            planned.plan.ended(well=False)

    def _send_whole_prompt(self) -> None:
        if self._session is None or self._planned is None:
            return
        link, number = self._session
        try:
            link.send(number, self._planned.wire.whole_prompt(link.prompts))
        except OutriderError as error:
            log.debug("typed_text_not_prefilled", reason=error.reason)
            link.cancel(number, cancel(error.reason))

    def _ended(self, *, well: bool) -> None:
        if self._session is not None:
            link, number = self._session
            link.forget(number)
        if self._planned is not None:
            self._planned.plan.ended(well=well)
            self._prefill(self._planned)

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._ahead is not None:
            self._ahead.close()
        self._context.keyed_chats.remove(self)
        self._stream.end()
        if self._job is not None:
            job, model = self._job
            self._job = None
            model.tokenization.cancel(job)
            self._context.models.release(model)
        is_running = self._planned is not None and self._planned.plan.close()
        if is_running and self._session is not None:
            link, number = self._session
            link.cancel(number, cancel("the prompt is not being typed any more"))
            link.forget(number)
