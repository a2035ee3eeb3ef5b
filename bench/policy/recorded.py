"""What the real engine says, and how long it takes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

from bench.workload.supply import Supply
from outrider.engines.base import Engine, SequenceSlice
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Committed, OpenRequest

MAX_TOKENS = {"chat": 160, "document": 64}
_CONTEXT = 120
_SESSIONS = 8
NUM_CALLS = 60
SHARE = 0.15
"""The 15th percentile of the calls: about what a call takes when nobody else is at the memory. A
median would hold what other work on a shared machine adds."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt, and the whole reply to it."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    temperature: float


def durations(engine: Engine) -> dict[int, list[float]]:
    """Milliseconds of NUM_CALLS calls by their rows, for the sizes that the engine is prepared for;
    sizes are called in turn."""
    blocks_each = -(-(_CONTEXT + max(engine.info.sizing.sizes)) // engine.info.block_tokens) + 1
    for sequence in range(_SESSIONS):
        engine.open(sequence, np.array([1], np.int32))
    samples: dict[int, list[float]] = {size: [] for size in engine.info.sizing.sizes}
    for _ in range(NUM_CALLS):
        for size, times in samples.items():
            slices = _slices(size, blocks_each)
            begin = time.perf_counter()
            engine.step(slices)
            times.append((time.perf_counter() - begin) * 1e3)
    for sequence in range(_SESSIONS):
        engine.close_sequence(sequence)
    return samples


def _slices(num_rows: int, blocks_each: int) -> list[SequenceSlice]:
    count = min(num_rows, _SESSIONS)
    shares = [num_rows // count + (index < num_rows % count) for index in range(count)]
    return [
        SequenceSlice(
            index,
            np.arange(500, 500 + rows, dtype=np.int32),
            _CONTEXT,
            np.arange(index * blocks_each, (index + 1) * blocks_each, dtype=np.int32),
            rows,
        )
        for index, rows in enumerate(shares)
    ]


def chats(
    engine: Engine, vocabulary: Vocabulary, kind: str, count: int, temperature: float
) -> list[Chat]:
    """Replies to `count` prompts of a kind that were never asked before."""
    scheduler = Scheduler(
        engine.info,
        SchedulerLimits(max_queue=count),
        lambda params: ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer()),
    )
    prompts = [
        tuple(vocabulary.encode_chat([Message("user", text)])) for text in Supply(kind).take(count)
    ]
    replies: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature, seed=number, max_tokens=MAX_TOKENS[kind])
        request = OpenRequest(number, prompt, sampling)
        scheduler.open(request, time.monotonic())
    while (batch := scheduler.schedule(time.monotonic())) is not None:
        rows = batch.run(engine, scheduler.overlapped_work)
        for event in scheduler.postprocess(batch, rows, time.monotonic()):
            if isinstance(event, Committed):
                replies[event.session_id].extend(event.ids)
    print(f"{count} {kind} prompts answered", file=sys.stderr)
    return [Chat(p, tuple(r), temperature) for p, r in zip(prompts, replies, strict=True)]
