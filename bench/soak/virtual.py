"""An hour of a busy replica in virtual time: the scheduler, its KV pool and the fake engine."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engines.fake import FakeEngine, FakeOptions
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.session_types import FinishReason, Priority
from services.inference.kv.events import BlockLedger
from services.inference.reference import generate
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Committed,
    Drafts,
    Event,
    Failed,
    Finished,
    OpenRequest,
)

OPTIONS = FakeOptions(num_blocks=128, max_context_tokens=512, min_rows=2, fixed_ms=40.0, row_ms=4.0)
LIMITS = SchedulerLimits(max_sessions=12, max_queue=40, prefill_chunk_tokens=64)
SALTS = (b"", b"acme", b"umbrella")
_STOP_ID = 2
_RATE_PER_S = 4.0
_OVER = (FinishReason.STOP, FinishReason.LENGTH)


class _Characters:
    """One character for each id."""

    def push(self, token: int) -> str:
        return chr(64 + token)

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def finish(self) -> str:
        return ""


def new_reply(params: SamplingParams) -> ReplyText:
    return ReplyText(params, {_STOP_ID}, _Characters())


@dataclass(slots=True)
class Watched:
    """What one session's opener knows."""

    request: OpenRequest
    expected: tuple[int, ...]
    reply: list[int] = field(default_factory=list)
    chains: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Drafts by epoch, each behind what was committed when they were sent."""
    bases: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class VirtualTotals:
    """Counts of the whole run."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    queue_ms: dict[str, list[float]] = field(default_factory=dict)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    num_ticks: int = 0
    num_copies: int = 0


class VirtualReplica:
    """Drives the scheduler through a random hour. Raises AssertionError at the first leak."""

    def __init__(self, seed: int, duration_s: float) -> None:
        self._random = random.Random(seed)
        self._duration_s = duration_s
        self.engine = FakeEngine(OPTIONS)
        self._reference = FakeEngine(OPTIONS)
        self.scheduler = Scheduler(self.engine.info, LIMITS, new_reply)
        self.scheduler.record_blocks()
        self.ledger = BlockLedger()
        self.totals = VirtualTotals()
        self.now = 0.0
        self._live: dict[int, Watched] = {}
        self._cancels: list[tuple[float, int]] = []
        self._systems = [
            (salt, tuple(self._random.choices(range(3, 64), k=self._random.randint(20, 120))))
            for salt in SALTS
            for _ in range(4)
        ]
        self._seen: list[tuple[bytes, tuple[int, ...]]] = []

    def run(self) -> VirtualTotals:
        """The whole duration, and on until nothing is left to do."""
        due, number = 0.0, 0
        while due < self._duration_s or self.scheduler.has_work:
            while due <= self.now and due < self._duration_s:
                number += 1
                self._open(number)
                due += self._random.expovariate(_RATE_PER_S)
            while self._cancels and self._cancels[0][0] <= self.now:
                self._take(self.scheduler.cancel(heapq.heappop(self._cancels)[1], self.now))
            if not self._tick():
                self.now = max(self.now + 0.01, due if not self.scheduler.has_work else self.now)
        self._check_end()
        return self.totals

    def _tick(self) -> bool:
        self._take(self.scheduler.expire(self.now))
        batch = self.scheduler.schedule(self.now)
        self.scheduler.check_invariants()
        if batch is None:
            return False
        rows = batch.run(self.engine, self.scheduler.overlapped_work)
        self.now += self.engine.step_ms / 1e3 if batch.slices else 0.0
        self.totals.num_ticks += 1
        self.totals.num_copies += len(batch.copies)
        self._take(self.scheduler.postprocess(batch, rows, self.now))
        self.scheduler.check_invariants()
        self.ledger.add(self.scheduler.take_block_events())
        return True

    def _open(self, number: int) -> None:
        request = self._request(number)
        expected = generate(self._reference, request.prompt, request.sampling, new_reply).ids
        self._live[number] = Watched(request, expected)
        try:
            events = self.scheduler.open(request, self.now)
        except OutriderError as error:
            del self._live[number]
            self.totals.ends[f"refused: {error.reason}"] += 1
            return
        if self._random.random() < 0.15:
            when = self.now + self._random.expovariate(0.3)
            heapq.heappush(self._cancels, (when, number))
        self._take(events)

    def _request(self, number: int) -> OpenRequest:
        chance = self._random
        salt, prompt = self._prompt()
        sampling = SamplingParams(
            temperature=chance.choice((0.0, 0.8)), seed=number, max_tokens=chance.randint(1, 50)
        )
        return OpenRequest(
            session_id=number,
            prompt=prompt,
            sampling=sampling,
            priority=chance.choice(tuple(Priority)),
            deadline=self.now + chance.uniform(1, 60) if chance.random() < 0.1 else None,
            cache_salt=salt,
            edge_drafts=chance.random() < 0.8,
            region_drafts=chance.random() < 0.8,
        )

    def _prompt(self) -> tuple[bytes, tuple[int, ...]]:
        """A tenant's system prompt with a question behind it, or a chat that goes on."""
        chance = self._random
        salt, ids = chance.choice(self._systems)
        if self._seen and chance.random() < 0.3:
            salt, ids = chance.choice(self._seen[-50:])
        return salt, (*ids, *chance.choices(range(3, 64), k=chance.randint(1, 40)))[-400:]

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            watched = self._live[event.session_id]
            if isinstance(event, Committed):
                self._committed(watched, event)
            elif isinstance(event, Finished):
                self._finished(watched, event)
            elif isinstance(event, Failed):
                del self._live[event.session_id]
                self.totals.ends[f"failed: {event.error.reason}"] += 1

    def _committed(self, watched: Watched, event: Committed) -> None:
        chain, base = watched.chains.get(event.epoch, ()), watched.bases.get(event.epoch, 0)
        start = event.base - base
        watched.reply += [*chain[start : start + event.accepted], *event.ids]
        roll = self._random.random()
        if not watched.request.edge_drafts or roll < 0.4:
            return
        done = len(watched.reply)
        ids = watched.expected[done : done + 6]
        if roll > 0.7:
            ids = tuple(self._random.choices(range(64), k=4))
        epoch = len(watched.chains) + 1
        watched.chains[epoch], watched.bases[epoch] = ids, done
        self.scheduler.draft(event.session_id, Drafts(epoch, done, ids), self.now)

    def _finished(self, watched: Watched, event: Finished) -> None:
        del self._live[event.session_id]
        whole = event.reason in _OVER
        reply, expected = tuple(watched.reply), watched.expected
        totals = self.totals
        totals.wrong += reply != (expected if whole else expected[: len(reply)])
        totals.ends[event.reason.name] += 1
        if event.usage.completion_tokens:
            totals.prompt_tokens += event.usage.prompt_tokens
            totals.cached_tokens += event.usage.cached_tokens
            name = watched.request.priority.name
            totals.queue_ms.setdefault(name, []).append(event.timings.queue_ms)
        if whole:
            self._seen.append((watched.request.cache_salt, (*watched.request.prompt, *reply)))
            del self._seen[:-50]

    def _check_end(self) -> None:
        load = self.scheduler.load()
        assert not self._live, f"{len(self._live)} sessions never ended"
        assert load.running_sessions == load.queued_sessions == 0
        assert load.kv_blocks_free == load.kv_blocks_total, "KV blocks are missing"
