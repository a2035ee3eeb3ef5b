"""Time to the first token of chats that share a long system prompt, with prefix reuse against
without.

One replica, one chat at a time. Every chat is asked twice in turn: under the salt that all chats
share, and under one of its own, where nothing can be reused. Both replies must be the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bench.harness import Run, median, parser, start
from bench.harness.prompts import load_prompts
from bench.harness.region_client import RegionClient, Reply
from bench.harness.replica import SETTINGS, coder_of, replica_process
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

THREADS = 1
"""Of the engine."""
SYSTEM_TOKENS = 600
SAMPLING = SamplingParams(max_tokens=6)


@dataclass(slots=True)
class Samples:
    """Replies, chat by chat."""

    shared: list[Reply] = field(default_factory=list)
    alone: list[Reply] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were reused where they could be."""
        asked = sum(reply.prompt_tokens for reply in self.shared)
        return sum(reply.cached_tokens for reply in self.shared) / asked

    @property
    def num_equal(self) -> int:
        pairs = zip(self.shared, self.alone, strict=True)
        return sum(one.ids == other.ids for one, other in pairs)


def system_prompt(vocabulary: Vocabulary) -> str:
    """Plain text of about SYSTEM_TOKENS tokens."""
    words = " ".join(prompt.text for prompt in load_prompts("document")).split()
    count = SYSTEM_TOKENS // 2
    while len(vocabulary.encode_chat([Message("system", " ".join(words[:count]))])) < SYSTEM_TOKENS:
        count += 1
    return " ".join(words[:count])


def chats(vocabulary: Vocabulary, count: int) -> list[tuple[int, ...]]:
    """Prompts that begin with the same system message and go on with different questions."""
    system = Message("system", system_prompt(vocabulary))
    texts = [prompt.text for prompt in load_prompts("chat_short")]
    return [
        tuple(
            vocabulary.encode_chat(
                [system, Message("user", f"Question {turn}: {texts[turn % len(texts)]}")]
            )
        )
        for turn in range(count)
    ]


async def measure(vocabulary: Vocabulary, count: int) -> Samples:
    """Ask every chat both ways, one at a time; the first one warms up and is left out."""
    samples = Samples()
    async with (
        replica_process({"threads": THREADS}) as service,
        RegionClient(coder_of(vocabulary), service.address, via_router=False) as client,
    ):
        for turn, prompt in enumerate(chats(vocabulary, count + 1)):
            for salt, replies in ((b"all", samples.shared), (b"%d" % turn, samples.alone)):
                reply = await client.generate(
                    prompt, SAMPLING, digest=vocabulary.digest, cache_salt=salt
                )
                if turn:
                    replies.append(reply)
    return samples


def report(run: Run, samples: Samples) -> None:
    title = "Time to first token of chats behind one system prompt of 600 tokens, ms"
    table = run.table(title, "prefix cache", "n", "p50", "p95")
    medians = {}
    for way, replies in (("reuse", samples.shared), ("no reuse", samples.alone)):
        ttft_ms = [reply.ttft_ms for reply in replies]
        medians[way] = median(ttft_ms)
        table.add(way, len(ttft_ms), table.median(ttft_ms), table.quantile(ttft_ms, 0.95))
        run.samples(way, ttft_ms, unit="ms")
    run.figures["prefix_ttft_gain"] = round(medians["no reuse"] / medians["reuse"], 2)
    run.figures["prefix_hit_rate"] = round(samples.hit_rate, 4)
    run.figures["num_chats"] = len(samples.shared)
    run.figures["exact"] = f"{samples.num_equal} of {len(samples.shared)}"


def main() -> int:
    run = start("prefix", parser("prefix", __doc__ or "").parse_args())
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    count = 10 if run.quick else 120
    run.setting("replica", threads=THREADS, **SETTINGS)
    samples = asyncio.run(measure(vocabulary, count))
    report(run, samples)
    run.finish()
    return int(samples.num_equal != len(samples.shared))


if __name__ == "__main__":
    raise SystemExit(main())
