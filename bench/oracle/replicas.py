"""A replica as a model: continuous batching, chunked prompts and an LRU prefix cache.

An engine call has the rows of each decoding session and prompt tokens in order of arrival, as many
as a replica's own limits allow beside them. It takes what `bench.scale.calls` has recorded. There
are no drafts, classes or preemption, every shared prefix is whole blocks, and a reply's tokens take
no room in the cache; tests compare it with the real scheduler.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, Ask
from bench.scale.replicas import INFO, LIMITS, NUM_BLOCKS, Hooks
from bench.scale.routers import MODEL
from outrider.codec.block_hashes import root_hash
from services.inference.kv.events import BlockEvent, BlockRecorder
from services.inference.scheduler.types import ClassLoad, SchedulerLoad

MAX_SESSIONS = LIMITS.max_sessions
ROWS_PER_SESSION = INFO.min_rows
REPLY_BLOCKS = 2
"""Kept free for each running session's reply."""
CACHE_BLOCKS = NUM_BLOCKS - MAX_SESSIONS * REPLY_BLOCKS
_ROOT = root_hash(b"")
_SMOOTHING = 0.1
"""Weight of the latest session in the mean service time."""
_FIT_ROWS = (2, 64)
"""Sizes between which a call's cost is taken as a line, as replicas report it."""


class Speed:
    """What calls take on average, and how many prompt tokens they take."""

    def __init__(self, times: CallTimes) -> None:
        low, high = _FIT_ROWS
        self.row_ms = (times.mean_ms(high, 1) - times.mean_ms(low, 1)) / (high - low)
        self.fixed_ms = times.mean_ms(low, 1) - low * self.row_ms
        self.session_ms = times.mean_ms(low, 1) - times.mean_ms(low, 0)
        most = LIMITS.max_batch_tokens
        self.rows_ms = [times.mean_ms(rows, 0) for rows in range(most + 1)]
        """By rows, without the time that each session adds."""
        limits = MODEL.prefill_limits
        assert limits is not None
        reply_ms = self.fixed_ms + self.row_ms * ROWS_PER_SESSION
        self.chunk_tokens = [limits.max_chunk_tokens]
        """Prompt tokens in a call, by decoding sessions."""
        for count in range(1, MAX_SESSIONS + 1):
            call_ms = self.fixed_ms + self.row_ms * ROWS_PER_SESSION * count
            self.chunk_tokens.append(int(limits.chunk_tokens(call_ms, reply_ms, self.row_ms)))
        self._idle_ms: dict[int, float] = {}

    def idle_ms(self, num_tokens: int) -> float:
        """Of computing so many prompt tokens on a replica without other sessions."""
        known = self._idle_ms.get(num_tokens)
        if known is None:
            whole, rest = divmod(num_tokens, self.chunk_tokens[0])
            known = whole * (self.rows_ms[self.chunk_tokens[0]] + self.session_ms)
            if rest:
                known += self.rows_ms[max(rest, ROWS_PER_SESSION)] + self.session_ms
            self._idle_ms[num_tokens] = known
        return known


@dataclass(slots=True, eq=False)
class _Prefill:
    ask: Ask
    left: int
    """Prompt tokens not computed yet."""
    admitted_at: float
    is_begun: bool = False


