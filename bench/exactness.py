"""Every prompt through a real mesh against `outrider reference`, byte for byte.

The mesh is started as users start it, the chats run through `outrider chat`; only the edge that
drafts garbage, and the one that drafts what the reference will say, speak to the router directly.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Run, Table, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from bench.harness.prompts import Prompt, as_prompt_file, interleaved, load_prompts
from bench.harness.region_client import Drafter, RegionClient
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

MAX_TOKENS = 64
GARBAGE_TOKENS = 8
CORE_PROMPTS = 28


@dataclass(frozen=True, slots=True)
class Work:
    """The prompts and the one way of sampling that a comparison is made for."""

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    name: str

    def flags(self, folder: Path) -> list[str]:
        """The flags `outrider chat` and `outrider reference` share."""
        file = folder / "prompts.jsonl"
        file.write_text(as_prompt_file(self.prompts), encoding="utf-8")
        return [
            *("--prompt-file", str(file), "--json"),
            *("--temperature", str(self.sampling.temperature)),
            *("--top-p", str(self.sampling.top_p), "--seed", str(self.sampling.seed)),
            *("--max-tokens", str(self.sampling.max_tokens)),
        ]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is compared of one reply."""

    text: str
    ids: tuple[int, ...]


Variant = Callable[[LocalMesh, Work, Sequence[Answer]], list[Answer]]


