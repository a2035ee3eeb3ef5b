"""Begins the reply to a prompt before it is sent, for users who agreed to that.

When typing pauses, the prompt as it stands goes to the region as a background session. Its tokens
stay here, sealed: they are shown, logged and learnt from by nobody. A chat that asks for exactly
this takes them as the first tokens of its reply; any other text, and the user's leaving, throws
them away. Failures are only counted: without it the reply merely starts later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

import structlog

from outrider.errors import OutriderError, OverloadedError, UnavailableError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from outrider.session.region import Commit
from outrider.session.types import Priority, Speculation
from outrider.speculation.verification import common_prefix_length
from outrider.today import today
from outrider.tokenization.pool.pool import TokenizationJob, TokenizationResult
from outrider.v1 import inference_pb2
from services.edge.access.identity import Identity
from services.edge.chat.context import EdgeContext
from services.edge.chat.timers import Call
from services.edge.limits.quotas import Rate
from services.edge.models.keys import ModelKey
from services.edge.models.served import ServedModel
from services.edge.session.ahead_plan import AheadPlan
from services.edge.session.events import (
    NOTHING_AHEAD,
    AheadTokens,
    ChatRequest,
    OpenRegion,
    RegionDone,
    RegionMoved,
    RegionOpened,
)
from services.edge.upstream.distance import DistantLink, SessionLink
from services.edge.wire.region import RegionWire, cancel

log = structlog.get_logger()

Spend = Callable[[Rate, int], bool]
"""Charges an amount to the typist's quotas; False: there is not so much left."""

_KEPT_S: Final = 30.0
"""How long what was begun waits for a chat that was announced, which may wait for its model."""
_RETRY_S: Final = 1.0


