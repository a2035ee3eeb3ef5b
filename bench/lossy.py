"""What `acceptance_threshold` buys and what it changes.

The held-out prompts, documents left out, at temperature 0.8 with a seed each, several at a
time, on one scheduler and engine in this process. (Greedily nothing would change: a draft of
probability 0.5 or more is the model's choice.) `let through`: tokens that are not the model's own
choice, marked as such. `changed`: tokens of the exact reply that the lossy one lacks (in order, by
difflib): behind a token let through the model goes on from there. Rounds take turns; speeds are
medians.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from bench.harness import Run, median, parser, start
from bench.harness.prompts import interleaved, load_prompts
from outrider.engines.base import Engine
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.speculation.shipped import shipped_prior
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.scheduler import Scheduler
from services.inference.scheduler.types import Committed, Event, Failed, OpenRequest

THRESHOLDS = (0.0, 0.95, 0.9, 0.7, 0.5)
"""0 is exact."""
MAX_TOKENS = 96
TEMPERATURE = 0.8


@dataclass(slots=True)
class ThresholdResult:
    """The replies to all prompts at one threshold."""

    seconds: float = 0.0
    replies: list[list[int]] = field(default_factory=list)
    num_lossy: int = 0
    num_commits: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.replies))


def main() -> int:
    flags = parser("lossy", __doc__ or "")
    flags.add_argument("--concurrency", type=int, default=4)
    flags.add_argument("--rounds", type=int, help="default 3, quick 1")
    arguments = flags.parse_args()
    run = start("lossy", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = [p for p in interleaved(load_prompts()) if p.kind != "document"]
    ids = [vocabulary.encode_chat([Message("user", p.text)]) for p in prompts]
    ids = ids[:20] if run.quick else ids
    rounds: list[dict[float, ThresholdResult]] = []
    bench = Bench(
        create_engine(EngineConfig(prepare_first=True)), vocabulary, arguments.concurrency
    )
    for turn in range(arguments.rounds or (1 if run.quick else 3)):
        order = THRESHOLDS[turn % 5 :] + THRESHOLDS[: turn % 5]
        rounds.append({threshold: bench.answer(ids, threshold) for threshold in order})
        print(f"round {turn + 1}", file=sys.stderr)
    report(run, rounds, arguments.concurrency)
    run.finish()
    return 0


def report(run: Run, rounds: Sequence[dict[float, ThresholdResult]], concurrency: int) -> None:
    """One row for each threshold."""
    table = run.table(
        "Speed and replies with `acceptance_threshold` against exact mode: "
        f"temperature {TEMPERATURE:g}, {concurrency} chats at once",
        "threshold",
        "n",
        "tokens/s",
        "speed-up",
        "tokens per step",
        "tokens let through, %",
        "tokens changed, %",
        "replies changed, %",
    )
    table.note("n: replies, of all rounds. Speeds are medians over rounds.")
    for threshold in THRESHOLDS:
        figures, name = _figures(rounds, threshold), f"{threshold:g}" if threshold else "exact"
        speeds, speedups = _speeds(rounds, threshold)
        counts = list(figures.values())[2:]
        num_replies = sum(len(by_threshold[threshold].replies) for by_threshold in rounds)
        table.add(name, num_replies, table.median(speeds), table.median(speedups), *counts)
        run.samples(f"tokens/s, {name}", speeds, unit="tokens/s")
        run.samples(f"speed-up, {name}", speedups, unit="ratio")
        run.figures[f"{threshold:g}"] = {name: round(value, 4) for name, value in figures.items()}


def _figures(rounds: Sequence[dict[float, ThresholdResult]], threshold: float) -> dict[str, float]:
    done = [by_threshold[threshold] for by_threshold in rounds]
    exact = [by_threshold[0.0] for by_threshold in rounds]
    speeds, speedups = _speeds(rounds, threshold)
    pairs = [
        pair
        for one, true in zip(done, exact, strict=True)
        for pair in zip(one.replies, true.replies, strict=True)
    ]
    num_tokens = sum(one.num_tokens for one in done)
    return {
        "tokens_per_s": median(speeds),
        "speedup": median(speedups),
        "tokens_per_step": num_tokens / sum(one.num_commits for one in done),
        "let_through_percent": 100.0 * sum(one.num_lossy for one in done) / num_tokens,
        "changed_percent": 100.0
        * sum(_num_changed(reply, true) for reply, true in pairs)
        / sum(one.num_tokens for one in exact),
        "replies_changed_percent": 100.0 * sum(a != b for a, b in pairs) / len(pairs),
    }


def _speeds(
    rounds: Sequence[dict[float, ThresholdResult]], threshold: float
) -> tuple[list[float], list[float]]:
    """Tokens per second, and those over the exact ones\', round by round."""
    speeds = [one[threshold].num_tokens / one[threshold].seconds for one in rounds]
    exact = [one[0.0].num_tokens / one[0.0].seconds for one in rounds]
    return speeds, [a / b for a, b in zip(speeds, exact, strict=True)]


def _num_changed(reply: list[int], true: list[int]) -> int:
    blocks = SequenceMatcher(None, reply, true, autojunk=False).get_matching_blocks()
    return len(true) - sum(block.size for block in blocks)


class Bench:
    """Answers prompts on one engine; a new scheduler for each threshold, so none knows more."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary, concurrency: int) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._concurrency = concurrency

    def answer(self, prompts: Sequence[Sequence[int]], threshold: float) -> ThresholdResult:
        """All prompts, so many at a time."""
        limits = SchedulerLimits(max_sessions=self._concurrency, max_queue=len(prompts))
        prior = shipped_prior(self._vocabulary.tokens_digest)
        scheduler = Scheduler(self._engine.info, limits, self._new_reply, prior)
        outcome = ThresholdResult(replies=[[] for _ in prompts])
        begin = time.perf_counter()
        for number, ids in enumerate(prompts):
            sampling = SamplingParams(
                temperature=TEMPERATURE,
                seed=number,
                max_tokens=MAX_TOKENS,
                acceptance_threshold=threshold,
            )
            scheduler.open(OpenRequest(number, tuple(ids), sampling), time.perf_counter())
        while (batch := scheduler.schedule(time.perf_counter())) is not None:
            rows = batch.run(self._engine, scheduler.overlapped_work)
            for event in scheduler.postprocess(batch, rows, time.perf_counter()):
                _enter(outcome, event)
        outcome.seconds = time.perf_counter() - begin
        return outcome

    def _new_reply(self, params: SamplingParams) -> ReplyText:
        return ReplyText(params, self._vocabulary.stop_ids, self._vocabulary.detokenizer())


def _enter(outcome: ThresholdResult, event: Event) -> None:
    """No edge drafts, so a commit holds all its ids."""
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Committed):
        outcome.replies[event.session_id].extend(event.ids)
        outcome.num_lossy += len(event.lossy)
        outcome.num_commits += 1


if __name__ == "__main__":
    sys.exit(main())
