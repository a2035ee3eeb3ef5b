"""What the model thread computes between two engine calls, part by part.

A scheduler and the real engine in this process, 16 sessions, greedy, drafts off and on: the CPU
time of each part of a tick. Reading the clock costs about as much as a small part, so parts add
up to more than the whole, which is measured in a run of its own. Only ticks in which most
sessions decode and nobody's prompt is read are counted.

A second table has the engine's busy share with 1 to 32 sessions: the time that it computes over the
time from one call to the next. `bench.inference` has the same of whole replicas, where the event
loop needs Python's lock too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.harness import Run, median, parser, start
from bench.harness.prompts import PromptSupply
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import Reply, ReplyEnd, reply_end
from outrider.sampling.sampler import Sampler
from outrider.speculation.shipped import shipped_prior
from services.inference.kv.pool import KvPool
from services.inference.scheduler.batch import BatchBuilder
from services.inference.scheduler.draft_sources import DraftSources
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import OpenRequest

SESSIONS = 16
BUSY_SESSIONS = (1, 8, 16, 32)
"""Sessions of which the engine's busy share is measured."""
MAX_TOKENS = 96
PARTS: dict[str, tuple[type, str]] = {
    "schedule": (Scheduler, "schedule"),
    "- note commits in draft sources": (DraftSources, "is_ready"),
    "- draft": (DraftSources, "propose"),
    "- build slices": (BatchBuilder, "_slices"),
    "verify": (Scheduler, "verify"),
    "- sample": (Sampler, "choose"),
    "- check stop conditions": (ReplyEnd, "push"),
    "- publish KV blocks": (KvPool, "commit"),
    "during the engine call: tell what was committed": (Scheduler, "take_committed"),
    "during the engine call: update estimates, plan": (Scheduler, "overlapped_work"),
    "- fit call costs": (Scheduler, "_update_cost"),
}
WHOLES = ("schedule", "verify")
"""The parts that make up a tick between two engine calls; those with a dash are within."""


