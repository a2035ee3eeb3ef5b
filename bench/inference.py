"""Tokens per second of the inference service and of OpenVINO's own pipeline on the same model.

Every contender runs in its own process with the same threads, IR, prompts and limits; rounds are
interleaved and ratios are medians of the ratios within a round: on a shared machine a short run
next to another says more than a long one. Every round asks other chats, and each begins with words
of its own, so no prefix cache helps anyone. Documents are asked for their first token alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence

from bench.harness.contenders import Contender, Outcome, Work, pipeline, replica
from bench.harness.figures import Run, median, parser, spread, start
from bench.harness.prompts import interleaved, load_prompts
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from services.inference.engines.openvino.convert import converted

CONCURRENCIES = (1, 4, 8, 16)
DOCUMENT = 0
"""In place of a concurrency: one prompt of 1,000 to 1,700 tokens alone."""
MAX_TOKENS = 96
LOOKUP_TOKENS = 4
OURS = "outrider, drafts off"
OURS_SPEC = "outrider, drafts on"
FAST = "outrider inexact, drafts off"
FAST_SPEC = "outrider inexact, drafts on"
PEER = "OpenVINO pipeline"
PEER_SPEC = "OpenVINO pipeline, prompt lookup"
NAMES = (OURS, OURS_SPEC, FAST, FAST_SPEC, PEER, PEER_SPEC)

Outcomes = dict[tuple[int, int], dict[str, Outcome]]
"""By round and concurrency (or DOCUMENT), then by contender."""


def main() -> int:
    flags = parser("inference", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of every engine")
    flags.add_argument("--rounds", type=int, help="default 10, quick 2")
    arguments = flags.parse_args()
    run = start("inference", arguments)
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    outcomes = asyncio.run(_compete(run, arguments, vocabulary))
    _throughput(run, outcomes)
    _first_tokens(run, outcomes)
    _exactness(run, outcomes)
    run.finish()
    return 0


async def _compete(run: Run, arguments: argparse.Namespace, vocabulary: Vocabulary) -> Outcomes:
    rounds = arguments.rounds or (2 if run.quick else 10)
    outcomes: Outcomes = {}
    async with contextlib.AsyncExitStack() as stack:
        contenders = await _start_all(stack, vocabulary, arguments.threads)
        for contender in contenders.values():
            await contender.run(_work(vocabulary, -1, 8))
        for turn, concurrency in itertools.product(range(rounds), (*CONCURRENCIES, DOCUMENT)):
            work = _work(vocabulary, turn, concurrency)
            names = _rotated([*contenders], turn)
            outcomes[turn, concurrency] = {name: await contenders[name].run(work) for name in names}
            print(f"round {turn + 1} of {rounds}, {concurrency or 'document'}", file=sys.stderr)
    return outcomes


def _rotated(names: list[str], turn: int) -> list[str]:
    """Another contender begins each round, so that none always runs on a warmer machine."""
    first = turn % len(names)
    return names[first:] + names[:first]


async def _start_all(
    stack: contextlib.AsyncExitStack, vocabulary: Vocabulary, threads: int
) -> Mapping[str, Contender]:
    model = converted(DEFAULT_MODEL, ModelStore(default_root())).directory
    contenders: dict[str, Contender] = {}
    for name, speculate, exact in (
        (OURS, False, True),
        (OURS_SPEC, True, True),
        (FAST, False, False),
        (FAST_SPEC, True, False),
    ):
        ours = replica(vocabulary, threads=threads, speculate=speculate, exact=exact)
        contenders[name] = await stack.enter_async_context(ours)
    for name, lookup in ((PEER, 0), (PEER_SPEC, LOOKUP_TOKENS)):
        peer = pipeline(model, vocabulary, threads=threads, lookup_tokens=lookup)
        contenders[name] = await stack.enter_async_context(peer)
    return contenders


def _work(vocabulary: Vocabulary, turn: int, concurrency: int) -> Work:
    """Other prompts every round, all kinds in turn, behind a system message of their own."""
    is_document = concurrency == DOCUMENT
    prompts = [p for p in interleaved(load_prompts()) if (p.kind == "document") == is_document]
    size = 1 if is_document else max(4, concurrency)
    chosen = [prompts[(turn * size + number) % len(prompts)] for number in range(size)]
    system = Message("system", f"Conversation {turn}-{concurrency}. You are a helpful assistant.")
    chats = ([system, Message("user", prompt.text)] for prompt in chosen)
    ids = tuple(tuple(vocabulary.encode_chat(chat)) for chat in chats)
    return Work(ids, max(1, concurrency), 1 if is_document else MAX_TOKENS)


def _throughput(run: Run, outcomes: Outcomes) -> None:
    columns = [f"{concurrency} chats" for concurrency in CONCURRENCIES]
    speeds = run.table("Tokens per second, greedy, medians", "system", *columns)
    ratios = run.table(f"As ratio to: {PEER}", "system", *columns)
    for name in NAMES:
        speeds.add(name, *(median(_speeds(outcomes, name, c)) for c in CONCURRENCIES))
        ratios.add(name, *(_ratio(outcomes, name, PEER, c) for c in CONCURRENCIES))
    for key, name, peer in (
        ("vs_openvino_pipeline", OURS, PEER),
        ("vs_openvino_pipeline_spec", OURS_SPEC, PEER),
        ("inexact_vs_openvino_pipeline", FAST, PEER),
        ("inexact_vs_openvino_pipeline_spec", FAST_SPEC, PEER),
        ("spec_vs_openvino_prompt_lookup", OURS_SPEC, PEER_SPEC),
    ):
        run.figures[key] = {
            str(c): round(_ratio(outcomes, name, peer, c), 3) for c in CONCURRENCIES
        }


def _speeds(outcomes: Outcomes, name: str, concurrency: int) -> list[float]:
    return [by_name[name].tokens_per_s for (_, c), by_name in outcomes.items() if c == concurrency]


def _ratio(outcomes: Outcomes, name: str, peer: str, concurrency: int) -> float:
    ours, theirs = (_speeds(outcomes, which, concurrency) for which in (name, peer))
    return median([a / b for a, b in zip(ours, theirs, strict=True)])


def _first_tokens(run: Run, outcomes: Outcomes) -> None:
    """Time to the first token with one request at a time."""
    columns = ("chat p50", "chat p95", "document p50")
    table = run.table("Time to first token, one at a time, ms", "system", *columns)
    for name in NAMES:
        chats = spread(_ttft(outcomes, name, 1))
        table.add(name, chats.p50, chats.p95, median(_ttft(outcomes, name, DOCUMENT)))
    pairs = zip(_ttft(outcomes, OURS, 1), _ttft(outcomes, PEER, 1), strict=True)
    run.figures["added_ttft_ms"] = round(median([ours - theirs for ours, theirs in pairs]), 2)


def _ttft(outcomes: Outcomes, name: str, concurrency: int) -> list[float]:
    cells = [by_name[name] for (_, c), by_name in outcomes.items() if c == concurrency]
    return [ms for outcome in cells for ms in outcome.ttft_ms]


def _exactness(run: Run, outcomes: Outcomes) -> None:
    """Equal replies of the exact replicas, drafts on and off; agreement with the peer."""
    pairs = [(by_name[OURS].replies, by_name[OURS_SPEC].replies) for by_name in outcomes.values()]
    run.figures["exact"] = all(off == on for off, on in pairs)
    run.figures["same_reply_as_pipeline"] = round(
        _share_equal(
            [reply for by_name in outcomes.values() for reply in by_name[OURS].replies],
            [reply for by_name in outcomes.values() for reply in by_name[PEER].replies],
        ),
        3,
    )


def _share_equal(ours: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]) -> float:
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


if __name__ == "__main__":
    sys.exit(main())