def reference(work: Work) -> list[Answer]:
    """The truth, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = outrider("reference", "--threads", "2", *work.flags(Path(folder)))
    return _answers(done.stdout)


def chat(*flags: str) -> Variant:
    """Through `outrider chat` with these flags."""

    def run(mesh: LocalMesh, work: Work, _: Sequence[Answer]) -> list[Answer]:
        with tempfile.TemporaryDirectory() as folder:
            where = ("--state-dir", str(mesh.state_dir))
            return _answers(outrider("chat", *where, *flags, *work.flags(Path(folder))).stdout)

    return run


def _answers(lines: str) -> list[Answer]:
    rows = [json.loads(line) for line in lines.splitlines()]
    return [Answer(row["text"], tuple(row["ids"])) for row in rows]


def drafting(make: Callable[[Vocabulary, Answer, int], Drafter], parallel: int) -> Variant:
    """Through an edge of our own, straight to the router, that drafts as `make` says."""

    def run(mesh: LocalMesh, work: Work, truth: Sequence[Answer]) -> list[Answer]:
        return asyncio.run(_draft_all(mesh, work, truth, make, parallel))

    return run


async def _draft_all(
    mesh: LocalMesh,
    work: Work,
    truth: Sequence[Answer],
    make: Callable[[Vocabulary, Answer, int], Drafter],
    parallel: int,
) -> list[Answer]:
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    gate = asyncio.Semaphore(parallel)
    async with RegionClient(
        coder, mesh.address("router"), via_router=True, tls=mesh.tls("edge")
    ) as client:

        async def one(number: int, prompt: Prompt) -> Answer:
            ids = vocabulary.encode_chat([Message("user", prompt.text)])
            drafter = make(vocabulary, truth[number], number)
            async with gate:
                reply = await client.generate(
                    ids, work.sampling, digest=vocabulary.digest, drafter=drafter
                )
            shown = reply.ids[:-1] if reply.ids[-1] in vocabulary.stop_ids else reply.ids
            return Answer(vocabulary.decode(shown), tuple(reply.ids))

        return list(await asyncio.gather(*(one(n, p) for n, p in enumerate(work.prompts))))


def garbage(vocabulary: Vocabulary, _: Answer, number: int) -> Drafter:
    """Random ids, every time."""
    rng = random.Random(number)
    return lambda _reply: [rng.randrange(vocabulary.size) for _ in range(GARBAGE_TOKENS)]


def foresight(_: Vocabulary, truth: Answer, number: int) -> Drafter:
    """What the reference says next, with a wrong id now and then."""
    rng = random.Random(number)

    def draft(reply: Sequence[int]) -> list[int]:
        ahead = list(truth.ids[len(reply) : len(reply) + GARBAGE_TOKENS])
        if ahead and rng.random() < 0.3:
            ahead[rng.randrange(len(ahead))] = rng.randrange(1000)
        return ahead

    return draft


@dataclass(frozen=True, slots=True)
class Stage:
    """One mesh and the variants run on it."""

    settings: tuple[str, ...]
    variants: tuple[tuple[str, Variant], ...]


def stages(*, quick: bool) -> list[Stage]:
    """All meshes, or the first alone."""
    on, off = ("--speculation", "on"), ("--speculation", "off")
    eight = ("--parallel", "8")
    first = (
        ("drafts on, 1 at once", chat(*on)),
        ("drafts on, 8 at once", chat(*on, *eight)),
        ("drafts off, 8 at once", chat(*off, *eight)),
        ("garbage drafts, 8 at once", drafting(garbage, 8)),
        ("mostly right drafts, 8 at once", drafting(foresight, 8)),
    )
    tiny = ("drafts on, 8 at once, prefill chunks of 7", chat(*on, *eight))
    large = ("drafts on, 8 at once, prefill chunks of 4096", chat(*on, *eight))
    chunk = "inference.scheduler.prefill_chunk_tokens"
    batch = "inference.scheduler.max_batch_tokens=8192"
    all_stages = [
        Stage((), first),
        Stage((f"{chunk}=7",), (tiny,)),
        Stage((f"{chunk}=4096", batch), (large,)),
    ]
    return all_stages[:1] if quick else all_stages


def compare(run: Run, works: Sequence[Work], plan: Sequence[Stage]) -> bool:
    """Fill the table; True if every text and every id is equal."""
    table = run.table(
        "Replies through a mesh that equal those of `outrider reference` in every token and "
        "character",
        "drafts and load", "sampling", "prompts", "tokens", "equal replies",
    )  # fmt: skip
    truths = [reference(work) for work in works]
    exact = True
    for stage in plan:
        with local_mesh(settings=stage.settings) as mesh:
            for name, variant in stage.variants:
                for work, truth in zip(works, truths, strict=True):
                    got = variant(mesh, work, truth)
                    exact &= _row(table, name, work, got, truth)
    return exact


def _row(
    table: Table, name: str, work: Work, got: Sequence[Answer], truth: Sequence[Answer]
) -> bool:
    equal = sum(a == b for a, b in zip(got, truth, strict=True))
    tokens = sum(len(answer.ids) for answer in truth)
    table.add(name, work.name, len(truth), tokens, f"{equal} of {len(truth)}")
    print(f"{name}, {work.name}: {equal} of {len(truth)} equal", file=sys.stderr)
    for prompt, a, b in zip(work.prompts, got, truth, strict=True):
        if a != b:
            print(f"DIFFERS {name}, {work.name}, {prompt.id}:\n  mesh {a}\n  reference {b}")
    return equal == len(truth)


def works(prompts: tuple[Prompt, ...]) -> list[Work]:
    """Greedy, and T=0.8 with a seed."""
    greedy = SamplingParams(max_tokens=MAX_TOKENS)
    sampled = SamplingParams(temperature=0.8, top_p=0.95, seed=20261121, max_tokens=MAX_TOKENS)
    return [Work(prompts, greedy, "greedy"), Work(prompts, sampled, "T=0.8, top-p 0.95")]


def main() -> int:
    core = f"every mesh and variant, with {CORE_PROMPTS} held-out prompts"
    arguments = parser("exactness", __doc__ or "", core=core).parse_args()
    run = start("exactness", arguments)
    prompts = interleaved(load_prompts(split="all"))
    prompts = interleaved(load_prompts())[:CORE_PROMPTS] if arguments.core else prompts
    prompts = prompts[:10] if arguments.quick else prompts
    exact = compare(run, works(prompts), stages(quick=arguments.quick))
    run.figures |= {"exact": exact, "prompts": len(prompts)}
    run.finish()
    return 0 if exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
