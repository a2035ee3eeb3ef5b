"""What a request's prediction ("predicted outputs") buys.

The held-out prompts, documents left out, are answered one at a time (or `--concurrency` at once) on
one scheduler and engine in this process: without a prediction, and with one that is the reply's
text, that text with edits (in every stretch of 30 words one is replaced, one left out or two
inserted), and the text of another prompt's reply. Predictions are texts, tokenized as an edge does.
The replies have to be equal. Each block of prompts is answered with predictions of every kind, by
turns; speeds are medians over blocks.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

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
from services.inference.scheduler.types import Committed, Event, Failed, Finished, OpenRequest

KINDS = ("none", "right", "edited", "another reply")
MAX_TOKENS = 160
_STRETCH = 30
"""Words between two edits."""
_BLOCK = 4
"""Prompts whose replies are timed together; as many as are answered at once, if these are more."""


@dataclass(slots=True)
class Outcome:
    """The replies to all prompts with predictions of one kind."""

    seconds: float = 0.0
    replies: list[list[int]] = field(default_factory=list)
    num_commits: int = 0
    accepted: int = 0
    rejected: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.replies))


def edited(text: str, rng: random.Random) -> str:
    """The text with an edit in every stretch of words."""
    words = text.split(" ")
    for at in range(len(words) - _STRETCH // 2, -1, -_STRETCH):
        place = at + rng.randrange(_STRETCH // 2)
        new = rng.choice([["changed"], [], [*words[place : place + 1], "two", "more"]])
        words[place : place + 1] = new
    return " ".join(words)


def main() -> int:
    flags = parser("prediction", __doc__ or "")
    flags.add_argument("--concurrency", type=int, default=1)
    flags.add_argument("--temperature", type=float, default=0.0)
    arguments = flags.parse_args()
    run = start("prediction", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = [p for p in interleaved(load_prompts()) if p.kind != "document"]
    ids = [vocabulary.encode_chat([Message("user", p.text)]) for p in prompts]
    ids = ids[: 12 if run.quick else 40]
    bench = Bench(
        create_engine(EngineConfig(prepare_first=True)),
        vocabulary,
        arguments.concurrency,
        arguments.temperature,
    )
    truth = [vocabulary.decode(reply) for reply in bench.answer(ids, [""] * len(ids)).replies]
    rng = random.Random(1)
    predictions = {
        "none": [""] * len(truth),
        "right": truth,
        "edited": [edited(text, rng) for text in truth],
        "another reply": [*truth[1:], truth[0]],
    }
    blocks: list[dict[str, Outcome]] = []
    size = max(_BLOCK, arguments.concurrency)
    for begin in range(0, len(ids), size):
        part, turn = slice(begin, begin + size), len(blocks) % len(KINDS)
        order = KINDS[turn:] + KINDS[:turn]
        blocks.append(
            {kind: bench.answer(ids[part], predictions[kind][part], begin) for kind in order}
        )
        print(f"{min(begin + size, len(ids))} of {len(ids)} prompts", file=sys.stderr)
    num_changed = report(run, blocks, arguments.concurrency, arguments.temperature)
    run.finish()
    return 1 if num_changed else 0


def report(
    run: Run, blocks: Sequence[dict[str, Outcome]], concurrency: int, temperature: float
) -> int:
    """One row for each kind of prediction; returns how many replies a prediction changed."""
    num_changed = 0
    table = run.table(
        f"Predictions: temperature {temperature:g}, {concurrency} chats at once",
        "prediction",
        "n",
        "tokens/s",
        "speed-up",
        "tokens per call",
        "copied drafts accepted, %",
        "replies changed",
    )
    table.note("n: replies. Speeds are medians over blocks of prompts.")
    alone = [by_kind["none"] for by_kind in blocks]
    for kind in KINDS:
        done = [by_kind[kind] for by_kind in blocks]
        speeds = [one.num_tokens / one.seconds for one in done]
        ratios = [a / (b.num_tokens / b.seconds) for a, b in zip(speeds, alone, strict=True)]
        per_call = sum(one.num_tokens for one in done) / sum(one.num_commits for one in done)
        accepted = sum(one.accepted for one in done)
        tried = accepted + sum(one.rejected for one in done)
        changed = sum(
            a != b
            for one, other in zip(done, alone, strict=True)
            for a, b in zip(one.replies, other.replies, strict=True)
        )
        num_changed += changed
        table.add(
            kind,
            sum(len(one.replies) for one in done),
            table.median(speeds),
            table.median(ratios),
            round(per_call, 2),
            round(100.0 * accepted / tried, 1) if tried else "",
            changed,
        )
        run.samples(f"tokens/s, {kind}", speeds, unit="tokens/s")
        run.samples(f"speed-up, {kind}", ratios, unit="ratio")
        run.figures[kind] = {
            "tokens_per_s": round(median(speeds), 2),
            "speedup": round(median(ratios), 3),
            "tokens_per_call": round(per_call, 3),
            "accepted": accepted,
            "tried": tried,
            "changed": changed,
        }
    return num_changed


class Bench:
    """Answers prompts on one engine; a new scheduler for each kind, so none knows more."""

    def __init__(
        self, engine: Engine, vocabulary: Vocabulary, concurrency: int, temperature: float
    ) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._concurrency = concurrency
        self._temperature = temperature

    def answer(
        self, prompts: Sequence[Sequence[int]], predictions: Sequence[str], first: int = 0
    ) -> Outcome:
        """All prompts, so many at a time, each with its prediction; seeds count from `first`."""
        limits = SchedulerLimits(max_sessions=self._concurrency)
        prior = shipped_prior(self._vocabulary.tokens_digest)
        scheduler = Scheduler(self._engine.info, limits, self._new_reply, prior)
        outcome = Outcome(replies=[[] for _ in prompts])
        texts = [tuple(self._vocabulary.encode(text)) for text in predictions]
        asked = [
            OpenRequest(
                number,
                tuple(ids),
                SamplingParams(self._temperature, seed=first + number, max_tokens=MAX_TOKENS),
                prediction=prediction,
            )
            for number, (ids, prediction) in enumerate(zip(prompts, texts, strict=True))
        ]
        asked.reverse()
        begin = time.perf_counter()
        while asked or scheduler.has_work:
            # None waits: a queue is a sign of overload, which ends drafting.
            while asked and scheduler.load().running_sessions < self._concurrency:
                scheduler.open(asked.pop(), time.perf_counter())
                self._step(scheduler, outcome)
            self._step(scheduler, outcome)
        outcome.seconds = time.perf_counter() - begin
        return outcome

    def _step(self, scheduler: Scheduler, outcome: Outcome) -> None:
        batch = scheduler.schedule(time.perf_counter())
        if batch is not None:
            rows = batch.run(self._engine, scheduler.overlapped_work)
            for event in scheduler.postprocess(batch, rows, time.perf_counter()):
                _enter(outcome, event)

    def _new_reply(self, params: SamplingParams) -> ReplyText:
        return ReplyText(params, self._vocabulary.stop_ids, self._vocabulary.detokenizer())


def _enter(outcome: Outcome, event: Event) -> None:
    """No edge drafts, so a commit holds all its ids."""
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Committed):
        outcome.replies[event.session_id].extend(event.ids)
        outcome.num_commits += 1
    if isinstance(event, Finished):
        outcome.accepted += event.usage.accepted_prediction_tokens
        outcome.rejected += event.usage.rejected_prediction_tokens


if __name__ == "__main__":
    sys.exit(main())
