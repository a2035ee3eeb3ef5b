"""The scheduler of one model replica: schedule a batch, let the engine run it, verify.

Every batch takes all ready sessions, together with chunks of waiting prompts: the engine never
idles while a session is ready. Sessions that share a call do not change each other's text. No timer
holds a batch back: calls follow each other, so sessions that arrive while the engine is busy wait
for the call's end anyway and are gathered there. The call itself is the batch window; an idle
replica has none, since it would only delay the first token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Final

from outrider.engine_calls import SESSIONS_IN_CALL
from outrider.engines.base import EngineInfo, LogitsRows
from outrider.errors import (
    DeadlineError,
    DuplicateSessionError,
    EngineError,
    OutriderError,
)
from outrider.sampling import whole_rows
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply
from outrider.sampling.sampler import Sampler
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason, Priority
from outrider.speculation.learnt import BINDING_BYTES, KeptGroups, Learnt
from outrider.speculation.ngrams import NgramPrior
from outrider.speculation.prediction_drafter import PredictionDrafter
from outrider.speculation.suffix_drafter import SuffixDrafter
from services.inference.kv.events import BlockEvent
from services.inference.kv.pool import KvPool, NamedBlock
from services.inference.scheduler.admission import Admission, check_ids, check_request
from services.inference.scheduler.background import BackgroundShare
from services.inference.scheduler.batch import Batch, BatchBuilder, ScheduledSequence
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel, attention_work
from services.inference.scheduler.draft_sources import (
    DraftSources,
    EdgeChain,
    GroupStatisticsTable,
)
from services.inference.scheduler.kv_forecast import KvForecast
from services.inference.scheduler.limits import SchedulerLimits, context_limit
from services.inference.scheduler.queues import SessionQueues
from services.inference.scheduler.session import SchedulingState, Session
from services.inference.scheduler.types import (
    ClassLoad,
    Event,
    Failed,
    Finished,
    KvHits,
    Opened,
    OpenRequest,
    SchedulerLoad,
    SessionCommit,
)

_FREE_SHARE: Final = 0.25
"""Share of the pool that has to stay free, or be cached for nobody who runs, when blocks are kept
ahead of need."""
_KEPT: Final = "ahead"


class Scheduler:
    """Sessions in, engine calls out, committed tokens out.

    Calls alternate: every batch of schedule() is answered by verify(), postprocess() or fail()
    before the next. open, draft, cancel and expire may come at any time, also in between. Times are
    seconds on any monotonic clock. Raises RuntimeError only for misuse of this order.
    """

    def __init__(
        self,
        info: EngineInfo,
        limits: SchedulerLimits,
        new_reply: Callable[[SamplingParams], Reply],
        prior: NgramPrior | None = None,
        kept: KeptGroups | None = None,
        *,
        num_stored: int = 0,
    ) -> None:
        """`prior`: n-grams that the model is known to produce, for drafts; `kept`: what groups'
        replies taught before; `num_stored`: leading tokens of a prompt that a store may have.
        Raises ConfigError if the limits cannot serve this engine."""
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
        self._queues = SessionQueues(self._pool, limits.max_sessions, self._min_rows)
        self._kv_forecast = KvForecast(self._pool, self._queues)
        self._cost = CostModel(limits.fixed_ms, limits.row_ms, info.sizing)
        self._decode_cost = DecodeCostModel(limits.fixed_ms, limits.row_ms, info.sizing)
        self._builder = BatchBuilder(
            info, limits, self._pool, self._queues, self._cost, self._decode_cost
        )
        if kept is None:
            kept = KeptGroups(bytes(BINDING_BYTES), info.vocabulary_size, 0)
        self._kept = kept
        self._statistics = GroupStatisticsTable(prior, self._kept.restore)
        self._admission = Admission(limits, self._queues, self._cost)
        self._background = BackgroundShare(limits.max_background_share)
        self._num_stored = num_stored
        self._num_opened = 0
        self._num_prompt_tokens = self._num_cached_tokens = 0
        """Counts of sessions that have ended."""
        self._num_held = 0
        self._in_flight: Batch | None = None
        self._untold: list[tuple[ScheduledSequence, Commit, Batch]] = []
        """Commits of the last call, for take_committed()."""
        self._verified_at = 0.0
        self._timed: tuple[Batch, float] | None = None
        """The last call and its milliseconds, until the cost models have learned from them."""

    # A tick: schedule, run (Batch.run), verify; the rest of it while the next call computes.

    def schedule(self, now: float) -> Batch | None:
        """The next engine call; None when there is nothing to do."""
        if self._in_flight is not None:
            raise RuntimeError("the last batch was neither postprocessed nor failed")
        level = self._admission.update_level(self._rank(Priority.MEDIUM, now), now)
        batch = self._builder.build(now, level)
        if batch is not None:
            self._in_flight = batch
            self._queues.begin_in_flight(frozenset([part.sequence for part in batch.slices]))
        return batch

    def overlapped_work(self) -> None:
        """Learn from the last call's commits and duration; prepare noise and grammar masks for the
        rows of this one; plan the next one. To be called while the engine computes
        (Engine.step)."""
        self._update_cost()
        if self._in_flight is not None:
            for one, part in zip(self._in_flight.scheduled, self._in_flight.slices, strict=True):
                one.session.sources.update_estimates()
                if part.num_rows:
                    one.session.prepare_rows(one.drafts)
            self._builder.plan_ahead(self._in_flight)

    def postprocess(self, batch: Batch, rows: Sequence[LogitsRows], now: float) -> list[Event]:
        """verify() and all that it leaves: for callers that have no call to do the rest in."""
        return [*self.verify(batch, rows, now), *self.take_committed()]

    def verify(self, batch: Batch, rows: Sequence[LogitsRows], now: float) -> list[Event]:
        """Verify the engine's answer, one LogitsRows per slice; returns the events that the next
        call depends on. Commits of sessions that continue are left for take_committed()."""
        events = self.take_committed()
        if len(rows) != len(batch.slices):
            wrong = f"the engine answered {len(batch.slices)} slices with {len(rows)}"
            return events + self.fail(batch, EngineError(wrong))
        self._end_in_flight(batch)
        if batch.slices:
            self._update_cost()
            self._timed = batch, (now - batch.scheduled_at) * 1e3
            if batch.is_background:
                self._background.charge(now - batch.scheduled_at, now)
        self._verified_at = now
        choices = _choose_together(batch, rows)
        for index, (one, answer) in enumerate(zip(batch.scheduled, rows, strict=True)):
            session = one.session
            if session.state is SchedulingState.ENDED:
                continue  # while the engine computed
            end = session.num_computed + one.num_tokens
            if end < len(session.ids):
                session.num_computed = end
                self._pool.commit(session.sequence, session.ids, end)
            else:
                self._verify(one, answer, choices.get(index, ()), batch, events)
        return events

    def take_committed(self) -> list[Event]:
        """Commits of the last verify() that it did not return itself. Can be called while the
        engine computes; until then they are not sent."""
        if not self._untold:
            return []
        untold, self._untold = self._untold, []
        return [self._committed(*entry) for entry in untold]

    def fail(self, batch: Batch, error: OutriderError) -> list[Event]:
        """The engine call failed: the sessions in it, and those it was to open or copy blocks for,
        end with this error, which has their number; the others continue."""
        events = self.take_committed()
        self._end_in_flight(batch)
        lost = {part.sequence for part in batch.slices} | {new.sequence for new in batch.opened}
        lost |= {copy.sequence for copy in batch.copies}
        with_kv = (*self._queues.running, *self._queues.paused)
        doomed = [session for session in with_kv if session.sequence in lost]
        error.metadata[SESSIONS_IN_CALL] = str(len(doomed))
        return events + [self._fail(session, error) for session in doomed]

    def _end_in_flight(self, batch: Batch) -> None:
        if batch is not self._in_flight:
            raise RuntimeError("this is not the batch in flight")
        self._in_flight = None
        self._queues.end_in_flight()

    def _verify(
        self,
        one: ScheduledSequence,
        rows: LogitsRows,
        choices: Sequence[int],
        batch: Batch,
        events: list[Event],
    ) -> None:
        session, before = one.session, one.session.num_computed
        has_begun = session.state is SchedulingState.DECODING
        try:
            commit = session.verify(rows, one.drafts, one.num_drafts, choices)
        except OutriderError as error:
            events.append(self._fail(session, error))
            return
        if self._pool.is_inexact(session.sequence):
            commit = session.mark_inexact(commit)
        if one.attempt is not None:
            session.sources.backoff.observe(one.attempt, commit.upto - commit.base)
        num_computed = session.num_computed
        block_tokens = self._pool.block_tokens
        if not has_begun or before // block_tokens != num_computed // block_tokens:
            self._pool.commit(session.sequence, session.ids, num_computed)
        if one.drafts:
            self._pool.truncate(session.sequence, num_computed + self._min_rows)
        if has_begun and session.finished is None:
            self._untold.append((one, commit, batch))
            return
        events.append(self._committed(one, commit, batch))
        if session.finished is not None:
            events.append(self._finish(session, session.finished, self._verified_at))

    def _committed(self, one: ScheduledSequence, commit: Commit, batch: Batch) -> SessionCommit:
        return one.session.committed(
            commit,
            started_at=batch.scheduled_at,
            row_ms=self._decode_cost.row_ms,
            now=self._verified_at,
            drafts_ms=self._drafts_ms(one, batch) if one.drafts else 0.0,
        )

    def _drafts_ms(self, one: ScheduledSequence, batch: Batch) -> float:
        """By how much one session's drafts made a call longer."""
        num_added = one.num_tokens + one.num_drafts - max(one.num_tokens, self._min_rows)
        if num_added <= 0 or not batch.is_decode:
            return 0.0
        rows, cost = batch.num_tokens, self._decode_cost
        return max(0.0, cost.predict_ms(rows) - cost.predict_ms(rows - num_added))

    def _update_cost(self) -> None:
        """From the last call that was timed."""
        if self._timed is None:
            return
        (batch, duration_ms), self._timed = self._timed, None
        num_tokens = batch.num_tokens
        self._cost.observe(num_tokens, duration_ms, batch.attention_work)
        if batch.is_decode:
            reading = sum([attention_work(self._min_rows, part.past) for part in batch.slices])
            self._decode_cost.observe(
                num_tokens, duration_ms, self._cost.row_ms, reading, self._cost.attention_ms
            )

    # Sessions come and go.

    @property
    def has_work(self) -> bool:
        """Whether schedule() would return a batch."""
        return bool(self._queues.sessions) or self._queues.has_sequence_changes

    def open(self, request: OpenRequest, now: float) -> list[Event]:
        """Take a session into the queue; a reply that `resume` already completes ends at once.

        Raises DuplicateSessionError, EmptyPromptError, InvalidRequestError (ids outside the
        vocabulary, resume past the reply's end), InvalidSamplingError, PromptTooLongError,
        DeadlineError for a deadline that cannot be met, and OverloadedError with a retry delay
        when the queue is full or the first token would miss the class's objective.
        """
        if request.session_id in self._queues.sessions:
            raise DuplicateSessionError(f"session {request.session_id} is open already")
        check_request(request, self.info, self._context_limit)
        if request.deadline is not None and request.deadline <= now:
            raise DeadlineError("the deadline had passed when the session was opened")
        if request.is_background:
            self._admission.check_background(self._background, now)
        else:
            self._admission.check_room(request.priority)
        session = self._new_session(request, now)
        num_cached = self._pool.match(session.ids, request.cache_salt, request.static_salts)
        session.cached_at_arrival = num_cached
        session.shared_at_arrival = self._pool.num_used(
            session.ids, request.cache_salt, request.static_salts
        )
        session.num_loadable = max(session.num_loadable, self._num_stored)
        if session.finished is None:
            self._admission.check_time(session, num_cached, now)
        num_prompt = len(request.prompt)
        opened = Opened(request.session_id, num_prompt, min(num_cached, num_prompt))
        self._queues.add(session)
        self._builder.prefill_budget.session_opened(request.priority, now)
        if request.drafts is not None:
            self.draft(request.session_id, request.drafts, now)
        if session.finished is None:
            return [opened]
        return [opened, self._finish(session, session.finished, now)]

    def draft(self, session: int, drafts: Draft, now: float) -> None:
        """Keep an edge's drafts for the next calls; for a session that is gone they are void.

        Raises InvalidRequestError for ids outside the vocabulary.
        """
        check_ids("a draft", drafts.ids, self.info)
        live = self._queues.sessions.get(session)
        if live is not None and live.sources.chain is not None:
            live.sources.chain.receive(drafts, live.ids, len(live.request.prompt))

    # KV that comes from elsewhere, or goes there.

    def is_waiting(self, session: int) -> bool:
        """Whether it has no KV table yet, or none at the moment."""
        live = self._queues.sessions.get(session)
        return live is not None and live.state is SchedulingState.WAITING

    def add_loaded(
        self, session: int, index: int, tier: str, *, is_inexact: bool = False
    ) -> int | None:
        """The physical block for the KV of the session's block `index`, which must be written
        before the next call; None if it is not needed, there is no room, or it `is_inexact` and the
        session takes exact KV alone. It counts as computed once all tokens before it are."""
        live = self._queues.sessions.get(session)
        if live is None or live.state is not SchedulingState.PREFILLING:
            return None
        if is_inexact and not live.request.takes_inexact_kv:
            return None
        return self._pool.add_loaded(live.sequence, index, live.ids, tier, is_inexact=is_inexact)

    def drop_loaded(self, session: int, index: int) -> None:
        """The block of add_loaded() could not be written."""
        live = self._queues.sessions.get(session)
        if live is not None and live.state is SchedulingState.PREFILLING:
            self._pool.drop_loaded(live.sequence, index)

    def hold_prefix(
        self, hashes: Sequence[bytes], *, takes_inexact: bool = False
    ) -> tuple[int, list[NamedBlock]]:
        """A number for release_prefix(), and the named blocks of the prefix that ends with the
        first of these hashes that is cached, without inexact ones unless it `takes_inexact`: until
        then they stay as they are, to be copied out. With no block nothing is held."""
        self._num_held += 1
        number = -self._num_held  # the queues number sequences from 1
        return number, self._pool.hold(number, hashes, takes_inexact=takes_inexact)

    def release_prefix(self, number: int) -> None:
        """The copies are made. A prefix that is never released is pinned."""
        self._pool.release(number)

    def may_keep(self, num_blocks: int) -> bool:
        """Whether there is room for blocks that no session here needs yet: nobody waits, no work is
        shed, and so much stays free that running replies find room."""
        is_calm = not self._queues.waiting and not self._admission.level
        return is_calm and self._pool.num_free - num_blocks >= self._pool.num_blocks * _FREE_SHARE

    def follow_prefix(self, ids: Sequence[int], salt: bytes) -> tuple[int, int]:
        """A number for release_prefix(), to keep blocks of these ids under it, and how many leading
        blocks are cached. Raises InvalidRequestError for ids outside the vocabulary."""
        check_ids("a prefix to keep", ids, self.info)
        self._num_held += 1
        number = -self._num_held
        return number, self._pool.follow(number, ids, salt)

    def add_kept(self, number: int, index: int, ids: Sequence[int]) -> int | None:
        """The physical block for the KV of block `index`, which must be written before
        publish_kept(); None if it is cached already, or there is no room."""
        return self._pool.add_loaded(number, index, ids, _KEPT)

    def drop_kept(self, number: int, index: int) -> None:
        """The block of add_kept() could not be written."""
        self._pool.drop_loaded(number, index)

    def publish_kept(self, number: int, ids: Sequence[int]) -> int:
        """Any session of the salt may use what was written; returns how many leading blocks of the
        ids are cached now."""
        return self._pool.publish_kept(number, ids)

    def cancel(self, session: int, now: float) -> list[Event]:
        """End a session at once; nothing for one that is gone already."""
        live = self._queues.sessions.get(session)
        if live is None:
            return []
        return [*self.take_committed(), self._finish(live, FinishReason.CANCELLED, now)]

    def expire(self, now: float) -> list[Event]:
        """End the sessions whose deadline has passed, or comes before their next token can."""
        late = [s for s in self._queues.sessions.values() if self._is_late(s, now)]
        if not late:
            return []
        events = self.take_committed()
        return events + [self._finish(session, FinishReason.DEADLINE, now) for session in late]

    def _is_late(self, session: Session, now: float) -> bool:
        deadline = session.request.deadline
        if deadline is None or deadline <= now:
            return deadline is not None
        forecast = self._admission.forecast
        if self._in_flight is not None or not forecast.is_late(session, now):
            return False
        request = session.request
        num_cached = self._pool.match(session.ids, request.cache_salt, request.static_salts)
        return forecast.is_late(session, now, num_cached)

    def _rank(self, priority: Priority, now: float) -> tuple[float, int]:
        return now - priority * self.limits.ageing_s, self._num_opened

    def _rank_of(self, request: OpenRequest, now: float) -> tuple[float, int]:
        """Waiting never brings a background session before another one."""
        if request.is_background:
            return math.inf, self._num_opened
        return self._rank(request.priority, now)

    def _new_session(self, request: OpenRequest, now: float) -> Session:
        self._num_opened += 1
        if request.group_lasts:
            self._kept.admit(request.cache_salt)
        statistics = self._statistics.of(request.cache_salt)
        chain = EdgeChain(request.epoch, self.limits.max_lead) if request.edge_drafts else None
        drafter = prediction = None
        if request.region_drafts and request.prediction:
            prediction = PredictionDrafter(request.prediction)
            if request.resume:
                prediction.resume(request.resume)
        if request.region_drafts:
            drafter = SuffixDrafter(
                statistics=statistics.phrases,
                num_prompt=len(request.prompt),
                sampled=request.sampling.temperature > 0.0,
            )
        return Session(
            request,
            rank=self._rank_of(request, now),
            sampler=Sampler(
                request.sampling, self.info.vocabulary_size, request.prompt, request.constraint
            ),
            reply=self._new_reply(request.sampling),
            sources=DraftSources(
                chain,
                drafter,
                statistics.edge_acceptance,
                request.constraint,
                drafts_forced=request.region_drafts,
                prediction=prediction,
            ),
            context_limit=self._context_limit,
            now=now,
        )

    def _finish(self, session: Session, reason: FinishReason, now: float) -> Finished:
        if session.num_reply and session.state is not SchedulingState.WAITING:
            if not session.is_background:
                self._admission.forecast.observe_service(session.service_ms(now), session.num_reply)
        self._queues.end(session)
        usage = session.usage()
        if not session.is_background:
            self._num_prompt_tokens += usage.prompt_tokens
            self._num_cached_tokens += usage.cached_tokens
        return Finished(
            session_id=session.session_id,
            reason=reason,
            upto=session.num_reply,
            usage=usage,
            timings=session.timings(now),
        )

    def _fail(self, session: Session, error: OutriderError) -> Failed:
        self._queues.end(session)
        return Failed(session.session_id, error)

    # What others are told.

    def load(self) -> SchedulerLoad:
        """A snapshot for routers. Background sessions are in nobody's way, and not counted."""
        queues = self._queues
        reply_tokens = math.ceil(self._admission.forecast.reply_tokens)
        self._kv_forecast.update(reply_tokens)
        return SchedulerLoad(
            running_sessions=len(queues.foreground(queues.running)),
            queued_sessions=len(queues.foreground(queues.waiting)),
            queued_prompt_tokens=_prompt_tokens(queues.foreground([*queues.sessions.values()])),
            kv_blocks_total=self._pool.num_blocks,
            kv_blocks_free=self._pool.num_free,
            fixed_ms=self._cost.fixed_ms,
            row_ms=self._cost.row_ms,
            max_sessions=self.limits.max_sessions,
            max_queue=self.limits.max_queue,
            is_cost_guessed=self._cost.is_guess,
            paused_sessions=len(queues.foreground(queues.paused)),
            overload_level=self._admission.level,
            low=self._class_load(Priority.LOW),
            medium=self._class_load(Priority.MEDIUM),
            service_ms=self._admission.forecast.service_ms,
            kv_blocks_owed=self._kv_forecast.num_owed,
            reply_tokens=reply_tokens,
            kv_hits=KvHits(
                self._num_prompt_tokens,
                self._num_cached_tokens,
                tuple(self._pool.loaded_tokens.items()),
            ),
        )

    def _class_load(self, priority: Priority) -> ClassLoad:
        queues = self._queues
        found = [s for s in (*queues.running, *queues.waiting) if s.standing == priority]
        num_blocks = self._kv_forecast.of_class(priority)
        return ClassLoad(len(found), _prompt_tokens(found), num_blocks)

    def take_learnt(self) -> list[tuple[bytes, Learnt]]:
        """A copy of what may be kept of the next group with new statistics, if any. The next call
        waits for it: some milliseconds if its tables are full."""
        return list(islice(self._kept.changed(self._statistics), 1))

    def record_blocks(self) -> None:
        """Record changes of the prefix cache from now on; the caller must take them by
        take_block_events()."""
        self._pool.record()

    def take_block_events(self) -> tuple[BlockEvent, ...]:
        """Changes of the prefix cache since the last take."""
        return self._pool.take_events()

    def check_invariants(self) -> None:
        """Raises AssertionError on a leak or a lost session; for tests."""
        self._pool.check_invariants()
        self._queues.check_invariants()


def _prompt_tokens(sessions: Iterable[Session]) -> int:
    """Prompt tokens still to be computed; the next token of a reply is not one."""
    return sum([s.num_uncached for s in sessions if s.num_uncomputed > 1])


def _choose_together(batch: Batch, rows: Sequence[LogitsRows]) -> dict[int, list[int]]:
    """Choices for the rows of each slice, by the slice's place in the batch, for the sessions whose
    choices can be made together. Choices behind a wrong draft are wasted, so a single session is
    left out: it is chosen for only as far as drafts are right."""
    sampled = [
        (index, one.session, answer)
        for index, (one, answer) in enumerate(zip(batch.scheduled, rows, strict=True))
        if one.session.only_noise_decides
    ]
    if len(sampled) < 2:
        return {}
    rivals = {index: session.rivals(answer) for index, session, answer in sampled}
    chosen = iter(whole_rows.choose(list(chain.from_iterable(rivals.values()))))
    return {index: list(islice(chosen, len(of_slice))) for index, of_slice in rivals.items()}