def may_be_answered_ahead(request: ChatRequest, identity: Identity, context: EdgeContext) -> bool:
    """Whether a reply to this may be begun before it is sent: not in lossy mode, whose text depends
    on drafts; not with log probabilities, which are not kept; and not for clients without a trust
    group, of which nothing is found again."""
    sampling = request.sampling
    return (
        bool(context.ahead.max_tokens and identity.group)
        and sampling.num_logprobs < 0
        and not sampling.acceptance_threshold
        and not request.thin
        and not request.resume.upto
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the sealed tokens are the beginning of a reply to."""

    key: ModelKey
    ids: tuple[int, ...]
    sampling: SamplingParams

    def fits(self, other: _Asked) -> bool:
        """Whether both have the same reply. At temperature 0 there is no noise, and no seed."""
        if self.sampling.temperature == 0.0:
            other = replace(other, sampling=replace(other.sampling, seed=self.sampling.seed))
        return self == other


class AnswerAhead:
    """The reply to one prompt that is being typed, while nobody has asked for it. Single-threaded;
    handles its sessions' frames."""

    def __init__(
        self, request: ChatRequest, identity: Identity, context: EdgeContext, spend: Spend
    ) -> None:
        """`request`: as it will be sent, without its messages, and with the name of a model that
        is served. The caller has checked `may_be_answered_ahead`."""
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._identity = identity
        self._context = context
        self._spend = spend
        round_trip_s = context.upstream.round_trip_s
        if round_trip_s is not None:
            round_trip_s += request.added_rtt_ms / 1e3
        self._plan = AheadPlan(context.ahead, round_trip_s)
        self._messages: tuple[Message, ...] = ()
        self._num_computed = 0
        self._computed: tuple[int, ...] = ()
        """The prompt that the region was asked to compute last, to begin its reply."""
        self._timer: Call | None = None
        self._job: tuple[TokenizationJob, ServedModel] | None = None
        self._asked: _Asked | None = None
        """None: nothing is begun."""
        self._wire: RegionWire | None = None
        self._session: tuple[SessionLink, int] | None = None
        """The background session; None: none, or it has ended."""
        self._ids: list[int] = []
        """Sealed."""
        self._num_asked = 0
        """Tokens that the background session may have."""
        self._model_identity = b""
        self.closed = False

    # For whoever reads what is typed.

    def typed(self, messages: tuple[Message, ...], num_computed: int) -> None:
        """The prompt is this now. `num_computed`: its leading tokens that the region was asked to
        compute already."""
        if self.closed:
            return
        self._num_computed = num_computed
        self._messages = messages
        if self._plan.typed(messages[-1].content, self._loop.time()):
            self._discard("the prompt has changed")
        self._arm()

    def hand_over(self) -> None:
        """The prompt was sent: a chat will `take` what there is, or nobody will."""
        if self.closed:
            return
        self._stop_timer()
        self._timer = self._context.timer.call_at(self._loop.time() + _KEPT_S, self.close)

    def take(
        self, identity: Identity, key: ModelKey, request: ChatRequest, ids: tuple[int, ...]
    ) -> AheadTokens:
        """The sealed beginning of the reply to this request, whose prompt is `ids`; empty if there
        is none. Nothing is left here afterwards."""
        asked, sealed = _Asked(key, ids, request.sampling), NOTHING_AHEAD
        is_same = (
            identity == self._identity
            and request.residency == self._request.residency
            and request.added_rtt_ms == self._request.added_rtt_ms
        )
        if not self.closed and self._asked is not None and is_same and self._asked.fits(asked):
            sealed = AheadTokens(tuple(self._ids), self._model_identity)
        self._context.telemetry.ahead_sent(len(sealed.ids), request.model)
        del self._ids[: len(sealed.ids)]
        self.close()
        return sealed

    def close(self) -> None:
        """Throw everything away."""
        if self.closed:
            return
        self._discard("nobody waits for it")
        self._stop_timer()
        self.closed = True

    # The pause.

    def _arm(self) -> None:
        self._stop_timer()
        at = self._plan.due_at
        if at is not None:
            self._timer = self._context.timer.call_at(at, self._due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._context.time_slicer.defer(self._tokenize)

    def _tokenize(self) -> None:
        context, identity = self._context, self._identity
        at = self._plan.due_at
        if self.closed or self._job or at is None or at > self._loop.time() + _RETRY_S:
            return
        if context.limiter.is_used_up(identity):
            return
        model = context.models.use(self._request.model)
        if model is None:
            return  # nothing is loaded for what may never be sent
        try:
            asked = replace(self._request, messages=self._messages)
            asked = model.template_control.applied(model.limits.fitted(asked), today())
            asked = model.tool_calling.applied(asked)
            job = model.tokenization.submit(
                asked.messages,
                lambda outcome: self._tokenized(asked, outcome),
                requester=identity.requester,
                tools=asked.tools,
                variables=asked.template_variables,
                scope=identity.group,
                is_typeahead=True,
            )
            self._job = job, model
        except OutriderError as error:
            context.models.release(model)
            log.debug("not_answered_ahead", reason=error.reason)

    def _tokenized(self, asked: ChatRequest, outcome: TokenizationResult) -> None:
        assert self._job is not None
        _, model = self._job
        self._job = None
        try:
            if self.closed or asked.messages != self._messages:
                self._arm()
            elif not isinstance(outcome, OutriderError):
                self._open(model, asked, tuple(outcome))
        finally:
            self._context.models.release(model)

    # The background session.

    def _open(self, model: ServedModel, asked: ChatRequest, ids: tuple[int, ...]) -> None:
        if len(ids) >= model.policy.max_context_tokens:
            return
        num_known = max(self._num_computed, common_prefix_length(self._computed, ids))
        num_new = max(1, len(ids) - num_known)
        num_ahead = min(self._plan.num_tokens, asked.sampling.max_tokens)
        if not (
            self._spend(Rate.PREFILL_TOKENS, num_new) and self._spend(Rate.AHEAD_TOKENS, num_ahead)
        ):
            return
        now = self._loop.time()
        request = replace(
            asked,
            request_id=uuid4().hex,
            messages=(),
            sampling=replace(asked.sampling, max_tokens=num_ahead),
            priority=Priority.LOW,
            speculation=Speculation.OFF,
            prediction="",
            deadline_ms=0,
            is_background=True,
        )
        self._wire = RegionWire(
            model.coder,
            model.vocabulary_digest,
            self._context.region,
            self._identity,
            region_codec=model.region_codec,
        )
        self._asked = _Asked(model.key, ids, asked.sampling)
        self._num_asked = num_ahead
        self._computed = ids
        self._plan.begun(now)
        try:
            link: SessionLink = self._context.upstream.pick()
            if asked.added_rtt_ms:
                link = DistantLink(link, asked.added_rtt_ms)
            opening = self._wire.open(OpenRegion(request, ids, 0), ("", ""), link.prompts)
            self._session = link, link.open(self, opening)
        except OutriderError as error:
            self._failed(error)

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame from the region."""
        assert self._wire is not None
        if frame.HasField("prompt_unknown"):
            self._send_whole_prompt()
            return
        try:
            read = self._wire.read(frame)
            if isinstance(read, Commit):
                self._committed(read)
            elif isinstance(read, RegionOpened | RegionMoved):
                self._placed(read.model_identity)
            elif isinstance(read, RegionDone):
                if not read.finish_reason.is_whole or read.upto != len(self._ids):
                    self._forget_tokens()
                self._ended()
            else:
                self._failed(read.error)
        except OutriderError as error:
            self._stop(error.reason)
            self._forget_tokens()

    def region_lost(self, error: OutriderError) -> None:
        """The stream to the region broke. The tokens that came are final, whoever is lost."""
        self._failed(error)

    def _placed(self, identity: bytes) -> None:
        if self._ids and identity != self._model_identity:
            self._stop("another model continues it")
            self._forget_tokens()
        self._model_identity = identity

    def _committed(self, commit: Commit) -> None:
        is_next = commit.base == len(self._ids) and not commit.accepted
        num_tokens = len(self._ids) + len(commit.ids)
        if not is_next or commit.is_inexact or num_tokens > self._num_asked:
            self._stop("its tokens cannot be used")
            self._forget_tokens()
            return
        self._plan.answered(self._loop.time())
        self._ids.extend(commit.ids)
        self._context.telemetry.sealed(len(commit.ids))

    def _send_whole_prompt(self) -> None:
        if self._session is None or self._wire is None:
            return
        link, number = self._session
        try:
            link.send(number, self._wire.whole_prompt(link.prompts))
        except OutriderError as error:
            self._stop(error.reason)

    def _failed(self, error: OutriderError) -> None:
        log.debug("not_answered_ahead", reason=error.reason)
        self._ended()
        if isinstance(error, OverloadedError | UnavailableError) and not self._ids:
            asked_s = error.retry_delay_ms / 1e3 if isinstance(error, OverloadedError) else 0.0
            self._asked = None
            self._plan.refused(max(_RETRY_S, asked_s), self._loop.time())
            self._arm()
        else:
            self._plan.failed()

    def _ended(self) -> None:
        """The region has no session of it any more."""
        if self._session is not None:
            link, number = self._session
            self._session = None
            link.forget(number)

    def _stop(self, reason: str) -> None:
        if self._session is not None:
            link, number = self._session
            link.cancel(number, cancel(reason))
        self._ended()

    def _forget_tokens(self) -> None:
        if self._ids:
            self._context.telemetry.ahead_discarded(len(self._ids), self._request.model)
        self._ids.clear()
        self._asked = None

    def _discard(self, reason: str) -> None:
        if self._job is not None:
            job, model = self._job
            self._job = None
            model.tokenization.cancel(job)
            self._context.models.release(model)
        self._stop(reason)
        self._forget_tokens()
        self._asked = None
