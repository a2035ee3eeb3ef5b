"""The scheduler of one model replica: decide, let the engine run, apply.

Every tick takes all ready sessions into one call, together with chunks of waiting prompts: the
engine never idles while a session is ready, and no timer holds a batch back. Sessions that share
a call do not change each other's text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    EmptyPromptError,
    EngineError,
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    PromptTooLongError,
)
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.sampling.sampler import Sampler
from outrider.speculation.suffix import SuffixDrafter
from services.inference.engines.candidates import check_sampling
from services.inference.kv.events import BlockEvent
from services.inference.kv.pool import KvPool
from services.inference.scheduling.budget import CostModel
from services.inference.scheduling.drafting import Acceptance, DraftSources, EdgeChain
from services.inference.scheduling.events import (
    Drafts,
    Event,
    Failed,
    Finished,
    FinishReason,
    Load,
    Opened,
    OpenRequest,
)
from services.inference.scheduling.limits import SchedulerLimits, context_limit

from services.inference.engines.base import EngineInfo, Rows
from services.inference.scheduling.planning import Part, Plan, Planner
from services.inference.scheduling.roster import Roster
from services.inference.scheduling.session import Session

_EDGE_PRIOR = 0.6
_MAX_RETRY_DELAY_MS = 30_000


class Scheduler:
    """Sessions in, engine calls out, committed tokens out.

    Calls alternate: every plan of decide() is answered by apply() or fail() before the next.
    open, draft, cancel and expire may come at any time, also in between. Times are seconds on
    any monotonic clock. Raises RuntimeError only for misuse of this order.
    """

    def __init__(
        self,
        info: EngineInfo,
        limits: SchedulerLimits,
        new_reply: Callable[[SamplingParams], ReplyText],
    ) -> None:
        """Raises ConfigError if the limits cannot serve this engine."""
        limits.check_fits(info)
        self.info = info
        self.limits = limits
        self._context_limit = context_limit(info)
        self._new_reply = new_reply
        self._pool = KvPool(
            info.num_blocks,
            info.block_tokens,
            min_rows=info.min_rows,
            scratch_tokens=info.scratch_tokens,
        )
        self._min_rows = max(1, info.min_rows)
        self._roster = Roster(self._pool, limits.max_sessions, self._min_rows)
        self._cost = CostModel(limits.fixed_ms, limits.row_ms, info.sizing)
        self._planner = Planner(info, limits, self._pool, self._roster, self._cost)
        self._edge_average = Acceptance(_EDGE_PRIOR)
        self._num_opened = 0
        self._in_flight: Plan | None = None

    @property
    def has_work(self) -> bool:
        """Whether decide() would return a plan."""
        return bool(self._roster.sessions) or self._roster.has_news

    def open(self, request: OpenRequest, now: float) -> list[Event]:
        """Take a session into the queue; a reply that `resume` already completes ends at once.

        Raises DuplicateSessionError, EmptyPromptError, InvalidRequestError (ids outside the
        vocabulary, resume past the reply's end), InvalidSamplingError, PromptTooLongError,
        DeadlineError, and OverloadedError with a retry delay when the queue is full.
        """
        self._check(request, now)
        session = self._new_session(request, now)
        cached = self._pool.match(session.ids, request.cache_salt)
        opened = Opened(request.session, len(request.prompt), min(cached, len(request.prompt)))
        self._roster.add(session)
        if request.drafts is not None:
            self.draft(request.session, request.drafts, now)
        return [opened, *self._finish_if_over(session, now)]

    def draft(self, session: int, drafts: Drafts, now: float) -> None:
        """Keep an edge's guesses for the next calls; for a session that is gone they are void.

        Raises InvalidRequestError for ids outside the vocabulary.
        """
        self._check_ids("a draft", drafts.ids)
        live = self._roster.sessions.get(session)
        if live is not None and live.sources.chain is not None:
            live.sources.chain.receive(drafts, live.ids, len(live.request.prompt))

    def cancel(self, session: int, now: float) -> list[Event]:
        """End a session at once; nothing for one that is gone already."""
        live = self._roster.sessions.get(session)
        return [] if live is None else [self._finish(live, FinishReason.CANCELLED, now)]

    def expire(self, now: float) -> list[Event]:
        """End the sessions whose deadline has come."""
        late = [
            session
            for session in self._roster.sessions.values()
            if session.request.deadline is not None and session.request.deadline <= now
        ]
        return [self._finish(session, FinishReason.DEADLINE, now) for session in late]

    def decide(self, now: float) -> Plan | None:
        """The next engine call; None when there is nothing to do."""
        if self._in_flight is not None:
            raise RuntimeError("the last plan was neither applied nor failed")
        plan = self._planner.plan(now)
        if plan is not None:
            self._in_flight = plan
            self._roster.depart(frozenset(round.sequence for round in plan.rounds))
        return plan

    def apply(self, plan: Plan, rows: Sequence[Rows], now: float) -> list[Event]:
        """Take the engine's answer, one Rows per round: commit, finish, free."""
        if len(rows) != len(plan.rounds):
            wrong = f"the engine answered {len(plan.rounds)} rounds with {len(rows)}"
            return self.fail(plan, EngineError(wrong))
        self._land(plan)
        if plan.rounds:
            self._cost.observe(plan.num_tokens, (now - plan.decided_at) * 1e3)
        events: list[Event] = []
        for part, answer in zip(plan.parts, rows, strict=True):
            if self._is_live(part):
                events.extend(self._apply_part(part, answer, plan.decided_at, now))
        return events

    def fail(self, plan: Plan, error: OutriderError) -> list[Event]:
        """The engine call failed: the sessions in it, and those it was to open or to copy blocks
        for, end with this error; the others go on."""
        self._land(plan)
        lost = {round.sequence for round in plan.rounds} | {new.sequence for new in plan.opened}
        lost |= {copy.session for copy in plan.copies}
        doomed = [session for session in self._roster.running if session.sequence in lost]
        return [self._fail(session, error) for session in doomed]

    def load(self) -> Load:
        """A snapshot for routers."""
        live = self._roster.sessions.values()
        return Load(
            running_sessions=len(self._roster.running),
            queued_sessions=len(self._roster.waiting),
            queued_prompt_tokens=sum(s.num_missing for s in live if s.num_missing > 1),
            kv_blocks_total=self._pool.num_blocks,
            kv_blocks_free=self._pool.num_free,
            fixed_ms=self._cost.fixed_ms,
            row_ms=self._cost.row_ms,
            max_sessions=self.limits.max_sessions,
        )

    def record_blocks(self) -> None:
        """From now on take_block_events() tells what is cached, and the caller takes them."""
        self._pool.record()

    def take_block_events(self) -> tuple[BlockEvent, ...]:
        """What changed in the prefix cache since the last take."""
        return self._pool.take_events()

    def check_invariants(self) -> None:
        """Raises AssertionError on a leak or a lost session; for tests."""
        self._pool.check_invariants()
        self._roster.check_invariants()

    def _check(self, request: OpenRequest, now: float) -> None:
        if request.session in self._roster.sessions:
            raise DuplicateSessionError(f"session {request.session} is open already")
        if not request.prompt:
            raise EmptyPromptError("the prompt has no tokens; send at least one")
        self._check_ids("the prompt", request.prompt)
        self._check_ids("resume", request.resume)
        if request.drafts is not None:
            self._check_ids("a draft", request.drafts.ids)
        check_sampling(request.sampling, self.info)
        if len(request.prompt) >= self._context_limit:
            raise PromptTooLongError(
                f"the prompt has {len(request.prompt)} tokens, but prompt and reply together have "
                f"room for {self._context_limit}; shorten the prompt"
            )
        if request.deadline is not None and request.deadline <= now:
            raise DeadlineError("the deadline had passed when the session was opened")
        if len(self._roster.waiting) >= self.limits.max_queue + self._roster.num_vacant:
            raise OverloadedError(
                f"{len(self._roster.waiting)} sessions are waiting already; come back later",
                retry_delay_ms=self._retry_delay_ms(),
            )

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self.info.vocabulary_size):
            raise InvalidRequestError(
                f"{name} has an id outside 0 .. {self.info.vocabulary_size - 1}; "
                "check that both sides use the same vocabulary"
            )

    def _retry_delay_ms(self) -> int:
        """Time to compute all that is asked for by now: about when the queue has moved on."""
        rows = sum(session.num_missing for session in self._roster.sessions.values())
        return min(_MAX_RETRY_DELAY_MS, 1 + math.ceil(self._cost.predict_ms(rows)))

    def _new_session(self, request: OpenRequest, now: float) -> Session:
        self._num_opened += 1
        rank = (now - request.priority * self.limits.ageing_s, self._num_opened)
        chain = EdgeChain(request.epoch, self.limits.max_lead) if request.edge_drafts else None
        drafter = SuffixDrafter() if request.region_drafts else None
        return Session(
            request,
            rank=rank,
            sampler=Sampler(request.sampling, self.info.vocabulary_size, request.prompt),
            reply=self._new_reply(request.sampling),
            sources=DraftSources(chain, drafter, self._edge_average),
            context_limit=self._context_limit,
            now=now,
        )

    def _land(self, plan: Plan) -> None:
        if plan is not self._in_flight:
            raise RuntimeError("this is not the plan in flight")
        self._in_flight = None
        self._roster.arrive()

    def _is_live(self, part: Part) -> bool:
        return self._roster.sessions.get(part.session.number) is part.session

    def _apply_part(self, part: Part, rows: Rows, started_at: float, now: float) -> list[Event]:
        session = part.session
        if session.computed + part.num_tokens < len(session.ids):
            session.computed += part.num_tokens
            self._pool.commit(session.sequence, session.ids, session.computed)
            return []
        try:
            committed = session.commit(
                rows,
                part.drafts,
                num_guessed=part.num_guessed,
                num_edge=part.num_edge,
                started_at=started_at,
                row_ms=self._cost.row_ms,
                now=now,
            )
        except OutriderError as error:
            return [self._fail(session, error)]
        self._pool.commit(session.sequence, session.ids, session.computed)
        self._pool.truncate(session.sequence, session.computed + self._min_rows)
        return [committed, *self._finish_if_over(session, now)]

    def _finish_if_over(self, session: Session, now: float) -> list[Event]:
        return [] if session.finished is None else [self._finish(session, session.finished, now)]

    def _finish(self, session: Session, reason: FinishReason, now: float) -> Finished:
        self._roster.end(session)
        return Finished(
            session.number, reason, session.num_reply, session.usage(), session.timings(now)
        )

    def _fail(self, session: Session, error: OutriderError) -> Failed:
        self._roster.end(session)
        return Failed(session.number, error)
