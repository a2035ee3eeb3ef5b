"""Models of every kind that is claimed: starts, memory, exactness.

Replicas are started as `outrider up` starts them, with a KV pool that is next to empty when memory
is read. Their replies are compared with the reference's. Models larger than the default one come
from the package index (bench.harness.larger_models); where they cannot be had, the table says so.
`--quick` leaves out the largest one. What tiny models of all types of ggml say is compared with
numpy in `tests/fidelity`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from bench.harness import Run, parser, start
from bench.harness.prompts import interleaved, load_prompts
from bench.harness.region_client import RegionClient
from bench.harness.replica import coder_of
from bench.models import subjects
from bench.models.replicas import KV_BYTES, Memory, own_models, replica_process
from bench.models.subjects import Subject
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.catalog import lookup
from outrider.models.chat import Message
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.reference import generate

NUM_PROMPTS, QUICK_PROMPTS = 4, 2
NUM_TOKENS: Final = 32
"""Of a reply."""
MAX_PROMPT_TOKENS: Final = 512
"""Longer prompts are left out: the replica's KV pool is next to empty, since its memory is read."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One reply that is compared."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one model."""

    subject: Subject
    cold_s: float
    warm_s: float
    cold_peak_mb: float
    """While it converts, without the converter's own process."""
    memory: Memory
    """With the models for small calls that are chosen, and the replies done."""
    copies: Sequence[int]
    """Numbers of rows that have a model of their own."""
    num_replies: int
    num_equal: int
    num_tokens: int

    @property
    def exact(self) -> bool:
        """Whether every reply is the reference's."""
        return self.num_replies > 0 and self.num_equal == self.num_replies


async def measure(subject: Subject, store: ModelStore, num_prompts: int) -> Measured:
    """Everything of one model that is in the store, and was never converted."""
    name = subject.spec.name
    async with replica_process(name, {"max_fixed_rows": 0}) as replica:
        cold_s, cold_peak_mb = replica.start_s, Memory.of(replica.pid).peak
    vocabulary = await asyncio.to_thread(load_vocabulary, subject.spec, store)
    asks = asks_of(vocabulary, num_prompts)
    async with replica_process(name) as replica:
        copies = await own_models(replica)
        replies = await ask_replica(replica.address, vocabulary, asks)
        memory = Memory.of(replica.pid)
    truth = await asyncio.to_thread(references, name, vocabulary, asks)
    return Measured(
        subject,
        cold_s,
        replica.start_s,
        cold_peak_mb,
        memory,
        copies,
        num_replies=len(truth),
        num_equal=sum(a == b for a, b in zip(replies, truth, strict=True)),
        num_tokens=sum(len(ids) for ids, _ in truth),
    )


def asks_of(vocabulary: Vocabulary, num_prompts: int) -> list[Ask]:
    """Each prompt twice: greedy, and sampled with a seed."""
    written = interleaved(load_prompts())
    encoded = (vocabulary.encode_chat([Message("user", p.text)]) for p in written)
    prompts = list(islice((ids for ids in encoded if len(ids) <= MAX_PROMPT_TOKENS), num_prompts))
    how = (
        SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True),
        SamplingParams(
            temperature=0.8, top_p=0.95, seed=20261123, max_tokens=NUM_TOKENS, ignore_eos=True
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


def references(
    name: str, vocabulary: Vocabulary, asks: Sequence[Ask]
) -> list[tuple[tuple[int, ...], str]]:
    """The truth: one token at a time; blocks."""
    own = {"kv_bytes": KV_BYTES, "max_fixed_rows": 0, "model": name}
    engine = create_engine(EngineConfig(**lookup(name).engine_settings() | own))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    try:
        replies = [generate(engine, ask.prompt, ask.sampling, new_reply) for ask in asks]
    finally:
        engine.close()
    return [(reply.ids, reply.text) for reply in replies]


def report(run: Run, found: Sequence[Measured], missing: Mapping[str, str]) -> None:
    """The table."""
    table = run.table(
        "A replica of each model: seconds until it serves, MB that its process holds without KV, "
        "replies that equal the reference's",
        *("model", "format", "ready, cold, s", "ready, warm, s", "peak, cold, MB"),
        *("peak, MB", "resident, MB", "proportional, MB", "anonymous, MB"),
        *("own models for rows", "tokens", "equal replies"),
    )
    for one in found:
        memory = one.memory
        table.add(
            *(one.subject.spec.name, one.subject.what, one.cold_s, one.warm_s, one.cold_peak_mb),
            *(memory.peak, memory.resident, memory.proportional, memory.anonymous),
            *(", ".join(map(str, one.copies)) or "none", one.num_tokens),
            f"{one.num_equal} of {one.num_replies}",
        )
    for text in missing.values():
        table.note(f"{text}.")


async def _measure(run: Run, work: Path) -> bool:
    known = await asyncio.to_thread(subjects.gather, work, quick=run.quick)
    found: list[Measured] = []
    for subject in known.models:
        print(f"{subject.spec.name} ({subject.what})", file=sys.stderr, flush=True)
        num_prompts = QUICK_PROMPTS if run.quick else NUM_PROMPTS
        found.append(await measure(subject, known.store, num_prompts))
    report(run, found, known.missing)
    return all(one.exact for one in found)


def main() -> int:
    run = start("models", parser("models", __doc__ or "").parse_args())
    run.setting("engine", threads=1, kv_bytes=KV_BYTES)
    with tempfile.TemporaryDirectory(prefix="outrider-models-") as work:
        good = asyncio.run(_measure(run, Path(work)))
    run.finish()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
