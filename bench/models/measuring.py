"""One model: its starts, its memory, its replies, its speed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from bench.harness.prompts import interleaved, load_prompts
from bench.harness.region_client import RegionClient
from bench.harness.replica import coder_of
from bench.models.engine_worker import EngineWorker, engine_worker
from bench.models.replicas import Memory, own_models, replica_process
from bench.models.subjects import Subject, tiny_prompt
from outrider.models.chat import Message
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

NO_DRAFTS: Final = "no drafts"
DRAFTS: Final = "with drafts"
PATTERNS: Final[Mapping[str, tuple[int, ...]]] = {NO_DRAFTS: (0,), DRAFTS: (0, 1, 3)}
"""Tokens that are guessed for each call, in turn: calls of 1 row, or of 1, 2 and 4."""
ALL_ROWS: Final = 4
"""The largest of these calls."""
CHOSEN: Final = "as chosen"
NONE: Final = "none"
ALL: Final = "all"
VARIANTS: Final[Mapping[str, Mapping[str, object]]] = {
    CHOSEN: {},
    NONE: {"max_fixed_rows": 0},
    ALL: {"max_fixed_rows": ALL_ROWS, "max_fixed_bytes": 1 << 40},
}
"""Which numbers of rows have a model of their own."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of one run."""

    prompts: int
    tokens: int
    """Of a reply."""
    turns: int
    """In which the variants are timed."""


FULL: Final = Size(prompts=4, tokens=32, turns=8)
QUICK: Final = Size(prompts=2, tokens=16, turns=2)
MAX_PROMPT_TOKENS: Final = 512
"""Longer prompts are left out: the replica's KV pool is next to empty, since its memory is read."""


@dataclass(slots=True)
class Measured:
    """Of one model."""

    subject: Subject
    cold_s: float = 0.0
    warm_s: float = 0.0
    cold_peak_mb: float = 0.0
    """While it converts, without the converter's own process."""
    memory: Memory | None = None
    """With those that are chosen, and the replies done."""
    copies: list[int] = field(default_factory=list)
    num_replies: int = 0
    num_equal: int = 0
    num_tokens: int = 0
    tokens_per_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By pattern and variant, a value per turn."""
    cpu_ms: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Of a token, likewise."""

    @property
    def exact(self) -> bool:
        """Whether every reply is the reference's."""
        return self.num_replies > 0 and self.num_equal == self.num_replies


@dataclass(frozen=True, slots=True)
class Ask:
    """One reply that is compared."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


async def measure(subject: Subject, store: ModelStore, size: Size) -> Measured:
    """Everything of one model that is in the store, and was never converted."""
    found = Measured(subject)
    name = subject.spec.name
    async with replica_process(name, {"max_fixed_rows": 0}) as replica:
        found.cold_s = replica.start_s
        found.cold_peak_mb = Memory.of(replica.pid).peak
    vocabulary = await asyncio.to_thread(load_vocabulary, subject.spec, store)
    asks = asks_of(subject, vocabulary, size)
    async with replica_process(name) as replica:
        found.warm_s = replica.start_s
        found.copies = await own_models(replica)
        replies = await ask_replica(replica.address, vocabulary, asks)
        found.memory = Memory.of(replica.pid)
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(engine_worker(name, **VARIANTS[NONE]))
        truth = [await reference(bare, ask) for ask in asks]
        found.num_replies = len(truth)
        found.num_tokens = sum(len(ids) for ids, _ in truth)
        found.num_equal = sum(a == b for a, b in zip(replies, truth, strict=True))
        if subject.is_timed:
            greedy = [(a.prompt, r[0]) for a, r in zip(asks, truth, strict=True)
                      if not a.sampling.temperature]  # fmt: skip
            others = {
                variant: await stack.enter_async_context(engine_worker(name, **settings))
                for variant, settings in VARIANTS.items()
                if variant != NONE
            }
            await _time(found, {NONE: bare, **others}, greedy, size.turns)
    return found


def asks_of(subject: Subject, vocabulary: Vocabulary, size: Size) -> list[Ask]:
    """Each prompt twice: greedy, and sampled with a seed."""
    if subject.is_tiny:
        prompts = [tiny_prompt(number) for number in range(size.prompts)]
    else:
        written = interleaved(load_prompts())
        encoded = (vocabulary.encode_chat([Message("user", p.text)]) for p in written)
        short = (ids for ids in encoded if len(ids) <= MAX_PROMPT_TOKENS)
        prompts = list(islice(short, size.prompts))
    how = (
        SamplingParams(max_tokens=size.tokens, ignore_eos=True),
        SamplingParams(
            temperature=0.8, top_p=0.95, seed=20261123, max_tokens=size.tokens, ignore_eos=True
        ),
    )
    return [Ask(tuple(prompt), sampling) for prompt in prompts for sampling in how]


async def ask_replica(
    address: str, vocabulary: Vocabulary, asks: Sequence[Ask]
) -> list[tuple[tuple[int, ...], str]]:
    """Ids and text of the replies, asked all at once, as edges ask: drafts are welcome."""
    digest = vocabulary.digest
    async with RegionClient(coder_of(vocabulary), address, via_router=False) as client:
        replies = await asyncio.gather(
            *(client.generate(ask.prompt, ask.sampling, digest=digest) for ask in asks)
        )
    return [(tuple(reply.ids), vocabulary.decode(reply.ids)) for reply in replies]


async def reference(worker: EngineWorker, ask: Ask) -> tuple[tuple[int, ...], str]:
    """The truth: one token at a time (services/inference/reference.py)."""
    sampling = ask.sampling
    told = {
        name: getattr(sampling, name)
        for name in ("temperature", "top_p", "seed", "max_tokens", "ignore_eos")
    }
    answer = await worker.ask(kind="generate", prompt=ask.prompt, sampling=told)
    return tuple(answer["ids"]), answer["text"]


async def _time(
    found: Measured,
    workers: Mapping[str, EngineWorker],
    replies: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    turns: int,
) -> None:
    """Have each variant decode the same reply in turn, and the turns begin with each of them."""
    order = list(workers)
    for turn in range(-1, turns):  # the first is not counted
        order = [*order[1:], order[0]]
        prompt, reply = replies[turn % len(replies)]
        for pattern, drafts in PATTERNS.items():
            for variant in order:
                done = await workers[variant].ask(
                    kind="decode", prompt=prompt, reply=reply, drafts=drafts
                )
                if turn >= 0:
                    _keep(found, pattern, variant, done)


def _keep(found: Measured, pattern: str, variant: str, done: Mapping[str, Any]) -> None:
    """A reply whose tokens are not the likeliest ones counts as one that differs."""
    found.num_replies += 1
    found.num_equal += bool(done["equal"])
    speeds = found.tokens_per_s.setdefault(pattern, {}).setdefault(variant, [])
    speeds.append(done["tokens"] / done["seconds"])
    times = found.cpu_ms.setdefault(pattern, {}).setdefault(variant, [])
    times.append(done["cpu_seconds"] * 1000 / done["tokens"])
