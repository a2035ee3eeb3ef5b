"""Every prompt through a real mesh against `outrider reference`, byte for byte.

The mesh is started as users start it, the chats run through `outrider chat`; only the edge that
drafts garbage, and the one that drafts what the reference will say, speak to the router directly.

`--model` compares another model than the default one, by name, file or folder, with fewer prompts
where it is large, and `--engine` another engine against its own reference; both record nothing. A
model whose definition names a draft is compared once that one drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import Run, Table, parser, start
from bench.harness.local_mesh import LocalMesh, local_mesh, outrider
from bench.harness.prompts import Prompt, as_prompt_file, interleaved, load_prompts
from bench.harness.region_client import Drafter, RegionClient
from outrider.cli.model_choice import choose
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.chat import Message
from outrider.models.definitions import NO_DRAFT
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.sampling.params import SamplingParams

MAX_TOKENS = 64
GARBAGE_TOKENS = 8
CORE_PROMPTS = 28
LARGE_BYTES = 300_000_000
"""Of a model's file, from which on fewer prompts are compared unless their number is given."""
LARGE_PROMPTS = 8
DRAFTER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """What `--model` means."""

    told: str
    """As it is given to every command."""
    vocabulary: Vocabulary
    num_bytes: int
    """Of its file."""
    draft: str
    """The model that edges draft with, by its definition."""
    engine: str
    """Of the mesh and of the reference."""


def chosen_model(told: str, engine: str) -> ChosenModel:
    """Have the model in the store. Raises what model_choice.choose and ModelStore.ensure raise."""
    spec = choose(told).spec
    store = ModelStore(default_root())
    artifact = store.ensure(spec.source, sha256=spec.sha256)
    draft = "" if spec.draft == NO_DRAFT else spec.draft
    return ChosenModel(told, load_vocabulary(spec, store), artifact.num_bytes, draft, engine)


@dataclass(frozen=True, slots=True)
class Work:
    """The model, the prompts and the one way of sampling that a comparison is made for."""

    model: ChosenModel
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
    model = ("--model", work.model.told) if work.model.told else ()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--engine", work.model.engine, *model, *work.flags(Path(folder)))
        done = outrider("reference", "--threads", "2", *flags)
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
    vocabulary = work.model.vocabulary
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


def foresight(vocabulary: Vocabulary, truth: Answer, number: int) -> Drafter:
    """What the reference says next, with a wrong id now and then."""
    wrong = min(1000, vocabulary.size)
    rng = random.Random(number)

    def draft(reply: Sequence[int]) -> list[int]:
        ahead = list(truth.ids[len(reply) : len(reply) + GARBAGE_TOKENS])
        if ahead and rng.random() < 0.3:
            ahead[rng.randrange(len(ahead))] = rng.randrange(wrong)
        return ahead

    return draft


_PATIENT: Final = tuple(
    f"router.admission.slo_ttft_{priority}_ms=60000.0" for priority in ("medium", "low")
)
"""A slow machine may take longer for a first token than clients are usually left to wait: with
small chunks its router would refuse chats."""


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
        Stage(_PATIENT, first),
        Stage((*_PATIENT, f"{chunk}=7"), (tiny,)),
        Stage((*_PATIENT, f"{chunk}=4096", batch), (large,)),
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
    model = works[0].model
    for stage in plan:
        with local_mesh(settings=stage.settings, engine=model.engine, model=model.told) as mesh:
            if model.draft:
                wait_for_drafter(mesh)
            for name, variant in stage.variants:
                for work, truth in zip(works, truths, strict=True):
                    got = variant(mesh, work, truth)
                    exact &= _row(table, name, work, got, truth)
    return exact


def wait_for_drafter(mesh: LocalMesh) -> None:
    """Until the edge's draft model is loaded. Raises TimeoutError."""
    log = mesh.state_dir / "logs" / "edge.log"
    end = time.monotonic() + DRAFTER_TIMEOUT_S
    while "draft_model_loaded" not in log.read_text("utf-8"):
        if time.monotonic() > end:
            raise TimeoutError(f"no draft model within {DRAFTER_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.2)


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


def works(model: ChosenModel, prompts: tuple[Prompt, ...]) -> list[Work]:
    """Greedy, and T=0.8 with a seed."""
    greedy = SamplingParams(max_tokens=MAX_TOKENS)
    sampled = SamplingParams(temperature=0.8, top_p=0.95, seed=20261121, max_tokens=MAX_TOKENS)
    return [
        Work(model, prompts, greedy, "greedy"),
        Work(model, prompts, sampled, "T=0.8, top-p 0.95"),
    ]


def num_prompts(arguments: argparse.Namespace, model: ChosenModel, num_known: int) -> int:
    """How many are compared."""
    asked: int = arguments.prompts
    if asked:
        return min(asked, num_known)
    if arguments.quick:
        return min(10, num_known)
    if model.num_bytes > LARGE_BYTES:
        return LARGE_PROMPTS
    return CORE_PROMPTS if arguments.core or arguments.model else num_known


def main() -> int:
    core = f"every mesh and variant, with {CORE_PROMPTS} held-out prompts"
    flags = parser("exactness", __doc__ or "", core=core)
    flags.add_argument(
        "--model", default="", help="another model: a name, a GGUF file or a folder; not recorded"
    )
    flags.add_argument(
        "--engine", default="openvino", choices=("openvino", "torch"), help="torch: not recorded"
    )
    flags.add_argument(
        "--prompts", type=int, default=0, metavar="N", help="the first N alone; not recorded"
    )
    arguments = flags.parse_args()
    run = start("exactness", arguments)
    is_other = arguments.engine != "openvino"
    run.quick |= bool(arguments.model or arguments.prompts or is_other)
    model = chosen_model(arguments.model, arguments.engine)
    prompts = interleaved(load_prompts(split="held_out" if arguments.core else "all"))
    prompts = prompts[: num_prompts(arguments, model, len(prompts))]
    exact = compare(run, works(model, prompts), stages(quick=arguments.quick))
    run.figures |= {"exact": exact, "prompts": len(prompts), "model": arguments.model}
    run.figures["engine"] = arguments.engine
    run.finish()
    return 0 if exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
