"""What `acceptance_threshold` buys and what it changes.

The prompts of `bench/data/test` at temperature 0.8 with a seed each, several at a
time, on one scheduler and engine in this process. (Greedily nothing would change: a draft of
probability 0.5 or more is the model's choice.) `let through`: tokens that are not the model's own
choice, marked as such. `changed`: tokens of the exact reply that the lossy one lacks (in order, by
difflib): behind a token let through the model goes on from there. Rounds take turns; speeds are
medians.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import SequenceMatcher

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

THRESHOLDS = (0.0, 0.95, 0.9, 0.7, 0.5)
"""0 is exact."""
MAX_TOKENS = 96
TEMPERATURE = 0.8
CONCURRENCY = 4


def main() -> int:
    run = start("lossy", parser("lossy", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    prompts = interleaved(load_prompts(split="test"))
    ids = [vocabulary.encode_chat([Message("user", p.text)]) for p in prompts]
    ids = ids[:20] if run.quick else ids
    engine = create_engine(EngineConfig(prepare_first=True))
    rounds: list[dict[float, Outcome]] = []
    for turn in range(1 if run.quick else 3):
        done: dict[float, Outcome] = {}
        for threshold in rotated(THRESHOLDS, turn):
            sampling = SamplingParams(
                temperature=TEMPERATURE, max_tokens=MAX_TOKENS, acceptance_threshold=threshold
            )
            done[threshold] = answer(engine, vocabulary, ids, sampling, concurrency=CONCURRENCY)
        rounds.append(done)
        print(f"round {turn + 1}", file=sys.stderr)
    engine.close()
    report(run, rounds)
    run.finish()
    return 0


def report(run: Run, rounds: Sequence[dict[float, Outcome]]) -> None:
    """One row for each threshold."""
    table = run.table(
        "Speed and replies with `acceptance_threshold` against exact mode: "
        f"temperature {TEMPERATURE:g}, {CONCURRENCY} chats at once",
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
        name = f"{threshold:g}" if threshold else "exact"
        speeds, speedups = _speeds(rounds, threshold)
        num_replies = sum(len(by_threshold[threshold].replies) for by_threshold in rounds)
        shares = _shares(rounds, threshold)
        table.add(name, num_replies, table.median(speeds), table.median(speedups), *shares)
        run.samples(f"tokens/s, {name}", speeds, unit="tokens/s")
        run.samples(f"speed-up, {name}", speedups, unit="ratio")


def _shares(rounds: Sequence[dict[float, Outcome]], threshold: float) -> tuple[float, ...]:
    """Tokens per step; percent of tokens let through and changed, and of replies changed."""
    done = [by_threshold[threshold] for by_threshold in rounds]
    exact = [by_threshold[0.0] for by_threshold in rounds]
    pairs = [
        pair
        for one, true in zip(done, exact, strict=True)
        for pair in zip(one.replies, true.replies, strict=True)
    ]
    num_tokens = sum(one.num_tokens for one in done)
    return (
        num_tokens / sum(one.num_commits for one in done),
        100.0 * sum(one.num_lossy for one in done) / num_tokens,
        100.0
        * sum(_num_changed(reply, true) for reply, true in pairs)
        / sum(one.num_tokens for one in exact),
        100.0 * sum(a != b for a, b in pairs) / len(pairs),
    )


def _speeds(
    rounds: Sequence[dict[float, Outcome]], threshold: float
) -> tuple[list[float], list[float]]:
    """Tokens per second, and those over the exact ones\', round by round."""
    speeds = [one[threshold].tokens_per_s for one in rounds]
    exact = [one[0.0].tokens_per_s for one in rounds]
    return speeds, [a / b for a, b in zip(speeds, exact, strict=True)]


def _num_changed(reply: list[int], true: list[int]) -> int:
    blocks = SequenceMatcher(None, reply, true, autojunk=False).get_matching_blocks()
    return len(true) - sum(block.size for block in blocks)


if __name__ == "__main__":
    sys.exit(main())
