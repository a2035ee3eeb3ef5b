"""The sessions of a turn engine: who waits, what each has committed, and what it adds up to (pure).

Takes the place of the scheduler where the engine has one of its own: it hands replies to the engine
as long as that has room, and keeps the rest in order of priority and arrival.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outrider.engine_calls import SESSIONS_IN_CALL
from outrider.engines.turn.base import NOT_GIVEN, TurnEngineInfo, TurnLoad, TurnPiece, TurnRequest
from outrider.engines.turn.refusals import check_sampling
from outrider.errors import (
    DeadlineError,
    EngineError,
    InvalidRequestError,
    OutriderError,
    OverloadedError,
)
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply
from outrider.session.region import Commit
from outrider.session.types import FinishReason, Priority, Timings, Usage
from services.inference.scheduler.types import (
    Begun,
    ClassLoad,
    Event,
    Failed,
    Finished,
    KvHits,
    Opened,
    OpenRequest,
    OverloadLevel,
    SchedulerLoad,
    SessionCommit,
)

_SMOOTHING: Final = 0.1
"""Share of the newest measurement in a mean."""
_GUESSED_INTERVAL_MS: Final = 20.0
_GUESSED_TOKEN_MS: Final = 1.0
"""First guesses of the time between tokens, and of a prompt's token; then measured."""
_GATHERED_SHARE: Final = 0.05
"""Of the time between tokens: so long a token may wait for those of other sessions. Tokens that
travel together cost a router and an edge little more than one."""
_MAX_GATHER_S: Final = 0.02
"""And no longer than that."""
_MAX_RETRY_DELAY_MS: Final = 10_000


