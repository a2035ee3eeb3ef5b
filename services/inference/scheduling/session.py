"""One session: its tokens, how far their KV is computed, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum, auto

from outrider.engines.base import Rows
from outrider.errors import InvalidRequestError
from outrider.sampling.reply import Reply
from outrider.sampling.sampler import Sampler
from outrider.session_types import FinishReason, Priority, Timings, Usage
from outrider.speculation.verification import Verification, verify
from services.inference.scheduling.drafting.looking import Watch
from services.inference.scheduling.drafting.sources import DraftSources
from services.inference.scheduling.events import Committed, OpenRequest

_SMOOTHING = 0.25


class State(IntEnum):
    """Where a session stands. All but WAITING and ENDED ones hold KV."""

    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    PAUSED = auto()
    """In the middle of its reply, its KV kept, but without a place in the calls."""
    ENDED = auto()


class Input(IntEnum):
    """What can happen to a session."""

    ADMIT = auto()
    """It gets a KV table."""
    COMMIT = auto()
    """Rows behind its last token were verified."""
    PREEMPT = auto()
    """Its KV is dropped, to be computed again later."""
    PAUSE = auto()
    """It sits out for others and keeps its KV."""
    RESUME = auto()
    """It takes part in every call again."""
    END = auto()
    """It finished, failed, was cancelled or ran out of time."""


# Asked once per commit: numbers hash sooner than members of a plain Enum.
TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.WAITING, Input.ADMIT): State.PREFILLING,
    (State.WAITING, Input.END): State.ENDED,
    (State.PREFILLING, Input.COMMIT): State.DECODING,
    (State.PREFILLING, Input.PREEMPT): State.WAITING,
    (State.PREFILLING, Input.END): State.ENDED,
    (State.DECODING, Input.COMMIT): State.DECODING,
    (State.DECODING, Input.PAUSE): State.PAUSED,
    (State.DECODING, Input.PREEMPT): State.WAITING,
    (State.DECODING, Input.END): State.ENDED,
    (State.PAUSED, Input.COMMIT): State.PAUSED,  # a turn now and then, so that it never starves
    (State.PAUSED, Input.RESUME): State.DECODING,
    (State.PAUSED, Input.PREEMPT): State.WAITING,
    (State.PAUSED, Input.END): State.ENDED,
}


class _Times:
    """When things first happened to a session, and how often it commits."""

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self._admitted_at: float | None = None
        self.first_commit_at: float | None = None
        self._last_commit_at = now
        self._is_measured = False
        self.interval_ms = 0.0

    def admitted(self, now: float) -> None:
        if self._admitted_at is None:
            self._admitted_at = now

    def committed(self, started_at: float, now: float) -> None:
        """The first interval is the duration of its call, prompt and all; there is no other measure
        yet, and the first real one takes its place."""
        interval_ms = (now - self._last_commit_at) * 1e3
        if self.first_commit_at is None:
            self.first_commit_at = now
            self.interval_ms = (now - started_at) * 1e3
        elif not self._is_measured:
            self._is_measured = True
            self.interval_ms = interval_ms
        else:
            self.interval_ms += _SMOOTHING * (interval_ms - self.interval_ms)
        self._last_commit_at = now

    def stay_ms(self, now: float) -> float:
        return 0.0 if self._admitted_at is None else (now - self._admitted_at) * 1e3

    def timings(self, now: float) -> Timings:
        admitted = now if self._admitted_at is None else self._admitted_at
        first = now if self.first_commit_at is None else self.first_commit_at
        return Timings(
            queue_ms=(admitted - self.opened_at) * 1e3,
            prefill_ms=(first - admitted) * 1e3,
            ttft_ms=(first - self.opened_at) * 1e3,
            total_ms=(now - self.opened_at) * 1e3,
        )


class Session:
    """Invariant: 0 <= computed < len(ids), and KV exists for exactly ids[:computed]."""

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
        """Least `rank` first. Raises InvalidRequestError if resume goes past the reply's end."""
        self.request = request
        self.number, self.rank = request.session, rank
        self.is_sampled = request.sampling.temperature > 0.0
        self.state = State.WAITING
        self.sequence = 0
        """The engine's number of this stay in the pool; new after every preemption."""
        self.ids = list(request.prompt)
        self.computed = self.cached_tokens = 0
        self.held = 0
        """Tokens of it that were cached when it came."""
        self.turn_at = now
        """When it last took part in a call, or got its KV table."""
        self.sources = sources
        self.watch = Watch()
        self.finished: FinishReason | None = None
        self._context_limit, self._times = context_limit, _Times(now)
        self._sampler, self._reply = sampler, reply
        self._draft_tokens = self._accepted_tokens = 0
        self._resume(request.resume)

    def _resume(self, ids: Sequence[int]) -> None:
        for token in ids:
            if self.finished is not None:
                raise InvalidRequestError(
                    f"resume has {len(ids)} tokens, but the reply ended after {self.num_reply}; "
                    "send only what was committed"
                )
            self._sampler.observe(token)
            self._push(token)

    @property
    def priority(self) -> Priority:
        return self.request.priority

    @property
    def num_reply(self) -> int:
        """Committed tokens of the reply, resumed ones included."""
        return len(self.ids) - len(self.request.prompt)

    @property
    def num_missing(self) -> int:
        """Tokens whose KV has to be computed before the next one can be chosen."""
        return len(self.ids) - self.computed

    @property
    def num_uncached(self) -> int:
        """The same, less what it will find cached by all that is known."""
        return min(self.num_missing, len(self.ids) - self.held)

    @property
    def max_drafts(self) -> int:
        """Drafts of use: the row behind the last one may still commit a token."""
        left = self.request.sampling.max_tokens - self._reply.num_tokens
        return min(left, self._context_limit - len(self.ids)) - 1

    def advance(self, what: Input) -> None:
        """Change the state. Raises RuntimeError for an input that has no place in it."""
        target = TRANSITIONS.get((self.state, what))
        if target is None:
            raise RuntimeError(f"session {self.number} cannot {what.name} while {self.state.name}")
        self.state = target

    def admit(self, sequence: int, cached: int, now: float) -> None:
        """The pool has a table for it, with `cached` tokens in it."""
        self.advance(Input.ADMIT)
        self.sequence = sequence
        self.computed = 0
        self.turn_at = now
        self._times.admitted(now)
        if self._times.first_commit_at is None:
            self.cached_tokens = 0
        self.reuse(cached)

    def reuse(self, cached: int) -> None:
        """The pool holds the KV of the first `cached` tokens, whoever computed it."""
        if cached <= self.computed:
            return
        if self._times.first_commit_at is None:
            self.cached_tokens += min(cached, len(self.request.prompt)) - min(
                self.computed, len(self.request.prompt)
            )
        self.computed = cached

    def preempt(self) -> None:
        """Its KV is gone; its tokens, sampler and reply stay as they are."""
        self.advance(Input.PREEMPT)
        self.computed = 0

    def foresee(self, num_rows: int) -> None:
        """So many rows behind its last token are computed now: do what needs none of them."""
        self._sampler.prepare(len(self.ids), num_rows)

    def commit(
        self,
        rows: Rows,
        drafts: Sequence[int],
        *,
        num_guessed: int,
        started_at: float,
        row_ms: float,
        now: float,
    ) -> Committed:
        """Verify `drafts`, which lie behind ids[-1] in a round that began at `started_at`.

        num_guessed of them are guesses; the rest fills the round. Sets `finished` when the reply is
        over. Raises EngineError.
        """
        base, position, n = self.num_reply, len(self.ids), len(rows.logits)
        verdict = verify(self._sampler, rows.logits, rows.ids, drafts, position, self._push)
        self.advance(Input.COMMIT)
        self.computed = min(position + verdict.accepted, len(self.ids) - 1)
        self._draft_tokens += min(num_guessed, n)
        self._accepted_tokens += min(verdict.accepted, num_guessed)
        self.sources.learn(min(num_guessed, n), verdict)
        self._times.committed(started_at, now)
        return self._committed(base, verdict, row_ms)

    def _committed(self, base: int, verdict: Verification, row_ms: float) -> Committed:
        chain = self.sources.chain
        accepted = chain.advance(verdict.ids) if chain is not None else 0
        return Committed(
            session=self.number,
            epoch=chain.epoch if chain is not None else self.request.epoch,
            base=base,
            accepted=accepted,
            ids=verdict.ids[accepted:],
            commit_interval_ms=self._times.interval_ms,
            row_ms=row_ms,
            lossy=tuple(base + index for index in verdict.lossy),
            accepted_ids=verdict.ids[:accepted],
        )

    def _push(self, token: int) -> bool:
        self.ids.append(token)
        self._reply.push(token)
        if self._reply.finished is not None:
            self.finished = self._reply.finished
        elif len(self.ids) >= self._context_limit:
            self.finished = FinishReason.LENGTH
        return self.finished is not None

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_reply,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted_tokens,
        )

    @property
    def opened_at(self) -> float:
        """When it came."""
        return self._times.opened_at

    @property
    def began_at(self) -> float:
        """When its first token was committed here; until then, infinity."""
        first = self._times.first_commit_at
        return math.inf if first is None else first

    def stay_ms(self, now: float) -> float:
        """Since it first held KV."""
        return self._times.stay_ms(now)

    def timings(self, now: float) -> Timings:
        """What did not happen yet lasts until now."""
        return self._times.timings(now)
