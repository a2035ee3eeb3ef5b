"""Replicas of the simulated fleet: scheduler, KV pool and block events are the service's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, VOCABULARY_SIZE, Ask
from outrider.engines.base import EngineInfo, LogitsRows
from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyEnd
from services.inference.kv.events import BlockEvent
from services.inference.scheduler.batch import Batch
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import (
    Event,
    Failed,
    Finished,
    OpenRequest,
    SchedulerLoad,
    SessionCommit,
)

NUM_BLOCKS = 640
"""KV blocks of a replica: 20,480 tokens, 450 MiB with the default model. Some twenty shared
prompts beside sixteen running sessions."""
LIMITS = SchedulerLimits(max_queue=512)
INFO = EngineInfo(
    name="virtual",
    vocabulary_size=VOCABULARY_SIZE,
    block_tokens=BLOCK_TOKENS,
    num_blocks=NUM_BLOCKS,
    block_bytes=BLOCK_TOKENS * 23_040,
    max_context_tokens=2048,
    scratch_tokens=1,
    num_candidates=1,
)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called by a replica at the moment something happens."""

    committed: Callable[[Ask, int], None]
    """The count of tokens that were committed more."""
    finished: Callable[[Ask], None]
    refused: Callable[[Ask, str], None]
    """Why it will not be served here."""


_TOKEN = 7
"""What the engine always says."""
_MOST_ROWS = 64


class Replica:
    """One simulated replica; it goes on by itself on the fleet's clock."""

    def __init__(self, clock: Clock, times: CallTimes, hooks: Hooks, seed: int) -> None:
        self._clock = clock
        self._times = times
        self._hooks = hooks
        self._random = random.Random(seed)
        self._scheduler = Scheduler(INFO, LIMITS, lambda params: ReplyEnd(params, ()))
        self._scheduler.record_blocks()
        self._asks: dict[int, Ask] = {}
        self._busy = self._dead = False
        self._logits = np.ones((_MOST_ROWS, 1), np.float32)
        self._ids = np.full((_MOST_ROWS, 1), _TOKEN, np.int32)

    def open(self, ask: Ask) -> None:
        """Serve it; tokens committed before are part of the prompt."""
        request = OpenRequest(
            session_id=ask.number,
            prompt=ask.prompt,
            sampling=SamplingParams(max_tokens=ask.reply_tokens, ignore_eos=True),
            resume=(_TOKEN,) * ask.committed,
            edge_drafts=False,
            region_drafts=False,
        )
        self._asks[ask.number] = ask
        try:
            self._take(self._scheduler.open(request, self._clock.now))
        except OutriderError as error:
            del self._asks[ask.number]
            self._hooks.refused(ask, error.reason)
        if not self._busy:
            self._tick()

    def load(self) -> SchedulerLoad:
        """Its load report."""
        return self._scheduler.load()

    def take_blocks(self) -> tuple[BlockEvent, ...]:
        """What changed in its prefix cache since the last take."""
        return self._scheduler.take_block_events()

    def kill(self) -> None:
        """End it without a word to anybody; a new object takes its place."""
        self._dead = True

    def _tick(self) -> None:
        batch = self._scheduler.schedule(self._clock.now)
        self._busy = batch is not None
        if batch is None:
            return
        if not batch.slices:
            self._land(batch, ())
            return
        ms = self._times.ms(batch.num_tokens, len(batch.slices), self._random.random())
        rows = [
            LogitsRows(self._logits[: part.num_rows], self._ids[: part.num_rows])
            for part in batch.slices
        ]
        self._clock.after(ms / 1e3, self._land, batch, rows)

    def _land(self, batch: Batch, rows: Sequence[LogitsRows]) -> None:
        if self._dead:
            return
        self._take(self._scheduler.postprocess(batch, rows, self._clock.now))
        self._tick()

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            ask = self._asks[event.session_id]
            if isinstance(event, SessionCommit):
                self._hooks.committed(ask, len(event.commit.ids))
            elif isinstance(event, Finished):
                del self._asks[event.session_id]
                ask.cached_tokens = ask.cached_tokens or event.usage.cached_tokens
                self._hooks.finished(ask)
            elif isinstance(event, Failed):
                del self._asks[event.session_id]
                self._hooks.refused(ask, event.error.reason)
