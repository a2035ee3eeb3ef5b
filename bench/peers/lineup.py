"""The systems under test, by the names that tables show."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar

from bench.harness import Run
from bench.harness.load import Setup, System
from bench.harness.replica import replica
from bench.peers import dynamo, llamacpp, smg, vllm, vllm_router
from bench.peers.installing import Peer
from bench.peers.llamacpp import llama_server
from bench.peers.openvino_pipeline import pipeline
from outrider.engines.openvino.convert import converted
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary

T = TypeVar("T")

PEERS: Final = {
    peer.name: peer for peer in (llamacpp.PEER, smg.PEER, vllm_router.PEER, dynamo.PEER, vllm.PEER)
}
"""All that are to be installed. The OpenVINO pipeline comes with Outrider's own engine."""

OURS = "outrider, drafts off"
OURS_DRAFTS = "outrider, drafts on"
INEXACT = "outrider inexact, drafts off"
INEXACT_DRAFTS = "outrider inexact, drafts on"
OPENVINO = "OpenVINO pipeline"
OPENVINO_LOOKUP = "OpenVINO pipeline, prompt lookup"
LLAMACPP_Q4_1 = "llama.cpp Q4_1, the same file"
LLAMACPP_Q4_0 = "llama.cpp Q4_0, its fastest"
LLAMACPP_SPECULATION = {
    "llama.cpp Q4_0, ngram-mod": "ngram-mod",
    "llama.cpp Q4_0, ngram-simple": "ngram-simple",
}
"""With drafts of its own (its `--spec-type`): n-grams of all slots, and of the slot's own text."""
LLAMACPP = (LLAMACPP_Q4_1, LLAMACPP_Q4_0, *LLAMACPP_SPECULATION)
NAMES = (
    OURS,
    OURS_DRAFTS,
    INEXACT,
    INEXACT_DRAFTS,
    OPENVINO,
    OPENVINO_LOOKUP,
    *LLAMACPP,
)

LOOKUP_TOKENS = 4


async def start_all(
    stack: contextlib.AsyncExitStack,
    vocabulary: Vocabulary,
    names: Iterable[str],
    setups: Mapping[str, Setup],
) -> dict[str, System]:
    """Those of `names` that are installed, running until the stack closes."""
    systems: dict[str, System] = {}
    for name in names:
        if missing := [peer for peer in needed_by(name) if not peer.is_installed()]:
            print(f"{name}: {missing[0].hint}", file=sys.stderr)
            continue
        systems[name] = await stack.enter_async_context(started(name, vocabulary, setups[name]))
    return systems


def needed_by(name: str) -> tuple[Peer, ...]:
    """What has to be installed for it."""
    return (llamacpp.PEER,) if name in LLAMACPP else ()


def started(name: str, vocabulary: Vocabulary, setup: Setup) -> AbstractAsyncContextManager[System]:
    """One of them. Our own replicas choose their chunks themselves."""
    if name in (OPENVINO, OPENVINO_LOOKUP):
        model = converted(DEFAULT_MODEL, ModelStore(default_root())).directory
        lookup = LOOKUP_TOKENS if name == OPENVINO_LOOKUP else 0
        return pipeline(model, vocabulary, setup, lookup_tokens=lookup)
    if name in LLAMACPP:
        model = llamacpp.same_model() if name == LLAMACPP_Q4_1 else llamacpp.BEST_MODEL
        return llama_server(model, setup, speculation=LLAMACPP_SPECULATION.get(name, "none"))
    return replica(
        vocabulary,
        threads=setup.threads,
        speculate=name in (OURS_DRAFTS, INEXACT_DRAFTS),
        exact=name in (OURS, OURS_DRAFTS),
    )


class SetUp(Protocol):
    """What was set up."""

    @property
    def settings(self) -> Mapping[str, object]:
        """How."""


def record_settings(run: Run, systems: Mapping[str, SetUp]) -> None:
    """Keep how each of them was set up, and show it."""
    table = run.table("How the systems of this run were set up", "system", "settings")
    for name, system in systems.items():
        run.setting(name, **system.settings)
        told = (f"{key} {value}" for key, value in system.settings.items())
        table.add(name, ", ".join(told))


def rotated(names: Iterable[T], turn: int) -> list[T]:
    """Another system begins each round, so that none always runs on a warmer machine."""
    order = list(names)
    first = turn % len(order)
    return order[first:] + order[:first]
