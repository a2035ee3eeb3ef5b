"""One session in the scheduler: its tokens, its state, and what a call commits to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum, auto

from outrider.engines.base import LogitsRows
from outrider.errors import InvalidRequestError
from outrider.sampling.reply import Reply
from outrider.sampling.sampler import Sampler
from outrider.sampling.whole_rows import Rivals
from outrider.session.region import Commit
from outrider.session.types import AcceptanceCount, FinishReason, Timings, Usage
from outrider.speculation.verification import verify
from services.inference.scheduler.draft_sources import DraftSources
from services.inference.scheduler.types import OpenRequest, SessionCommit

_INTERVAL_SMOOTHING = 0.25
"""Weight of the last commit interval in the average."""


class SchedulingState(IntEnum):
    """All but WAITING and ENDED sessions hold KV."""

    WAITING = auto()
    """In the queue."""
    PREFILLING = auto()
    """Running; nothing committed since it was admitted."""
    DECODING = auto()
    """Running."""
    PAUSED = auto()
    """In the middle of its reply, taken out of the calls; its KV is kept."""
    ENDED = auto()


class SessionInput(IntEnum):
    """Inputs of a session's state machine."""

    ADMIT = auto()
    """It gets a KV table."""
    COMMIT = auto()
    """Rows behind its last token were verified."""
    PREEMPT = auto()
    """Its KV is dropped, to be computed again later."""
    PAUSE = auto()
    """It is taken out of the calls and keeps its KV."""
    RESUME = auto()
    """It takes part in every call again."""
    END = auto()
    """It finished, failed, was cancelled or reached its deadline."""


TRANSITIONS: dict[SchedulingState, dict[SessionInput, SchedulingState]] = {
    SchedulingState.WAITING: {
        SessionInput.ADMIT: SchedulingState.PREFILLING,
        SessionInput.END: SchedulingState.ENDED,
    },
    SchedulingState.PREFILLING: {
        SessionInput.COMMIT: SchedulingState.DECODING,
        SessionInput.PREEMPT: SchedulingState.WAITING,
        SessionInput.END: SchedulingState.ENDED,
    },
    SchedulingState.DECODING: {
        SessionInput.COMMIT: SchedulingState.DECODING,
        SessionInput.PAUSE: SchedulingState.PAUSED,
        SessionInput.PREEMPT: SchedulingState.WAITING,
        SessionInput.END: SchedulingState.ENDED,
    },
    SchedulingState.PAUSED: {
        SessionInput.COMMIT: SchedulingState.PAUSED,  # a starvation turn
        SessionInput.RESUME: SchedulingState.DECODING,
        SessionInput.PREEMPT: SchedulingState.WAITING,
        SessionInput.END: SchedulingState.ENDED,
    },
    SchedulingState.ENDED: {},
}


class _SessionTimes:
    """When things first happened to a session, infinity until then, and how often it commits."""

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.admitted_at = math.inf
        self.first_commit_at = math.inf
        self._last_commit_at = now
        self._is_interval_measured = False
        self.interval_ms = 0.0
        """Between commits, smoothed; without what drafts of the edge added."""

    def committed(self, started_at: float, now: float, drafts_ms: float) -> None:
        """The first commit has no interval yet: the duration of its call, which began at
        `started_at`, stands in until the second. The edge's drafts made the call longer by an
        estimated `drafts_ms`, which is subtracted, up to half of the interval."""
        interval_ms = (now - self._last_commit_at) * 1e3
        interval_ms -= min(drafts_ms, interval_ms / 2)
        if self.first_commit_at == math.inf:
            self.first_commit_at = now
            self.interval_ms = (now - started_at) * 1e3
        elif not self._is_interval_measured:
            self._is_interval_measured = True
            self.interval_ms = interval_ms
        else:
            self.interval_ms += _INTERVAL_SMOOTHING * (interval_ms - self.interval_ms)
        self._last_commit_at = now

    def timings(self, now: float) -> Timings:
        admitted_at = min(self.admitted_at, now)
        first_commit_at = min(self.first_commit_at, now)
        return Timings(
            queue_ms=(admitted_at - self.opened_at) * 1e3,
            prefill_ms=(first_commit_at - admitted_at) * 1e3,
            ttft_ms=(first_commit_at - self.opened_at) * 1e3,
            total_ms=(now - self.opened_at) * 1e3,
        )