class PartTimer:
    """CPU milliseconds of the calling thread by part, of one tick at a time."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self._now: dict[str, float] = defaultdict(float)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted as this part."""

        @functools.wraps(call)
        def counted(*arguments: Any, **named: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self._now[part] += (time.thread_time() - begin) * 1e3

        return counted

    def tick(self, *, counts: bool) -> None:
        """A tick is over."""
        if counts:
            for part, ms in self._now.items():
                self.ms[part].append(ms)
        self._now.clear()


@contextlib.contextmanager
def timing_parts(timer: PartTimer, parts: list[str]) -> Iterator[None]:
    """Count these parts meanwhile."""
    before = {part: getattr(*PARTS[part]) for part in parts}
    for part, call in before.items():
        setattr(*PARTS[part], timer.timed(part, call))
    try:
        yield
    finally:
        for part, call in before.items():
            setattr(*PARTS[part], call)


class Workload:
    """Groups of chats, one after the other, on one engine; no prompt comes twice."""

    def __init__(self, vocabulary: Vocabulary, engine: Engine) -> None:
        self._vocabulary = vocabulary
        self._engine = engine
        self._supply = PromptSupply("chat")
        self._prior = shipped_prior(vocabulary.tokens_digest)

    def run(self, timer: PartTimer, *, drafts: bool, sessions: int = SESSIONS) -> float:
        """Chats from beginning to end; the busy share of the engine in the ticks that count."""
        limits = SchedulerLimits(max_sessions=max(sessions, SchedulerLimits().max_sessions))
        scheduler = Scheduler(self._engine.info, limits, self._reply, self._prior)
        sampling = SamplingParams(max_tokens=MAX_TOKENS)
        for number, text in enumerate(self._supply.take(sessions)):
            ids = tuple(self._vocabulary.encode_chat([Message("user", text)]))
            request = OpenRequest(number, ids, sampling, region_drafts=drafts)
            scheduler.open(request, time.monotonic())

        def overlapped_work() -> None:
            scheduler.take_committed()
            scheduler.overlapped_work()

        busy_s = wall_s = 0.0
        begin, busy_before_s = time.monotonic(), self._engine.busy_s
        while (batch := scheduler.schedule(time.monotonic())) is not None:
            rows = batch.run(self._engine, overlapped_work)
            scheduler.verify(batch, rows, time.monotonic())
            counts = batch.is_decode and 4 * len(batch.slices) > 3 * sessions
            timer.tick(counts=counts)
            end, busy_now_s = time.monotonic(), self._engine.busy_s
            if counts:
                wall_s += end - begin
                busy_s += busy_now_s - busy_before_s
            begin, busy_before_s = end, busy_now_s
        return busy_s / wall_s

    def _reply(self, params: SamplingParams) -> Reply:
        return reply_end(params, self._vocabulary.stop_ids, self._vocabulary.detokenizer)


def main() -> int:
    arguments = parser("tick", __doc__ or "").parse_args()
    run = start("tick", arguments)
    engine = create_engine(EngineConfig(max_fixed_rows=32, prepare_first=True))
    try:
        _measure(run, arguments, engine)
    finally:
        engine.close()
    run.finish()
    return 0


def _measure(run: Run, arguments: argparse.Namespace, engine: Engine) -> None:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    workload = Workload(vocabulary, engine)
    timers = {(kind, on): PartTimer() for kind in ("whole", "parts") for on in (False, True)}
    for _ in range(1 if arguments.quick else 4):
        for (kind, on), timer in timers.items():
            with timing_parts(timer, list(WHOLES) if kind == "whole" else list(PARTS)):
                workload.run(timer, drafts=on)
    report(run, timers)
    shares: dict[tuple[int, bool], list[float]] = {}
    for _ in range(1 if arguments.quick else 4):
        for sessions, on in itertools.product(BUSY_SESSIONS, (False, True)):
            share = workload.run(PartTimer(), drafts=on, sessions=sessions)
            shares.setdefault((sessions, on), []).append(share)
    report_shares(run, shares)


def report_shares(run: Run, shares: Mapping[tuple[int, bool], Sequence[float]]) -> None:
    """The table of busy shares."""
    title = "Busy share of the engine: its time over the time from one call to the next"
    columns = [f"{count} at once" for count in BUSY_SESSIONS]
    table = run.table(title, "drafts", "n", *columns)
    for on, drafts in ((False, "off"), (True, "on")):
        samples = [shares[sessions, on] for sessions in BUSY_SESSIONS]
        table.add(drafts, len(samples[0]), *(table.median(sample) for sample in samples))
        for sessions, sample in zip(BUSY_SESSIONS, samples, strict=True):
            run.samples(f"busy share, {sessions} sessions, drafts {drafts}", sample, unit="1")
    table.note("n: runs; a run's share is over all its ticks in which most sessions decode.")


def report(run: Run, timers: dict[tuple[str, bool], PartTimer]) -> None:
    """The table of parts, and what a tick takes in all."""
    title = (
        f"CPU time of the scheduler between two engine calls, ms, by part: {SESSIONS} chats at once"
    )
    table = run.table(title, "part", "n, off", "drafts off", "n, on", "drafts on")
    for part in PARTS:
        kind = "whole" if part in WHOLES else "parts"
        off, on_ = (timers[kind, on].ms[part] for on in (False, True))
        table.add(part, len(off), table.median(off), len(on_), table.median(on_))
        for drafts, ms in (("off", off), ("on", on_)):
            run.samples(f"{part}, drafts {drafts}", ms, unit="ms")
    table.note("n: ticks in which the part had something to do.")
    for key, on in (("drafts_off_ms", False), ("drafts_on_ms", True)):
        parts = timers["whole", on].ms
        run.figures[key] = round(sum(median(parts[part]) for part in parts), 3)


if __name__ == "__main__":
    sys.exit(main())