class ModelReplica:
    """One replica (bench.scale.fleet.Served); it goes on by itself on the fleet's clock."""

    def __init__(
        self, clock: Clock, times: CallTimes, speed: Speed, hooks: Hooks, seed: int
    ) -> None:
        self._clock = clock
        self._times = times
        self._speed = speed
        self._hooks = hooks
        self._random = random.Random(seed)
        self._queue: deque[Ask] = deque()
        self._prefills: list[_Prefill] = []
        self._decoding: list[tuple[int, int, _Prefill]] = []
        """A heap by the call that ends a reply."""
        self._num_calls = 0
        self._parts: list[tuple[_Prefill, int]] = []
        """Prompt tokens of the running call."""
        self._ready_at: float | None = None
        """When the running call is expected to end; None: none runs."""
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        """Blocks, the least recently used first."""
        self._pins: Counter[bytes] = Counter()
        self._recorder = BlockRecorder()
        self._service_ms = 0.0
        self._dead = False

    def open(self, ask: Ask) -> None:
        """Serve it."""
        self._queue.append(ask)
        if self._ready_at is None:
            self._begin()

    def load(self) -> SchedulerLoad:
        """Its load report."""
        running = len(self._decoding) + len(self._prefills)
        tokens = sum(self.uncached(ask) for ask in self._queue)
        tokens += sum(it.left for it in self._prefills)
        return SchedulerLoad(
            running_sessions=running,
            queued_sessions=len(self._queue),
            queued_prompt_tokens=tokens,
            kv_blocks_total=NUM_BLOCKS,
            kv_blocks_free=NUM_BLOCKS - len(self._pins) - REPLY_BLOCKS * running,
            fixed_ms=self._speed.fixed_ms,
            row_ms=self._speed.row_ms,
            max_sessions=MAX_SESSIONS,
            max_queue=LIMITS.max_queue,
            medium=ClassLoad(running + len(self._queue), tokens),
            service_ms=self._service_ms,
        )

    def take_blocks(self) -> tuple[BlockEvent, ...]:
        """What changed in its prefix cache since the last take."""
        return self._recorder.take()

    def kill(self) -> None:
        """End it without a word to anybody."""
        self._dead = True

    def uncached(self, ask: Ask) -> int:
        """Tokens of its prompt that are not cached; at least one is computed."""
        count = 0
        for block in ask.hashes:
            if block not in self._cache:
                break
            count += 1
        return max(1, len(ask.prompt) - BLOCK_TOKENS * count)

    def first_token_at(
        self, ask: Ask, reach_at: float, on_way: Iterable[tuple[float, Ask]], until: float
    ) -> float:
        """When its first token would be ready, if it came in at `reach_at` and nobody came after it
        who is not there or on the way; some time after `until` if it is not ready by then.
        `on_way`: (time of coming in, request), in that order. Calls take their mean time; all else
        is known, the length of every reply too. Prompts that share their first block are taken to
        share all but the last one."""
        speed = self._speed
        now = self._clock.now if self._ready_at is None else max(self._ready_at, self._clock.now)
        tick = self._num_calls
        ends = [end for end, _, _ in self._decoding]
        pending: list[list[int]] = []
        done = {id(it): part for it, part in self._parts}
        shared: set[bytes] = set()
        if self._ready_at is not None:
            tick += 1
            while ends and ends[0] <= tick:
                heapq.heappop(ends)
        for it in self._prefills:
            left = it.left - done.get(id(it), 0)
            shared.add(it.ask.hashes[0])
            if left > 0:
                pending.append([left, it.ask.reply_tokens])
            else:
                heapq.heappush(ends, tick + it.ask.reply_tokens - 1)
        waiting: deque[tuple[float, int, int]] = deque()
        for at, other in (*((0.0, it) for it in self._queue), *on_way):
            if at > reach_at:
                break
            waiting.append((at, self._left(other, shared), other.reply_tokens))
            shared.add(other.hashes[0])
        waiting.append((reach_at, self._left(ask, shared), 0))
        while now < until:
            while waiting and waiting[0][0] <= now and len(ends) + len(pending) < MAX_SESSIONS:
                _, left, reply = waiting.popleft()
                pending.append([left, reply])
            if not pending and not ends:
                now = max(now, waiting[0][0])
                continue
            room = speed.chunk_tokens[len(ends)]
            rows, sessions, first = ROWS_PER_SESSION * len(ends), len(ends), len(pending)
            for index, one in enumerate(pending):
                part = min(room, one[0])
                if part <= 0:
                    first = index
                    break
                one[0] -= part
                room -= part
                rows += max(part, ROWS_PER_SESSION)
                sessions += 1
            now += (speed.rows_ms[min(rows, LIMITS.max_batch_tokens)]) / 1e3
            now += speed.session_ms * sessions / 1e3
            tick += 1
            while ends and ends[0] <= tick:
                heapq.heappop(ends)
            for left, reply in pending[:first]:
                if left <= 0:
                    if not reply:
                        return now
                    if reply > 1:
                        heapq.heappush(ends, tick + reply - 1)
            pending = [one for one in pending if one[0] > 0]
        return now

    def _left(self, ask: Ask, shared: set[bytes]) -> int:
        """Tokens to compute, once those ahead are computed, whose first blocks are `shared`."""
        return BLOCK_TOKENS if ask.hashes[0] in shared else self.uncached(ask)

    def _begin(self) -> None:
        """Begin the next call, if there is anything to compute."""
        self._admit()
        decoding = len(self._decoding)
        room = self._speed.chunk_tokens[decoding]
        rows = ROWS_PER_SESSION * decoding
        self._parts = []
        computing: set[bytes] = set()
        for it in self._prefills:
            if not it.is_begun:
                it.left = min(it.left, self.uncached(it.ask))
                if it.ask.hashes[0] in computing and it.left > BLOCK_TOKENS:
                    continue  # another one computes their shared beginning now
                it.is_begun = True
                it.ask.cached_tokens = it.ask.cached_tokens or len(it.ask.prompt) - it.left
            computing.add(it.ask.hashes[0])
            part = min(room, it.left)
            if part <= 0:
                break
            self._parts.append((it, part))
            room -= part
            rows += max(part, ROWS_PER_SESSION)
        if not rows:
            self._ready_at = None
            return
        sessions = decoding + len(self._parts)
        ms = self._times.ms(rows, sessions, self._random.random())
        mean_ms = self._speed.rows_ms[rows] + self._speed.session_ms * sessions
        self._ready_at = self._clock.now + mean_ms / 1e3
        self._clock.after(ms / 1e3, self._land)

    def _admit(self) -> None:
        while self._queue and len(self._decoding) + len(self._prefills) < MAX_SESSIONS:
            ask = self._queue.popleft()
            left = self.uncached(ask)
            for block in ask.hashes:
                self._pins[block] += 1
            # From its end: of one prompt, later blocks are evicted before earlier ones.
            for block in reversed(ask.hashes):
                if block in self._cache:
                    self._cache.move_to_end(block)
            self._prefills.append(_Prefill(ask, left, self._clock.now))

    def _land(self) -> None:
        if self._dead:
            return
        self._num_calls += 1
        while self._decoding and self._decoding[0][0] <= self._num_calls:
            _, _, it = heapq.heappop(self._decoding)
            self._hooks.committed(it.ask, it.ask.reply_tokens - 1)
            self._end(it)
        for it, part in self._parts:
            it.left -= part
            if it.left > 0:
                continue
            self._store(it.ask.hashes)
            self._hooks.committed(it.ask, 1)
            if it.ask.reply_tokens > 1:
                end = self._num_calls + it.ask.reply_tokens - 1
                heapq.heappush(self._decoding, (end, it.ask.number, it))
            else:
                self._end(it)
        if self._parts:
            self._prefills = [it for it in self._prefills if it.left > 0]
        self._begin()

    def _end(self, it: _Prefill) -> None:
        for block in it.ask.hashes:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        took_ms = (self._clock.now - it.admitted_at) * 1e3
        self._service_ms += (
            _SMOOTHING * (took_ms - self._service_ms) if self._service_ms else took_ms
        )
        self._hooks.finished(it.ask)

    def _store(self, hashes: Sequence[bytes]) -> None:
        parent = _ROOT
        for block in hashes:
            if block not in self._cache:
                self._recorder.stored(parent, block)
                self._cache[block] = None
            parent = block
        for block in reversed(hashes):
            self._cache.move_to_end(block)
        excess = len(self._cache) - CACHE_BLOCKS
        if excess <= 0:
            return
        victims = []
        for block in self._cache:
            if block not in self._pins:
                victims.append(block)
                if len(victims) >= excess:
                    break
        for block in victims:
            del self._cache[block]
            self._recorder.removed(block)
