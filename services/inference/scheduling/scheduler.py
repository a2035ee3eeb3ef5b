"""The scheduler of one model replica: decide, let the engine run, apply.

Every tick takes all ready sessions into one call, together with chunks of waiting prompts: the
engine never idles while a session is ready. Sessions that share a call do not change each other's
text. No timer holds a batch back: calls come one after the other, so whoever arrives while the
engine is busy waits for the call's end anyway and is gathered there with all others. The call
itself is the batch window; at rest there is none, since one would only delay the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.engines.base import EngineInfo, Rows
from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    EngineError,
    OutriderError,
)
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply
from outrider.sampling.sampler import Sampler
from outrider.session_types import FinishReason, Priority
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.inference.kv.events import BlockEvent
from services.inference.kv.pool import KvPool
from services.inference.scheduling.budget import CostModel
from services.inference.scheduling.drafting.learned import Learned, LearnedByGroup
from services.inference.scheduling.drafting.sources import DraftSources, EdgeChain
from services.inference.scheduling.events import (
    Drafts,
    Event,
    Failed,
    Finished,
    Load,
    Opened,
    OpenRequest,
)
from services.inference.scheduling.limits import SchedulerLimits, context_limit
from services.inference.scheduling.planning import Part, Plan, Planner
from services.inference.scheduling.policy import report
from services.inference.scheduling.policy.admission import Admission
from services.inference.scheduling.policy.checks import check_ids, check_request
from services.inference.scheduling.policy.decode_cost import DecodeCost
from services.inference.scheduling.roster import Roster
from services.inference.scheduling.session import Session, State


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
        new_reply: Callable[[SamplingParams], Reply],
        prior: NgramPrior | None = None,
    ) -> None:
        """`prior`: what the model often says, for drafts. Raises ConfigError if the limits
        cannot serve this engine."""
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
        self._decode_cost = DecodeCost(limits.fixed_ms, limits.row_ms, info.sizing)
        self._planner = Planner(
            info, limits, self._pool, self._roster, self._cost, self._decode_cost
        )
        self._learned = LearnedByGroup(prior)
        self._admission = Admission(limits, self._roster, self._cost)
        self._num_opened = 0
        self._in_flight: Plan | None = None
        self._timed: tuple[Plan, float] | None = None
        """The last call and its milliseconds, if nothing was learned from them yet."""

    @property
    def has_work(self) -> bool:
        """Whether decide() would return a plan."""
        return bool(self._roster.sessions) or self._roster.has_news

    def open(self, request: OpenRequest, now: float) -> list[Event]:
        """Take a session into the queue; a reply that `resume` already completes ends at once.

        Raises DuplicateSessionError, EmptyPromptError, InvalidRequestError (ids outside the
        vocabulary, resume past the reply's end), InvalidSamplingError, PromptTooLongError,
        DeadlineError for a deadline that cannot be met, and OverloadedError with a retry delay
        when the queue is full or the first token would miss the class's objective.
        """
        self._check(request, now)
        session = self._new_session(request, now)
        session.held = cached = self._pool.match(session.ids, request.cache_salt)
        if session.finished is None:
            self._admission.check_time(session, cached, now)
        opened = Opened(request.session, len(request.prompt), min(cached, len(request.prompt)))
        self._roster.add(session)
        self._planner.pace.opened(request.priority, now)
        if request.drafts is not None:
            self.draft(request.session, request.drafts, now)
        return [opened, *self._finish_if_over(session, now)]

    def draft(self, session: int, drafts: Drafts, now: float) -> None:
        """Keep an edge's guesses for the next calls; for a session that is gone they are void.

        Raises InvalidRequestError for ids outside the vocabulary.
        """
        check_ids("a draft", drafts.ids, self.info)
        live = self._roster.sessions.get(session)
        if live is not None and live.sources.chain is not None:
            live.sources.chain.receive(drafts, live.ids, len(live.request.prompt))

    def cancel(self, session: int, now: float) -> list[Event]:
        """End a session at once; nothing for one that is gone already."""
        live = self._roster.sessions.get(session)
        return [] if live is None else [self._finish(live, FinishReason.CANCELLED, now)]

    def expire(self, now: float) -> list[Event]:
        """End the sessions whose deadline has come, or comes before their next token can."""
        late = [s for s in self._roster.sessions.values() if self._is_late(s, now)]
        return [self._finish(session, FinishReason.DEADLINE, now) for session in late]

    def _is_late(self, session: Session, now: float) -> bool:
        deadline = session.request.deadline
        if deadline is None or deadline <= now:
            return deadline is not None
        if self._in_flight is not None or not self._admission.is_late(session, now):
            return False
        cached = self._pool.match(session.ids, session.request.cache_salt)
        return self._admission.is_late(session, now, cached)

    def decide(self, now: float) -> Plan | None:
        """The next engine call; None when there is nothing to do."""
        if self._in_flight is not None:
            raise RuntimeError("the last plan was neither applied nor failed")
        level = self._admission.update(self._rank(Priority.MEDIUM, now), now)
        plan = self._planner.plan(now, level)
        if plan is not None:
            self._in_flight = plan
            self._roster.depart(frozenset(round.sequence for round in plan.rounds))
        return plan

    def study(self) -> None:
        """Learn from the last call, what it committed and how long it took, for later ones, and
        draw the noise for the rows of this one: best while the engine computes."""
        self._learn_cost()
        if self._in_flight is not None:
            for part, asked in zip(self._in_flight.parts, self._in_flight.rounds, strict=True):
                part.session.sources.study()
                part.session.foresee(asked.num_rows)

    def apply(self, plan: Plan, rows: Sequence[Rows], now: float) -> list[Event]:
        """Take the engine's answer, one Rows per round: commit, finish, free."""
        if len(rows) != len(plan.rounds):
            wrong = f"the engine answered {len(plan.rounds)} rounds with {len(rows)}"
            return self.fail(plan, EngineError(wrong))
        self._land(plan)
        if plan.rounds:
            self._learn_cost()
            self._timed = plan, (now - plan.decided_at) * 1e3
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
        holders = (*self._roster.running, *self._roster.paused)
        doomed = [session for session in holders if session.sequence in lost]
        return [self._fail(session, error) for session in doomed]

    def load(self) -> Load:
        """A snapshot for routers."""
        return report.load(self._roster, self._pool, self._cost, self.limits, self._admission)

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
        check_request(request, self.info, self._context_limit)
        if request.deadline is not None and request.deadline <= now:
            raise DeadlineError("the deadline had passed when the session was opened")
        self._admission.check_room(request.priority)

    def _rank(self, priority: Priority, now: float) -> tuple[float, int]:
        return now - priority * self.limits.ageing_s, self._num_opened

    def _new_session(self, request: OpenRequest, now: float) -> Session:
        self._num_opened += 1
        chain = EdgeChain(request.epoch, self.limits.max_lead) if request.edge_drafts else None
        learned = self._learned.of(request.cache_salt)
        drafter = _new_drafter(request, learned) if request.region_drafts else None
        return Session(
            request,
            rank=self._rank(request.priority, now),
            sampler=Sampler(request.sampling, self.info.vocabulary_size, request.prompt),
            reply=self._new_reply(request.sampling),
            sources=DraftSources(chain, drafter, learned.edge),
            context_limit=self._context_limit,
            now=now,
        )

    def _learn_cost(self) -> None:
        """From the last call that was timed."""
        if self._timed is None:
            return
        (plan, duration_ms), self._timed = self._timed, None
        self._cost.observe(plan.num_tokens, duration_ms, plan.context)
        if plan.is_decode:
            self._decode_cost.observe(plan.num_tokens, duration_ms, self._cost.row_ms)

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
                started_at=started_at,
                row_ms=self._cost.row_ms,
                now=now,
            )
        except OutriderError as error:
            return [self._fail(session, error)]
        if part.look is not None:
            num_committed = len(committed.accepted_ids) + len(committed.ids)
            session.watch.observe(part.look, num_committed)
        self._pool.commit(session.sequence, session.ids, session.computed)
        self._pool.truncate(session.sequence, session.computed + self._min_rows)
        return [committed, *self._finish_if_over(session, now)]

    def _finish_if_over(self, session: Session, now: float) -> list[Event]:
        return [] if session.finished is None else [self._finish(session, session.finished, now)]

    def _finish(self, session: Session, reason: FinishReason, now: float) -> Finished:
        if session.num_reply and session.state is not State.WAITING:
            self._admission.stayed(session.stay_ms(now))
        self._roster.end(session)
        return Finished(
            session.number, reason, session.num_reply, session.usage(), session.timings(now)
        )

    def _fail(self, session: Session, error: OutriderError) -> Failed:
        self._roster.end(session)
        return Failed(session.number, error)


def _new_drafter(request: OpenRequest, learned: Learned) -> SuffixDrafter:
    return SuffixDrafter(
        statistics=learned.phrases,
        num_prompt=len(request.prompt),
        sampled=request.sampling.temperature > 0.0,
    )
