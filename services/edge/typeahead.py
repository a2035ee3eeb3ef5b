"""Prefills a prompt at a region while its user still types it, so that the chat finds it cached."""

from __future__ import annotations

import secrets
from typing import Protocol
from uuid import uuid4

import structlog

from outrider.errors import EmptyPromptError, OutriderError
from outrider.models.chat import Message, check_messages
from outrider.sampling.params import SamplingParams
from outrider.session_types import Priority, Speculation
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.context import EdgeContext
from services.edge.identity import UNIDENTIFIED, Credential
from services.edge.quotas import Rate
from services.edge.session.events import ChatRequest, Input, OpenRegion
from services.edge.session.typeahead_plan import TypeaheadPlan
from services.edge.stream import RequestStream
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
    replica's prefix cache. Failures are only logged: without it the chat merely starts later.
    """

    def __init__(self, stream: TypedStream, context: EdgeContext) -> None:
        self._stream = stream
        self._context = context
        self._plan = TypeaheadPlan(context.typeahead)
        self._identity = UNIDENTIFIED
        self.closed = False
        self._before: tuple[Message, ...] = ()
        self._job: TokenizationJob | None = None
        self._link: RouterLink | None = None
        self._number = 0

    def receive(self, payload: bytes) -> None:
        """The text changed."""
        if self.closed:
            return
        try:
            # Before it is parsed, because parsing is what costs. The client of the first frame is
            # not known yet, so it counts for the address alone.
            if not self._spend(Rate.TYPED_BYTES, len(payload)):
                self._close()  # the conversation before the text may have been in this frame
                return
            typed = read_typed_text(payload)
            if self._identity is UNIDENTIFIED:
                self._admit(typed.credential)
            self._before = typed.before or self._before
            messages = (*self._before, Message("user", typed.text))
            check_messages(messages)
        except EmptyPromptError:
            return  # all of it was deleted
        except OutriderError as error:
            log.debug("typed text refused", reason=error.reason)
            self._close()
            return
        self._tokenize(self._plan.typed(messages))

    def _spend(self, rate: Rate, amount: int) -> bool:
        return self._stream.spend(rate, amount, self._identity.client)

    def _admit(self, credential: Credential) -> None:
        """Find out whose text it is. Raises UnauthenticatedError, InvalidRequestError."""
        stream, fresh = self._stream, secrets.token_bytes(16)
        secret, address = stream.connection_secret, stream.address
        self._identity = self._context.identities.of(credential, secret, fresh, address)
        if not self._identity.group:
            # Without a trust group the chat has a cache salt of its own and cannot hit the prefix.
            self._plan.close()

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
        self._stream.end()
        if self._job is not None:
            self._context.tokenization.cancel(self._job)
        if self._plan.close() and self._link is not None:
            self._link.cancel(self._number, cancel("the prompt is not being typed any more"))
            self._link.forget(self._number)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region; only the end of the session matters."""
        kind = frame.WhichOneof("kind")
        if kind in ("done", "error"):
            self._ended(well=kind == "done")

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke."""
        self._ended(well=False)

    def _tokenize(self, messages: tuple[Message, ...] | None) -> None:
        if messages is None:
            return
        try:
            tokenization = self._context.tokenization
            scope = self._identity.group or None
            self._job = tokenization.submit(
                messages, self._tokenized, scope=scope, is_typeahead=True
            )
        except OutriderError as error:
            log.debug("typed text not tokenized", reason=error.reason)
            self._plan.tokenized(None)

    def _tokenized(self, outcome: TokenizationResult) -> None:
        self._job = None
        self._tokenize(
            self._plan.tokenized(None if isinstance(outcome, OutriderError) else outcome)
        )
        self._prefill()

    def _prefill(self) -> None:
        num_new = self._plan.num_due
        if not num_new or not self._spend(Rate.PREFILL_TOKENS, num_new):
            return
        ids = self._plan.next_prefill()
        assert ids is not None
        context = self._context
        wire = RegionWire(
            context.coder, context.policy.vocabulary_digest, context.region, self._identity
        )
        request = ChatRequest(
            request_id=uuid4().hex,
            model=context.offer.model,
            messages=(),
            sampling=SamplingParams(max_tokens=1),
            priority=Priority.LOW,
            speculation=Speculation.OFF,
        )
        try:
            link = context.upstream.pick()
            self._number = link.open(self, wire.open(OpenRegion(request, ids, 0), ("", "")))
            self._link = link
            context.telemetry.prefilled(len(ids))
        except OutriderError as error:
            log.debug("typed text not prefilled", reason=error.reason)
            self._plan.ended(well=False)

    def _ended(self, *, well: bool) -> None:
        if self._link is not None:
            self._link.forget(self._number)
        self._plan.ended(well=well)
        self._prefill()
