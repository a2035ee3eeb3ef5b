"""Tokens per second of the inference service and of OpenVINO's own pipeline on the same model.

Every contender runs in its own process with the same threads, IR, prompts and limits; rounds are
interleaved and ratios are medians of the ratios within a round. Each round's prompts begin with
other words, so no prefix cache helps anyone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence

from bench.contenders import Contender, Outcome, Work, pipeline, replica
from bench.figures import Run, median, parser, spread, start
from bench.prompts import interleaved, load_prompts
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary
from services.inference.engines.openvino.convert import converted

CONCURRENCIES = (1, 4, 8, 16)
LOOKUP_TOKENS = 4
OURS = "outrider, drafts off"
OURS_SPEC = "outrider, drafts on"
FAST = "outrider inexact, drafts off"
FAST_SPEC = "outrider inexact, drafts on"
PEER = "OpenVINO pipeline"
PEER_SPEC = "OpenVINO pipeline, prompt lookup"
NAMES = (OURS, OURS_SPEC, FAST, FAST_SPEC, PEER, PEER_SPEC)

Outcomes = dict[tuple[int, int], dict[str, Outcome]]
"""By round and concurrency, then by contender."""


def main() -> int:
    flags = parser("inference", __doc__ or "")
    flags.add_argument("--threads", type=int, default=1, help="threads of every engine")
    flags.add_argument("--rounds", type=int, help="default 5, quick 1")
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
    rounds = arguments.rounds or (1 if run.quick else 5)
    outcomes: Outcomes = {}
    async with contextlib.AsyncExitStack() as stack:
        contenders = await _start_all(stack, vocabulary, arguments.threads)
        for contender in contenders.values():
            await contender.run(_work(vocabulary, "warm", 2, 2, 8))
        for turn, concurrency in itertools.product(range(rounds), CONCURRENCIES):
            size, limit = (max(6, concurrency), 48) if run.quick else (max(14, concurrency * 2), 96)
            work = _work(vocabulary, f"{turn}-{concurrency}", size, concurrency, limit)
            names = _rotated([*contenders], turn)
            outcomes[turn, concurrency] = {name: await contenders[name].run(work) for name in names}
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


def _work(vocabulary: Vocabulary, nonce: str, size: int, concurrency: int, max_tokens: int) -> Work:
    """The first `size` prompts of all kinds in turn, behind a system message with a nonce."""
    system = Message("system", f"Conversation {nonce}. You are a helpful assistant.")
    prompts = interleaved(load_prompts())[:size]
    chats = ([system, Message("user", prompt.text)] for prompt in prompts)
    ids = tuple(tuple(vocabulary.encode_chat(chat)) for chat in chats)
    return Work(ids, concurrency, max_tokens)


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
    """Time to the first token with one chat at a time, prompts of all lengths."""
    table = run.table("Time to first token, one chat, ms", "system", "p50", "p95")
    alone = [by_name for (_, concurrency), by_name in outcomes.items() if concurrency == 1]
    for name in NAMES:
        times = spread([ms for by_name in alone for ms in by_name[name].ttft_ms])
        table.add(name, times.p50, times.p95)
    added = [
        ours - theirs
        for by_name in alone
        for ours, theirs in zip(by_name[OURS].ttft_ms, by_name[PEER].ttft_ms, strict=True)
    ]
    run.figures["added_ttft_ms"] = round(median(added), 2)


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