class Session:
    """Invariant: 0 <= num_computed < len(ids), and KV exists for exactly ids[:num_computed]."""

    def __init__(
        self,
        request: OpenRequest,
        *,
        rank: tuple[float, int],
        sampler: Sampler,
        reply: Reply,
        sources: DraftSources,
        context_limit: int,
        now: float,
    ) -> None:
        """Sessions of lower `rank` are served first. Raises InvalidRequestError if resume goes past
        the reply's end, or is none that the grammar allows."""
        self.request = request
        self.session_id = request.session_id
        self.priority = request.priority
        self.is_background = request.is_background
        self.standing = 0 if request.is_background else int(request.priority)
        """The class by which sessions give way to others: background ones stand below LOW."""
        self.rank = rank
        self.is_sampled = request.sampling.temperature > 0.0
        self.state = SchedulingState.WAITING
        self.sequence = 0
        """The engine's number of this stay in the pool; a new one after every preemption."""
        self.ids = list(request.prompt)
        """Prompt and committed reply."""
        self.num_computed = 0
        self.cached_tokens = 0
        """Prompt tokens that were reused before the first commit."""
        self.cached_at_arrival = 0
        """Tokens of `ids` whose KV was in the prefix cache when the session was opened."""
        self.shared_at_arrival = 0
        """Blocks of `ids` that other sessions had when it was opened."""
        holder = request.kv_holder
        self.num_loadable = 0 if holder is None else holder.num_tokens
        """Leading tokens of `ids` whose KV may come from elsewhere; the rest must be computed."""
        self.last_scheduled_at = now
        """When it last took part in a call, or got its KV table."""
        self.has_begun = False
        """Whether it has taken part in a call."""
        self.sources = sources
        self.finished: FinishReason | None = None
        self._is_marked = False
        """Whether a commit said that the reply is inexact."""
        self._num_prompt = len(request.prompt)
        self._epoch = request.epoch
        self._context_limit = context_limit
        self._most_ids = min(self._num_prompt + request.sampling.max_tokens, context_limit)
        """Tokens of prompt and reply where this ends at the latest."""
        self._times = _SessionTimes(now)
        self._sampler = sampler
        self.only_noise_decides = sampler.only_noise_decides
        """See Sampler."""
        self._reply = reply
        self._had_edge_drafts = False
        """Whether drafts of the edge were offered for its last call."""
        self._accepted_edge_tokens = 0
        self._acceptance: Counter[tuple[int, int]] = Counter()
        """Calls by their numbers of verified and of accepted drafts."""
        self._resume(request.resume)

    def _resume(self, ids: Sequence[int]) -> None:
        for token in ids:
            if self.finished is not None:
                raise InvalidRequestError(
                    f"resume has {len(ids)} tokens, but the reply ended after {self.num_reply}; "
                    "send only what was committed"
                )
            self._sampler.observe(token)
            self._append(token)

    @property
    def goes_alone(self) -> bool:
        """Whether it must be alone in its next call: until it has a token from here."""
        return self.request.goes_alone and self._times.first_commit_at == math.inf

    @property
    def num_reply(self) -> int:
        """Committed tokens of the reply, resumed ones included."""
        return len(self.ids) - self._num_prompt

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV must be computed before the next one can be chosen."""
        return len(self.ids) - self.num_computed

    @property
    def num_uncached(self) -> int:
        """num_uncomputed, less what was cached at arrival: an estimate, the cache may have lost
        it."""
        return len(self.ids) - max(self.num_computed, self.cached_at_arrival)

    def expected_tokens(self, reply_tokens: int) -> int:
        """Tokens of prompt and reply at its end, if replies have `reply_tokens` tokens; 0: if it
        has as many as it may."""
        if not reply_tokens:
            return self._most_ids
        return min(self._most_ids, max(len(self.ids), self._num_prompt + reply_tokens))

    @property
    def max_drafts(self) -> int:
        """Most drafts that are of use: the row behind the last one may still commit a token."""
        return self._most_ids - len(self.ids) - 1

    def transition(self, what: SessionInput) -> None:
        """Change the state. Raises RuntimeError for an input that the state does not allow."""
        target = TRANSITIONS[self.state].get(what)
        if target is None:
            raise RuntimeError(
                f"session {self.session_id} cannot {what.name} while {self.state.name}"
            )
        self.state = target

    def admit(self, sequence: int, num_cached: int, now: float) -> None:
        """The pool has a table for it, with num_cached tokens in it."""
        self.transition(SessionInput.ADMIT)
        self.sequence = sequence
        self.num_computed = 0
        self.last_scheduled_at = now
        self._times.admitted_at = min(self._times.admitted_at, now)
        if self._times.first_commit_at == math.inf:
            self.cached_tokens = 0
        self.reuse(num_cached)

    def reuse(self, num_cached: int) -> None:
        """The pool holds the KV of the first num_cached tokens, whichever session computed it."""
        if num_cached <= self.num_computed:
            return
        if self._times.first_commit_at == math.inf:
            num_prompt = len(self.request.prompt)
            self.cached_tokens += min(num_cached, num_prompt) - min(self.num_computed, num_prompt)
        self.num_computed = num_cached

    def preempt(self) -> None:
        """Its KV is dropped; its tokens, sampler and reply stay as they are."""
        self.transition(SessionInput.PREEMPT)
        self.num_computed = 0

    def prepare_rows(self, drafts: Sequence[int]) -> None:
        """Draw the sampler's noise, and compute the grammar's masks, for the rows behind the last
        token and behind each of these drafts: they depend on no row, so this can be done while the
        engine computes."""
        self._sampler.prepare(len(self.ids), 1 + len(drafts))
        if self.request.constraint is not None:
            self.request.constraint.prepare(drafts)

    def rivals(self, rows: LogitsRows) -> list[Rivals]:
        """Rivals of a call's rows, from the first on, as far as the choices can be made together
        with other sessions' (`whole_rows.choose`)."""
        found: list[Rivals] = []
        if rows.ids is None:
            for position, logits in enumerate(rows.logits, len(self.ids)):
                of_row = self._sampler.rivals(logits, position)
                if of_row is None:
                    break
                found.append(of_row)
        return found

    def verify(
        self,
        rows: LogitsRows,
        drafts: Sequence[int],
        num_drafts: int,
        choices: Sequence[int] = (),
    ) -> Commit:
        """Commit the choices at the rows of a call whose slice ended with `drafts` behind ids[-1].

        The first num_drafts of them are drafts, the rest is padding. `choices` are those made among
        rivals(). Sets `finished` when the reply is over. Raises EngineError.
        """
        position = len(self.ids)
        base = position - self._num_prompt
        verdict = verify(
            self._sampler, rows.logits, rows.ids, drafts, position, self._append, choices
        )
        if self.state is not SchedulingState.DECODING:
            self.transition(SessionInput.COMMIT)
        self.num_computed = min(position + verdict.accepted, len(self.ids) - 1)
        sources = self.sources
        self._had_edge_drafts = sources.num_edge_drafts > 0
        if num_drafts:
            num_verified = min(num_drafts, len(rows.logits))
            accepted = min(verdict.accepted, num_drafts)
            self._acceptance[num_verified, accepted] += 1
            self._accepted_edge_tokens += min(accepted, sources.num_edge_drafts)
            sources.observe(num_verified, verdict)
        else:
            sources.observe(0, verdict)
        ids, chain = verdict.ids, sources.chain
        epoch, from_edge = self._epoch, 0
        if chain is not None:
            epoch, from_edge = chain.epoch, chain.advance(ids)
        return Commit(
            epoch,
            base,
            from_edge,
            ids[from_edge:],
            None,
            verdict.num_lossy,
            verdict.logprobs,
            ids[:from_edge],
        )

    def mark_inexact(self, commit: Commit) -> Commit:
        """A commit behind inexact KV: the first one says so."""
        is_first, self._is_marked = not self._is_marked, True
        return commit._replace(is_inexact=is_first)

    def committed(
        self,
        commit: Commit,
        *,
        started_at: float,
        row_ms: float,
        now: float,
        drafts_ms: float = 0.0,
    ) -> SessionCommit:
        """The commit of verify() as an event. The call began at `started_at`, ended at `now`, and
        took `drafts_ms` longer for the drafts. Call it once for each commit, before the next."""
        self._times.committed(started_at, now, drafts_ms if self._had_edge_drafts else 0.0)
        return SessionCommit(self.session_id, commit, self._times.interval_ms, row_ms)

    def _append(self, token: int) -> bool:
        """Add a committed token; whether the reply is over."""
        self.ids.append(token)
        self._reply.push(token)
        if self._reply.finished is not None:
            self.finished = self._reply.finished
        elif len(self.ids) >= self._context_limit:
            self.finished = FinishReason.LENGTH
        return self.finished is not None

    def usage(self) -> Usage:
        """Token counts so far."""
        acceptance = tuple(
            AcceptanceCount(*kind, calls) for kind, calls in sorted(self._acceptance.items())
        )
        return Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_reply,
            draft_tokens=sum(it.drafted * it.calls for it in acceptance),
            accepted_tokens=sum(it.accepted * it.calls for it in acceptance),
            accepted_prediction_tokens=self.sources.accepted_prediction_tokens,
            rejected_prediction_tokens=self.sources.rejected_prediction_tokens,
            accepted_edge_tokens=self._accepted_edge_tokens,
            uncounted_tokens=len(self.request.resume),
            acceptance=acceptance,
        )

    @property
    def opened_at(self) -> float:
        return self._times.opened_at

    @property
    def first_commit_at(self) -> float:
        """When its first token was committed here; infinity until then."""
        return self._times.first_commit_at

    def service_ms(self, now: float) -> float:
        """Since it was first admitted; 0 before."""
        return max(0.0, now - self._times.admitted_at) * 1e3

    def timings(self, now: float) -> Timings:
        """Timings so far; unfinished phases last until now."""
        return self._times.timings(now)
