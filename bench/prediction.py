"""What a request's prediction ("predicted outputs") buys.

The prompts of `bench/data/test` are answered one at a time on one scheduler and engine in
this process: without a prediction, and with one that is the reply's text, that text with edits (in
every stretch of 30 words one is replaced, one left out or two inserted), and the text of another
prompt's reply. Predictions are texts, tokenized as an edge does. The replies have to be equal. Each
block of prompts is answered with predictions of every kind, by turns; speeds are medians over
blocks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from bench.harness import Run, parser, start
from bench.harness.prompts import interleaved, load_prompts
from bench.harness.scheduled import Outcome, answer
from bench.peers.lineup import rotated
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams

KINDS = ("none", "right", "edited", "another reply")
MAX_TOKENS = 160
_STRETCH = 30
"""Words between two edits."""
_BLOCK = 4
"""Prompts whose replies are timed together."""


def edited(text: str, rng: random.Random) -> str:
    """The text with an edit in every stretch of words."""
    words = text.split(" ")
    for at in range(len(words) - _STRETCH // 2, -1, -_STRETCH):
        place = at + rng.randrange(_STRETCH // 2)
        new = rng.choice([["changed"], [], [*words[place : place + 1], "two", "more"]])
        words[place : place + 1] = new
    return " ".join(words)


def main() -> int:
    run = start("prediction", parser("prediction", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = interleaved(load_prompts(split="test"))
    ids = [vocabulary.encode_chat([Message("user", p.text)]) for p in prompts]
    ids = ids[: 12 if run.quick else 40]
    engine = create_engine(EngineConfig(prepare_first=True))

    def answered(first: int, count: int, texts: Sequence[str]) -> Outcome:
        asked, sampling = ids[first : first + count], SamplingParams(max_tokens=MAX_TOKENS)
        return answer(
            *(engine, vocabulary, asked, sampling),
            concurrency=1,
            first_seed=first,
            predictions=texts,
        )

    truth = [vocabulary.decode(reply) for reply in answered(0, len(ids), ()).replies]
    rng = random.Random(1)
    predictions = {
        "none": [""] * len(truth),
        "right": truth,
        "edited": [edited(text, rng) for text in truth],
        "another reply": [*truth[1:], truth[0]],
    }
    blocks: list[dict[str, Outcome]] = []
    for turn, begin in enumerate(range(0, len(ids), _BLOCK)):
        part = slice(begin, begin + _BLOCK)
        blocks.append(
            {
                kind: answered(begin, _BLOCK, predictions[kind][part])
                for kind in rotated(KINDS, turn)
            }
        )
        print(f"{min(begin + _BLOCK, len(ids))} of {len(ids)} prompts", file=sys.stderr)
    engine.close()
    num_changed = report(run, blocks)
    run.finish()
    return 1 if num_changed else 0


def report(run: Run, blocks: Sequence[dict[str, Outcome]]) -> int:
    """One row for each kind of prediction; returns how many replies a prediction changed."""
    num_changed = 0
    table = run.table(
        "Predictions: temperature 0, 1 chats at once",
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
        speeds = [one.tokens_per_s for one in done]
        ratios = [a / b.tokens_per_s for a, b in zip(speeds, alone, strict=True)]
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
    return num_changed


if __name__ == "__main__":
    sys.exit(main())
