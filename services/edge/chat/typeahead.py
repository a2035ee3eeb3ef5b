"""Prefills a prompt at a region while its user still types it, so that the chat finds it cached."""

from __future__ import annotations

import secrets
from typing import Protocol
from uuid import uuid4

import structlog

from outrider.access.api_keys import Scope
from outrider.errors import EmptyPromptError, OutriderError
from outrider.models.chat import Message, check_messages
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority, Speculation
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.access.identity import UNIDENTIFIED, Credential
from services.edge.chat.context import EdgeContext
from services.edge.chat.stream import RequestStream
from services.edge.limits.quotas import Rate
from services.edge.models.choice import choose
from services.edge.models.keys import ModelKey
from services.edge.models.served import ServedModel
from services.edge.session.events import ChatRequest, Input, OpenRegion
from services.edge.session.typeahead_plan import TypeaheadPlan
from services.edge.upstream.link import RouterLink
from services.edge.wire.client import read_typed_text
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()


class TypedStream(RequestStream, Protocol):
    """A client's stream that carries typed text."""

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Charge this amount to the client's rate limit and its address's; False if either is
        exceeded."""
        ...


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
        self._name = ""
        """Of the model."""
        self._plan: TypeaheadPlan | None = None
        """None: the model has not been loaded yet."""
        self._key: ModelKey | None = None
        """The definition of the model in whose ids the plan is."""
        self._wire: RegionWire | None = None
        self._is_shared = False
        """Whether a chat could hit the prefix."""
        self._identity = UNIDENTIFIED
        self._residency: tuple[str, ...] = ()
        """Regions that may hold the text; empty: any."""
        self.closed = False
        self._newest: bytes | None = None
        """A frame that is still to be read."""
        self._before: tuple[Message, ...] = ()
        self._tools: tuple[str, ...] = ()
        self._job: tuple[TokenizationJob, ServedModel] | None = None
        """While a text is tokenized, which uses the model."""
        self._link: RouterLink | None = None
        self._number = 0

    def receive(self, payload: bytes) -> None:
        """The text changed. It is read when there is time for it, unless it has changed again until
        then; the first frame, which says more, is read at once."""
        if self.closed:
            return
        # Before it is parsed, because parsing is what costs. The client of the first frame is not
        # known yet, so it counts for the address alone.
        if not self._spend(Rate.TYPED_BYTES, len(payload)):
            self._close()  # the conversation before the text may have been in this frame
            return
        if self._identity is UNIDENTIFIED:
            self._read(payload)
            return
        if self._newest is None:
            self._context.time_slicer.defer(self._read_newest)
        self._newest = payload

    def _read_newest(self) -> None:
        payload, self._newest = self._newest, None
        if payload is not None and not self.closed:
            self._read(payload)

    def _read(self, payload: bytes) -> None:
        try:
            typed = read_typed_text(payload, self._admit)
            self._before = typed.before or self._before
            self._tools = typed.tools or self._tools
            messages = (*self._before, Message("user", typed.text))
            check_messages(messages)
        except EmptyPromptError:
            return  # all of it was deleted
        except OutriderError as error:
            log.debug("typed_text_refused", reason=error.reason)
            self._close()
            return
        plan = self._current_plan()
        if plan is not None:
            self._tokenize(plan, plan.typed(messages))

    def _spend(self, rate: Rate, amount: int) -> bool:
        return self._stream.spend(rate, amount, self._identity.client)

    def _admit(self, credential: Credential, model: str) -> None:
        """Find out whose text it is, and for which model; of the first frame. Raises
        UnauthenticatedError, PermissionDeniedError, InvalidRequestError, UnknownModelError."""
        if self._identity is not UNIDENTIFIED:
            return
        stream, fresh = self._stream, secrets.token_bytes(16)
        secret, address = stream.connection_secret, stream.address
        identity = self._context.identities.of(credential, secret, fresh, address)
        identity.require(Scope.CHAT)
        self._residency = identity.residency(())
        self._name = choose(model, self._context.models.names, identity.models)
        self._identity = identity
        self._context.keyed_chats.add(self, identity)
        # Without a trust group the chat has a cache salt of its own and cannot hit the prefix.
        self._is_shared = bool(identity.group)

    def _current_plan(self) -> TypeaheadPlan | None:
        """None: nothing can be computed ahead now."""
        if self._plan is None and self._is_shared:
            model = self._context.models.use(self._name)
            if model is not None:
                self._key = model.key
                self._plan = TypeaheadPlan(model.typeahead)
                self._wire = RegionWire(
                    *(model.coder, model.vocabulary_digest),
                    *(self._context.region, self._identity),
                    region_codec=model.region_codec,
                )
                self._context.models.release(model)
        return self._plan

    def feed(self, item: Input) -> None:
        """The user sent the prompt or left, or the edge stops."""
        self._close()

    def client_lost(self) -> None:
        """The client's connection is no more."""
        self._close()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._context.keyed_chats.remove(self)
        self._stream.end()
        if self._job is not None:
            job, model = self._job
            self._job = None
            model.tokenization.cancel(job)
            self._context.models.release(model)
        is_running = self._plan is not None and self._plan.close()
        if is_running and self._link is not None:
            self._link.cancel(self._number, cancel("the prompt is not being typed any more"))
            self._link.forget(self._number)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region; only the end of the session matters, and what it takes to come
        to it."""
        kind = frame.WhichOneof("kind")
        if kind == "prompt_unknown" and self._link is not None and self._wire is not None:
            try:
                self._link.send(self._number, self._wire.whole_prompt(self._link.prompts))
            except OutriderError as error:
                log.debug("typed_text_not_prefilled", reason=error.reason)
                self._link.cancel(self._number, cancel(error.reason))
        if kind in ("done", "error"):
            self._ended(well=kind == "done")

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self._ended(well=False)

    def _tokenize(self, plan: TypeaheadPlan, messages: tuple[Message, ...] | None) -> None:
        if messages is None:
            return
        models = self._context.models
        model = models.use(self._name)
        if model is None:
            plan.tokenized(None)  # it was unloaded meanwhile
            return
        if model.key != self._key:
            models.release(model)
            self._close()  # its definition has changed, and perhaps its ids
            return
        try:
            scope = self._identity.group or None
            job = model.tokenization.submit(
                messages, self._tokenized, tools=self._tools, scope=scope, is_typeahead=True
            )
            self._job = job, model
        except OutriderError as error:
            models.release(model)
            log.debug("typed_text_not_tokenized", reason=error.reason)
            plan.tokenized(None)

    def _tokenized(self, outcome: TokenizationResult) -> None:
        assert self._job is not None and self._plan is not None
        _, model = self._job
        self._job = None
        self._context.models.release(model)
        ids = None if isinstance(outcome, OutriderError) else outcome
        self._tokenize(self._plan, self._plan.tokenized(ids))
        self._prefill(self._plan)

    def _prefill(self, plan: TypeaheadPlan) -> None:
        num_new = plan.num_due
        if not num_new or self._context.limiter.is_used_up(self._identity):
            return
        if not self._spend(Rate.PREFILL_TOKENS, num_new):
            return
        ids = plan.next_prefill()
        assert ids is not None and self._wire is not None
        context = self._context
        request = ChatRequest(
            request_id=uuid4().hex,
            model=self._name,
            messages=(),
            sampling=SamplingParams(max_tokens=1),
            priority=Priority.LOW,
            speculation=Speculation.OFF,
            residency=self._residency,
        )
        try:
            link = context.upstream.pick()
            opening = self._wire.open(OpenRegion(request, ids, 0), ("", ""), link.prompts)
            self._number = link.open(self, opening)
            self._link = link
            context.telemetry.prefilled(len(ids), self._name)
        except OutriderError as error:
            log.debug("typed_text_not_prefilled", reason=error.reason)
            plan.ended(well=False)

    def _ended(self, *, well: bool) -> None:
        if self._link is not None:
            self._link.forget(self._number)
        if self._plan is not None:
            self._plan.ended(well=well)
            self._prefill(self._plan)