class TurnSession:
    """One reply."""

    def __init__(self, request: OpenRequest, reply: Reply, context_limit: int, now: float) -> None:
        """Raises InvalidRequestError if `resume` goes past the reply's end."""
        self.request = request
        self.number = request.session_id
        self.num_reply = 0
        """Committed tokens of the reply, resumed ones included."""
        self.cached_tokens = 0
        """Prompt tokens whose KV the engine had, as far as it says."""
        self.finished: FinishReason | None = None
        self.opened_at = now
        self.begun_at = self.first_at = math.inf
        self.interval_ms = 0.0
        """Between commits, smoothed; 0: there was none."""
        self._last_at = now
        self._reply = reply
        self._room = context_limit - len(request.prompt)
        """Most tokens of the reply, by the context."""
        for token in request.resume:
            if self.finished is not None:
                raise InvalidRequestError(
                    f"resume has {len(request.resume)} tokens, but the reply ended after "
                    f"{self.num_reply}; send only what was committed"
                )
            self._push(token)

    @property
    def rank(self) -> tuple[int, int]:
        """Lower ones are served first."""
        return -self.request.priority, self.number

    @property
    def is_running(self) -> bool:
        """Whether the engine has it."""
        return self.begun_at < math.inf

    @property
    def is_unproven(self) -> bool:
        """Whether the engine has it and wrote no token for it yet."""
        return self.is_running and self.first_at == math.inf

    def turn(self, end_ids: frozenset[int]) -> TurnRequest:
        """What the engine is asked for; `end_ids` are the model's own."""
        request, sampling = self.request, self.request.sampling
        own = () if sampling.ignore_eos else end_ids
        return TurnRequest(
            number=self.number,
            ids=(*request.prompt, *request.resume),
            sampling=sampling,
            max_tokens=min(sampling.max_tokens, self._room) - self.num_reply,
            end_ids=tuple(sorted({*own, *sampling.stop_ids})),
            seed=_seed(sampling.seed, self.num_reply),
            salt=request.cache_salt,
            priority=request.priority,
        )

    def take(self, piece: TurnPiece, now: float) -> SessionCommit | None:
        """Commit what the engine wrote, up to the reply's end; None: it was nothing."""
        if piece.cached_tokens is not None:
            self.cached_tokens = min(piece.cached_tokens, len(self.request.prompt))
        base, count = self.num_reply, 0
        for token in piece.ids:
            if self.finished is not None:
                break
            self._push(token)
            count += 1
        if self.finished is None and piece.finish is not None:
            self.finished = piece.finish
        if not count:
            return None
        interval_ms = (now - self._last_at) * 1e3
        self._last_at = now
        if self.first_at == math.inf:
            self.first_at = now
        elif not self.interval_ms:
            self.interval_ms = interval_ms
        else:
            self.interval_ms += _SMOOTHING * (interval_ms - self.interval_ms)
        commit = Commit(
            self.request.epoch, base, 0, piece.ids[:count], logprobs=piece.logprobs[:count]
        )
        return SessionCommit(self.number, commit, self.interval_ms, 0.0)

    def end(self, reason: FinishReason, now: float) -> Finished:
        """The end of the session."""
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_reply,
            uncounted_tokens=len(self.request.resume),
        )
        begun_at, first_at = min(self.begun_at, now), min(self.first_at, now)
        timings = Timings(
            queue_ms=(begun_at - self.opened_at) * 1e3,
            prefill_ms=(first_at - begun_at) * 1e3,
            ttft_ms=(first_at - self.opened_at) * 1e3,
            total_ms=(now - self.opened_at) * 1e3,
        )
        return Finished(self.number, reason, self.num_reply, usage, timings)

    def _push(self, token: int) -> None:
        self.num_reply += 1
        self._reply.push(token)
        if self._reply.finished is not None:
            self.finished = self._reply.finished
        elif self.num_reply >= self._room:
            self.finished = FinishReason.LENGTH


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Bounds of the sessions of one engine."""

    max_sessions: int
    """Replies that the engine is given at once."""
    max_queue: int
    """Sessions that wait here; further ones are refused with a retry delay."""
    context_limit: int
    """Most tokens of prompt and reply together."""
    vocabulary_size: int
    """An engine that writes other ids has another vocabulary."""


class TurnSessions:
    """All sessions, whether the engine has them or they wait. Times are seconds on any monotonic
    clock."""

    def __init__(
        self,
        info: TurnEngineInfo,
        limits: TurnLimits,
        new_reply: Callable[[SamplingParams], Reply],
        end_ids: frozenset[int],
    ) -> None:
        """`end_ids` are the model's own that end a reply."""
        self._info = info
        self._limits = limits
        self._new_reply = new_reply
        self._end_ids = end_ids
        self.is_held = False
        """Whether the first that waits does so until the engine has written a token for each that
        it has."""
        self._waiting: list[TurnSession] = []
        self._running: dict[int, TurnSession] = {}
        self._interval_ms = _GUESSED_INTERVAL_MS
        self._token_ms = _GUESSED_TOKEN_MS
        self._is_guess = True
        self._service_ms = 0.0
        self._num_prompt_tokens = self._num_cached_tokens = 0
        """Of sessions that have ended."""
        self._num_others = self._num_others_waiting = 0
        """Replies that others gave the engine; those of them that it has not begun."""
        self._free_blocks: int | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def check(self, request: OpenRequest, now: float) -> None:
        """Raises InvalidSamplingError for what this engine does not do, DeadlineError, and
        OverloadedError if so many wait that it is refused."""
        check_sampling(self._info, request.sampling, len(request.resume))
        if request.deadline is not None and request.deadline <= now:
            raise DeadlineError("the deadline had passed when the session was opened")
        ahead = sum(it.request.priority >= request.priority for it in self._waiting)
        num_free = max(0, self._limits.max_sessions - len(self._running))
        if ahead >= self._limits.max_queue + num_free:
            wait_ms = self._service_ms * (ahead + 1) / self._limits.max_sessions
            raise OverloadedError(
                f"{ahead} sessions are waiting already; come back later",
                retry_delay_ms=min(_MAX_RETRY_DELAY_MS, 1 + math.ceil(wait_ms)),
            )

    def open(self, request: OpenRequest, now: float) -> list[Event]:
        """Take a session in; a reply that `resume` already completes ends at once. Raises what
        check() does, and InvalidRequestError."""
        self.check(request, now)
        reply = self._new_reply(request.sampling)
        session = TurnSession(request, reply, self._limits.context_limit, now)
        opened = Opened(session.number, len(request.prompt), 0)
        if session.finished is not None:
            return [opened, session.end(session.finished, now)]
        self._waiting.append(session)
        return [opened]

    @property
    def gather_s(self) -> float:
        """Seconds that a token may wait for those of other sessions; 0: there is no other."""
        if len(self._running) < 2:
            return 0.0
        return min(_MAX_GATHER_S, _GATHERED_SHARE * self._interval_ms / 1e3)

    def begin(self, now: float) -> tuple[list[TurnRequest], list[Event]]:
        """The replies that the engine is to begin now, as many as it has room for. A session that a
        replica was lost with is the only one in the engine without a token, until it has one."""
        turns: list[TurnRequest] = []
        events: list[Event] = []
        self.is_held = False
        while self._waiting and len(self._running) < self._limits.max_sessions:
            session = min(self._waiting, key=lambda it: it.rank)
            if self._has_to_wait(session):
                self.is_held = True
                break
            self._waiting.remove(session)
            session.begun_at = now
            self._running[session.number] = session
            turns.append(session.turn(self._end_ids))
            events.append(Begun(session.number))
        return turns, events

    def take(self, number: int, piece: TurnPiece, now: float) -> list[Event]:
        """The engine wrote something. The session is over if Finished is among the events."""
        session = self._running.get(number)
        if session is None:
            return []
        is_first = session.first_at == math.inf
        if piece.ids and not 0 <= min(piece.ids) <= max(piece.ids) < self._limits.vocabulary_size:
            self._forget(session)
            wrong = f"the engine {self._info.name} wrote an id outside the model's vocabulary"
            return [Failed(number, EngineError(wrong))]
        commit = session.take(piece, now)
        events: list[Event] = [] if commit is None else [commit]
        if commit is not None:
            self._learn(session, is_first=is_first)
        if session.finished is not None:
            events.append(self._end(session, session.finished, now))
        return events

    def over(self, number: int, error: OutriderError | None) -> list[Event]:
        """The engine ended a reply without a piece that says why; `error` may say it."""
        session = self._running.get(number)
        if session is None:
            return []
        self._forget(session)
        cut = EngineError(f"the engine {self._info.name} ended the reply without saying why")
        return [Failed(number, error or cut)]

    def cancel(self, number: int, now: float) -> list[Event]:
        """Its opener wants no more."""
        session = self._session(number)
        return [] if session is None else [self._end(session, FinishReason.CANCELLED, now)]

    def expire(self, now: float) -> list[Event]:
        """End the sessions whose deadline has passed."""
        late = [it for it in self._all() if (it.request.deadline or math.inf) <= now]
        return [self._end(session, FinishReason.DEADLINE, now) for session in late]

    def next_deadline(self) -> float:
        """When expire() has something to do; infinity: never."""
        return min((it.request.deadline or math.inf for it in self._all()), default=math.inf)

    def fail_all(self, error: OutriderError) -> list[Event]:
        """The engine is lost. The sessions that it had written no token for may be what it was lost
        by, and are reported as those of a call that failed (outrider.engine_calls)."""
        sessions = list(self._all())
        suspects = {
            it.number for it in sessions if it.is_unproven and NOT_GIVEN not in error.metadata
        }
        counted = {SESSIONS_IN_CALL: str(len(suspects))}
        failed = EngineError(error.message, metadata=counted)
        for session in sessions:
            self._forget(session)
        return [Failed(it.number, failed if it.number in suspects else error) for it in sessions]

    def engine_said(self, load: TurnLoad | None) -> None:
        """The engine's own count has come; None: it says nothing. What it has beside the replies
        of this moment, others gave it: their number holds until it is asked again, whatever begins
        and ends here."""
        if load is None:
            self._num_others = self._num_others_waiting = 0
            self._free_blocks = None
            return
        self._num_others = max(0, load.running + load.waiting - len(self._running))
        self._num_others_waiting = min(self._num_others, load.waiting)
        self._free_blocks = load.free_blocks

    @property
    def is_full_of_others(self) -> bool:
        """Whether there would be room without the replies that others gave the engine."""
        num_own = len(self._running)
        return num_own < self._limits.max_sessions <= num_own + self._num_others

    def load(self) -> SchedulerLoad:
        """A snapshot for routers. What others gave the engine counts, as far as it says."""
        prompts = [it for it in self._all() if it.first_at == math.inf]
        num_blocks, free = self._info.num_blocks, self._free_blocks
        return SchedulerLoad(
            running_sessions=len(self._running) + self._num_others - self._num_others_waiting,
            queued_sessions=len(self._waiting) + self._num_others_waiting,
            queued_prompt_tokens=sum(len(it.request.prompt) for it in prompts),
            kv_blocks_total=num_blocks,
            kv_blocks_free=num_blocks if free is None else min(free, num_blocks),
            fixed_ms=self._interval_ms,
            row_ms=self._token_ms,
            max_sessions=self._limits.max_sessions,
            max_queue=self._limits.max_queue,
            is_cost_guessed=self._is_guess,
            overload_level=OverloadLevel.NORMAL,
            low=self._class_load(Priority.LOW),
            medium=self._class_load(Priority.MEDIUM),
            service_ms=self._service_ms,
            kv_hits=KvHits(self._num_prompt_tokens, self._num_cached_tokens),
        )

    def _has_to_wait(self, session: TurnSession) -> bool:
        unproven = [it for it in self._running.values() if it.is_unproven]
        return bool(unproven) and any(it.request.goes_alone for it in (session, *unproven))

    def _class_load(self, priority: Priority) -> ClassLoad:
        found = [it for it in self._all() if it.request.priority is priority]
        waiting = [len(it.request.prompt) for it in found if it.first_at == math.inf]
        return ClassLoad(len(found), sum(waiting))

    def _learn(self, session: TurnSession, *, is_first: bool) -> None:
        """Learn what a prompt's token and the time between tokens cost, as routers predict by it.
        A prompt beside others takes longer than alone, so the shortest times count most."""
        if not is_first:
            if session.interval_ms:
                self._interval_ms += _SMOOTHING * (session.interval_ms - self._interval_ms)
            return
        request = session.request
        count = len(request.prompt) + len(request.resume) - session.cached_tokens
        prefill_ms = (session.first_at - session.begun_at) * 1e3 - self._interval_ms
        token_ms = max(0.0, prefill_ms) / max(1, count)
        weight = _SMOOTHING if token_ms > self._token_ms else 0.5
        self._token_ms = (
            token_ms if self._is_guess else self._token_ms + weight * (token_ms - self._token_ms)
        )
        self._token_ms = max(self._token_ms, 1e-3)
        self._is_guess = False

    def _all(self) -> Iterator[TurnSession]:
        yield from self._running.values()
        yield from self._waiting

    def _session(self, number: int) -> TurnSession | None:
        found = self._running.get(number)
        return found or next((it for it in self._waiting if it.number == number), None)

    def _end(self, session: TurnSession, reason: FinishReason, now: float) -> Finished:
        if session.is_running:
            service_ms = (now - session.begun_at) * 1e3
            weight = _SMOOTHING if self._service_ms else 1.0
            self._service_ms += weight * (service_ms - self._service_ms)
        if session.first_at < math.inf:
            self._num_prompt_tokens += len(session.request.prompt)
            self._num_cached_tokens += session.cached_tokens
        self._forget(session)
        return session.end(reason, now)

    def _forget(self, session: TurnSession) -> None:
        if self._running.pop(session.number, None) is None:
            self._waiting.remove(session)


def _seed(seed: int, num_reply: int) -> int:
    """The engine's seed for a reply that goes on after so many tokens: an engine draws from its
    beginning, so the client's own seed would repeat the draws of the first tokens."""
    if not num_reply:
        return seed
    data = seed.to_bytes(8, "little") + num_reply.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
