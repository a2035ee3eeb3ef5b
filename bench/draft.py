"""Milliseconds of one step of the draft model against one of its target, for 1 to 16 sessions.

Both engines run through the engine seam, in turn, as replica and drafter set them up: the target
exact, the draft not, whose rows choose nothing. All variants are measured in random order within a
round, after unmeasured calls of their own; process CPU time. "all told" is what the drafter's
process takes for one more guess of every session: deciding, the step, and the choice of a token.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import numpy as np

from bench.engine import Sessions, cpu_ms
from bench.harness import Run, median, parser, start
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.draft_calibration import DraftCalibration
from outrider.engines.draft_loading import SHIPPED, load_draft
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.sampling.params import SamplingParams
from services.edge.drafter.drafter import Drafter, run
from services.edge.drafter.protocol import CommitTokens, DraftUpdate, OpenReply
from services.edge.drafter.settings import DrafterLimits

COUNTS = (1, 4, 16)
"""Sessions in a call."""
BLOCKS_EACH = 8
CONTEXT = 100
CHAIN = 8
"""Guesses after which a chain becomes final."""
WARMING = 3
"""Calls of a variant before the one measured: an edge's drafter has the caches to itself."""
ALONG = DraftCalibration(greedy=((1.0, 1.0),), sampled=((1.0, 1.0),))
"""Every guess is believed: chains go on."""

Variant = Callable[[], float]
"""Does one step and returns its CPU milliseconds."""


def steps(engine: Engine, count: int) -> Variant:
    """One row for each of `count` sequences."""
    ready = Sessions(engine, BLOCKS_EACH)
    return lambda: cpu_ms(engine, ready.slices(count, 1))


class Drafting:
    """A drafter whose `count` sessions always want the next guess."""

    def __init__(self, engine: Engine, count: int, temperature: float) -> None:
        limits = DrafterLimits(
            min_survival=0.0, min_branch=1.0, sure=1.1, max_lead=64, chunk_tokens=CONTEXT
        )
        self._drafter = Drafter(engine.info, limits, ALONG)
        self._engine = engine
        self._count = count
        self._chains: dict[int, DraftUpdate] = {}
        self._now = 0.0
        for number in range(count):
            prompt = np.random.default_rng(number).integers(1000, 40_000, CONTEXT).tolist()
            params = SamplingParams(temperature=temperature, seed=number, max_tokens=100_000)
            self._drafter.open(OpenReply(number, tuple(prompt), (), params), 0.0)
        while self._step() < count:
            pass

    def __call__(self) -> float:
        """One more guess for all."""
        if any(len(chain.ids) >= CHAIN for chain in self._chains.values()):
            for chain in self._chains.values():
                self._drafter.commit(CommitTokens(chain.session, chain.ids), 0.0)
            self._chains.clear()
        begin = time.process_time()
        num_sessions = self._step()
        assert num_sessions == self._count
        return (time.process_time() - begin) * 1000

    def close(self) -> None:
        """Leave the engine to the next drafter, which numbers its sequences from 1 again, too."""
        for number in range(self._count):
            self._drafter.close(number)
        for sequence in range(1, self._count + 1):
            self._engine.close_sequence(sequence)

    def _step(self) -> int:
        """Sessions that were part of it."""
        call = self._drafter.schedule(0.0)
        assert call is not None
        self._drafter.apply(call, run(self._engine, call), 0.0)
        self._now += 1.0  # long enough for all that is new to be told
        for guess in self._drafter.take_updates(self._now):
            self._chains[guess.session] = guess
        return len(call.scheduled)


def measure(variants: dict[str, Variant], repeats: int) -> dict[str, list[float]]:
    """CPU milliseconds by variant."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    rng = random.Random(1)
    for name in variants:
        variants[name]()
    for _ in range(repeats):
        for name in rng.sample(list(variants), len(variants)):
            for _ in range(WARMING):
                variants[name]()
            samples[name].append(variants[name]())
    return samples


def report(result: Run, samples: dict[str, list[float]]) -> None:
    """One line per number of sessions."""
    columns = ("sessions", "n", "target", "draft", "target over draft", "drafter in all, greedy")
    table = result.table(
        "CPU time of one step of the draft model and of its target model, ms: medians, one thread",
        *columns,
        "drafter in all, T=0.8",
    )
    figures = {}
    for count in COUNTS:
        names = ("target", "draft", "greedy", "sampled")
        of = {name: samples[f"{name} {count}"] for name in names}
        of["ratio"] = [a / b for a, b in zip(of["target"], of["draft"], strict=True)]
        order = ("target", "draft", "ratio", "greedy", "sampled")
        table.add(count, len(of["target"]), *(table.median(of[name]) for name in order))
        for name in names:
            result.samples(f"{name}, {count} sessions", of[name], unit="ms")
        figures[str(count)] = {
            name if name == "ratio" else f"{name}_ms": round(median(of[name]), 2) for name in order
        }
    result.figures["step"] = figures


def by_engine(target: Engine, draft: Engine, repeats: int) -> dict[str, list[float]]:
    """One step of either."""
    variants: dict[str, Variant] = {}
    for name, engine in (("target", target), ("draft", draft)):
        Sessions(engine, BLOCKS_EACH).prefill(max(COUNTS))
        variants |= {f"{name} {count}": steps(engine, count) for count in COUNTS}
    samples = measure(variants, repeats)
    for sequence in range(max(COUNTS)):
        draft.close_sequence(sequence)
    return samples


def all_told(draft: Engine, repeats: int) -> dict[str, list[float]]:
    """One more guess for every session of a drafter."""
    samples: dict[str, list[float]] = {}
    for count in COUNTS:
        for name, temperature in (("greedy", 0.0), ("sampled", 0.8)):
            drafting = Drafting(draft, count, temperature)
            samples |= measure({f"{name} {count}": drafting}, repeats)
            drafting.close()
    return samples


def main() -> int:
    flags = parser("draft", __doc__ or "")
    flags.add_argument("--draft-model", default=SHIPPED, help="as edge.drafter.model")
    flags.add_argument("--threads", type=int, default=1, help="threads of a call")
    arguments: argparse.Namespace = flags.parse_args()
    result = start("draft", arguments)
    store, repeats = ModelStore(default_root()), 3 if result.quick else 30
    config = EngineConfig(
        threads=arguments.threads, pin_threads=False, max_fixed_rows=16, prepare_first=True
    )
    with ExitStack() as stack:
        target = stack.enter_context(closing(create_engine(config)))
        draft = load_draft(arguments.draft_model, DEFAULT_MODEL, store, config)
        stack.enter_context(closing(draft.engine))
        samples = by_engine(target, draft.engine, repeats)
        report(result, samples | all_told(draft.engine, repeats))
    result.figures["draft"] = draft.name
    result.setting("target", model=DEFAULT_MODEL.name, threads=arguments.threads)
    result.setting("draft", model=draft.name, threads=arguments.threads)
    result.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
