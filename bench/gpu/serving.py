"""Tokens a second through the scheduler that replicas have."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from outrider.engines.base import Engine
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyEnd
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Event, OpenRequest, SessionCommit

PROMPT_TOKENS = 128
REPLY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Served:
    """Sessions at once, from their first call to the last token."""

    tokens_per_s: float
    replies: list[tuple[int, ...]]


def serve(engine: Engine, num_sessions: int, predictions: list[tuple[int, ...]]) -> Served:
    """Greedy replies; with a prediction, drafts are copied from it."""
    limits = SchedulerLimits(max_sessions=max(num_sessions, SchedulerLimits().max_sessions))
    scheduler = Scheduler(engine.info, limits, lambda params: ReplyEnd(params, ()))
    sampling = SamplingParams(temperature=0.0, max_tokens=REPLY_TOKENS)
    replies: dict[int, list[int]] = {}
    for number in range(num_sessions):
        rng = np.random.default_rng(number)
        prompt = tuple(rng.integers(0, engine.info.vocabulary_size, PROMPT_TOKENS).tolist())
        request = OpenRequest(
            number,
            prompt,
            sampling,
            region_drafts=bool(predictions),
            prediction=predictions[number] if predictions else (),
        )
        scheduler.open(request, time.monotonic())
        replies[number] = []

    def note(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, SessionCommit):
                replies[event.session_id] += event.commit.ids

    def take() -> None:
        note(scheduler.take_committed())

    begin = time.monotonic()
    while (batch := scheduler.schedule(time.monotonic())) is not None:
        rows = batch.run(engine, take)
        note(scheduler.verify(batch, rows, time.monotonic()))
    take()
    took_s = time.monotonic() - begin
    told = [tuple(replies[number]) for number in range(num_sessions)]
    return Served(sum(map(len, told)) / took_s, told)
