"""A replica as a fluid: prompts in order of arrival and replies side by side, at the rates that the
engine calls of `bench.scale.calls` give.

A day has a hundred times as many engine calls as chats, so none is simulated. Between two events
(a session comes, its prompt is computed, its reply ends) every call has the same rows: those of
each reply, and as many prompt tokens as a replica's own limits allow beside them. Nothing is cached
or drafted. Tests hold it against `bench.oracle.replicas`, which makes every call.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from bench.oracle.replicas import MAX_SESSIONS, ROWS_PER_SESSION, Speed
from bench.scale.clock import Clock
from bench.scale.demand import Ask
from bench.scale.replicas import LIMITS, NUM_BLOCKS, Hooks
from bench.scale.routers import MODEL
from services.inference.scheduler.types import ClassLoad, SchedulerLoad

_SMOOTHING = 0.1
"""Weight of the latest session in the mean service time."""
_LEAST = 1e-6
"""Tokens below which a prompt or reply counts as done."""


@dataclass(slots=True, eq=False)
class _Prefill:
    ask: Ask
    left: float
    """Tokens not computed yet, those of the reply so far included."""
    admitted_at: float


@dataclass(slots=True, eq=False)
class _Reply:
    ask: Ask
    began: float
    """What the fluid had decoded for each reply when this one began, in tokens."""
    admitted_at: float


class FluidReplica:
    """One replica; it goes on by itself on the fleet's clock until it is stopped."""

    def __init__(self, clock: Clock, speed: Speed, hooks: Hooks) -> None:
        self._clock = clock
        self._speed = speed
        self._hooks = hooks
        self._queue: deque[Ask] = deque()
        self._prefills: deque[_Prefill] = deque()
        self._replies: list[tuple[float, int, _Reply]] = []
        """A heap by the amount decoded at which a reply ends."""
        self._decoded = 0.0
        """Tokens decoded for each reply that was there all the time."""
        self._at = clock.now
        self._turn = 0
        """Number of the scheduled event that counts; earlier ones are void."""
        self._decode_rate = self._prefill_rate = 0.0
        """Tokens a second: of each reply, and of the first prompt."""
        self._service_ms = 0.0
        self._is_stopped = False

    @property
    def num_sessions(self) -> int:
        """Running and queued."""
        return len(self._queue) + len(self._prefills) + len(self._replies)

    def open(self, ask: Ask) -> None:
        """Serve it, from the token on that it has come to."""
        self._advance()
        self._queue.append(ask)
        self._go_on()

    def stop(self) -> list[Ask]:
        """End it; the sessions that it had. Their tokens so far are committed."""
        self._advance()
        self._is_stopped = True
        for _, _, it in self._replies:
            self._commit(it)
        replies = [it.ask for _, _, it in sorted(self._replies)]
        return [*replies, *(it.ask for it in self._prefills), *self._queue]

    def load(self) -> SchedulerLoad:
        """Its load report."""
        self._advance()
        running = len(self._replies) + len(self._prefills)
        tokens = int(sum(it.left for it in self._prefills) + sum(map(_prompt_tokens, self._queue)))
        return SchedulerLoad(
            running_sessions=running,
            queued_sessions=len(self._queue),
            queued_prompt_tokens=tokens,
            kv_blocks_total=NUM_BLOCKS,
            kv_blocks_free=NUM_BLOCKS - self._used_blocks(),
            fixed_ms=self._speed.fixed_ms,
            row_ms=self._speed.row_ms,
            max_sessions=MAX_SESSIONS,
            max_queue=LIMITS.max_queue,
            medium=ClassLoad(running + len(self._queue), tokens),
            service_ms=self._service_ms,
        )

    def _used_blocks(self) -> int:
        tokens = sum(len(it.ask.prompt) + it.ask.committed for it in self._prefills)
        for _, _, it in self._replies:
            tokens += len(it.ask.prompt) + it.ask.committed + int(self._decoded - it.began)
        return min(NUM_BLOCKS, -(-tokens // MODEL.block_tokens))

    def _advance(self) -> None:
        """Up to now, at the rates since the last event."""
        passed_s = self._clock.now - self._at
        self._at = self._clock.now
        self._decoded += passed_s * self._decode_rate
        if self._prefills:
            self._prefills[0].left -= passed_s * self._prefill_rate

    def _go_on(self) -> None:
        """Begin what there is room for, and schedule the next event."""
        while self._queue and len(self._replies) + len(self._prefills) < MAX_SESSIONS:
            ask = self._queue.popleft()
            self._prefills.append(_Prefill(ask, float(_prompt_tokens(ask)), self._clock.now))
        count = len(self._replies)
        rows, sessions, chunk = ROWS_PER_SESSION * count, count, 0
        if self._prefills:
            chunk = self._speed.chunk_tokens[count]
            rows, sessions = rows + chunk, sessions + 1
        if not sessions:
            self._decode_rate = self._prefill_rate = 0.0
            return
        call_ms = self._speed.rows_ms[min(rows, LIMITS.max_batch_tokens)]
        call_s = (call_ms + self._speed.session_ms * sessions) / 1e3
        self._decode_rate = 1.0 / call_s
        self._prefill_rate = chunk / call_s
        waits_s = []
        if self._replies:
            waits_s.append((self._replies[0][0] - self._decoded) / self._decode_rate)
        if self._prefills:
            waits_s.append(self._prefills[0].left / self._prefill_rate)
        self._turn += 1
        self._clock.after(max(0.0, min(waits_s)), self._event, self._turn)

    def _event(self, turn: int) -> None:
        if turn != self._turn or self._is_stopped:
            return
        self._advance()
        while self._replies and self._replies[0][0] <= self._decoded + _LEAST:
            _, _, it = heapq.heappop(self._replies)
            self._hooks.committed(it.ask, it.ask.reply_tokens - it.ask.committed)
            self._end(it.ask, it.admitted_at)
        if self._prefills and self._prefills[0].left <= _LEAST:
            first = self._prefills.popleft()
            ask = first.ask
            self._hooks.committed(ask, 1)
            left = ask.reply_tokens - ask.committed
            if left > 0:
                reply = _Reply(ask, self._decoded, first.admitted_at)
                heapq.heappush(self._replies, (self._decoded + left, ask.number, reply))
            else:
                self._end(ask, first.admitted_at)
        self._go_on()

    def _commit(self, it: _Reply) -> None:
        count = min(int(self._decoded - it.began), it.ask.reply_tokens - it.ask.committed)
        self._hooks.committed(it.ask, count)

    def _end(self, ask: Ask, admitted_at: float) -> None:
        took_ms = (self._clock.now - admitted_at) * 1e3
        self._service_ms += (
            _SMOOTHING * (took_ms - self._service_ms) if self._service_ms else took_ms
        )
        self._hooks.finished(ask)


def _prompt_tokens(ask: Ask) -> int:
    """To be computed before the next token of its reply."""
    return len(ask.prompt) + ask.committed
