"""Who competes, by the names that tables show."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager

from bench.contenders.llamacpp import llama_server
from bench.contenders.openvino_pipeline import pipeline
from bench.contenders.replica import replica
from bench.contenders.setup import Setup
from bench.contenders.work import Contender
from bench.harness.figures import Run
from bench.peers import llamacpp
from outrider.engines.openvino.convert import converted
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary

OURS = "outrider, drafts off"
OURS_SPEC = "outrider, drafts on"
FAST = "outrider inexact, drafts off"
FAST_SPEC = "outrider inexact, drafts on"
PEER = "OpenVINO pipeline"
PEER_SPEC = "OpenVINO pipeline, prompt lookup"
LLAMA = "llama.cpp Q4_1, the same file"
LLAMA_BEST = "llama.cpp Q4_0, its fastest"
NAMES = (OURS, OURS_SPEC, FAST, FAST_SPEC, PEER, PEER_SPEC, LLAMA, LLAMA_BEST)

LOOKUP_TOKENS = 4


async def start_all(
    stack: contextlib.AsyncExitStack,
    vocabulary: Vocabulary,
    names: Iterable[str],
    setups: Mapping[str, Setup],
) -> dict[str, Contender]:
    """Those of `names` that are installed, running until the stack closes."""
    contenders: dict[str, Contender] = {}
    for name in names:
        if name in (LLAMA, LLAMA_BEST) and not llamacpp.installed():
            print(f"{name}: not installed; {llamacpp.INSTALL}", file=sys.stderr)
            continue
        contenders[name] = await stack.enter_async_context(started(name, vocabulary, setups[name]))
    return contenders


def started(
    name: str, vocabulary: Vocabulary, setup: Setup
) -> AbstractAsyncContextManager[Contender]:
    """One of them. Our own replicas choose their chunks themselves."""
    if name in (PEER, PEER_SPEC):
        model = converted(DEFAULT_MODEL, ModelStore(default_root())).directory
        lookup = LOOKUP_TOKENS if name == PEER_SPEC else 0
        return pipeline(model, vocabulary, setup, lookup_tokens=lookup)
    if name in (LLAMA, LLAMA_BEST):
        model = llamacpp.same_model() if name == LLAMA else llamacpp.BEST_MODEL
        return llama_server(model, setup)
    return replica(
        vocabulary,
        threads=setup.threads,
        speculate=name in (OURS_SPEC, FAST_SPEC),
        exact=name in (OURS, OURS_SPEC),
    )


def record_settings(run: Run, contenders: Mapping[str, Contender]) -> None:
    """Keep how each of them was set up."""
    for name, contender in contenders.items():
        run.setting(name, **contender.settings)


def rotated(names: Iterable[str], turn: int) -> list[str]:
    """Another contender begins each round, so that none always runs on a warmer machine."""
    order = list(names)
    first = turn % len(order)
    return order[first:] + order[:first]
