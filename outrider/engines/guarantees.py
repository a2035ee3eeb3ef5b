"""What a replica promises of its replies, by its engine: declared once, told to operators (pure).

The engines' own tests show that it holds. `python -m tools.engine_table` writes the tables of
README.md and docs/guides/engines.md from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from outrider.engines.config import EngineName

YES: Final = "yes"


class Guarantee(StrEnum):
    """One promise; the names are the wire's."""

    EXACT = "exact"
    """The text is the same bits whatever else is computed with it."""
    EXACT_MOVES = "exact_moves"
    """A reply goes on exactly on another replica of the same model identity."""
    WHOLE_MOVES = "whole_moves"
    """No token is lost or comes twice when a replica dies, where the reply may go on elsewhere."""
    DRAFTS = "drafts"
    """Drafts of edges and of the region are verified."""
    ISOLATION = "isolation"
    """What is cached for one trust group is never used for another."""
    SAMPLING = "sampling"
    """Every combination of temperature, top_k, top_p, min_p and seed is served."""
    PENALTIES = "penalties"
    """Repetition, presence and frequency penalties, and logit_bias."""
    LOGPROBS = "logprobs"
    GRAMMARS = "grammars"
    """JSON schemas, JSON objects and regular expressions."""
    REASONING_LIMIT = "reasoning_limit"
    """max_thinking_tokens."""
    KV_TRANSFER = "kv_transfer"
    """KV comes from, and goes to, other replicas and the prefix store."""


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One engine."""

    run_by_us: str
    """Where the authors have run it."""
    holds: Mapping[Guarantee, str]
    """YES, or what limits it; what is left out does not hold."""


_ALL: Final = dict.fromkeys(Guarantee, YES)
_UNLESS_OFF: Final = "yes, unless `exact = false`"
_OPENVINO: Final = {
    **_ALL,
    Guarantee.EXACT: _UNLESS_OFF,
    Guarantee.EXACT_MOVES: "yes, between CPUs of one generation",
}
_FAKE_TURNS: Final = {
    Guarantee.WHOLE_MOVES: "yes, labelled `inexact`",
    Guarantee.ISOLATION: YES,
    Guarantee.LOGPROBS: YES,
}
ENGINES: Final[Mapping[EngineName, EngineRecord]] = {
    "openvino": EngineRecord("CPUs", _OPENVINO),
    "torch": EngineRecord(
        "CPUs; never on a GPU",
        {**_OPENVINO, Guarantee.EXACT_MOVES: "yes, between equal CPUs or GPUs"},
    ),
    "tensorrt-llm": EngineRecord(
        "never",
        {
            Guarantee.WHOLE_MOVES: "yes, labelled `inexact`",
            Guarantee.ISOLATION: "by its `cache_salt`",
            Guarantee.SAMPLING: "without `min_p` and seeds",
            Guarantee.LOGPROBS: YES,
        },
    ),
    "vllm": EngineRecord(
        "vLLM 0.32.0 on a CPU",
        {
            Guarantee.WHOLE_MOVES: "yes, labelled `inexact`",
            Guarantee.ISOLATION: "by its `cache_salt`",
            Guarantee.SAMPLING: YES,
            Guarantee.PENALTIES: "yes; after a move of the tokens since",
            Guarantee.LOGPROBS: YES,
            Guarantee.GRAMMARS: "its own, not behind reasoning",
        },
    ),
    "openai-server": EngineRecord(
        "vLLM 0.32.0 on a CPU",
        {
            Guarantee.WHOLE_MOVES: "yes, labelled `inexact`",
            Guarantee.ISOLATION: "by the server's `cache_salt`",
            Guarantee.SAMPLING: YES,
            Guarantee.PENALTIES: "yes; after a move of the tokens since",
            Guarantee.LOGPROBS: YES,
            Guarantee.GRAMMARS: "the server's own, not behind reasoning",
        },
    ),
    "fake": EngineRecord("CPUs, without a model", _ALL),
    "fake-turns": EngineRecord("CPUs, without a model", _FAKE_TURNS),
}


def held(engine: EngineName, *, exact: bool) -> tuple[Guarantee, ...]:
    """What a replica with this engine promises, limited or not; `exact` says whether its present
    configuration is."""
    needs_exact = (Guarantee.EXACT, Guarantee.EXACT_MOVES)
    return tuple(it for it in ENGINES[engine].holds if exact or it not in needs_exact)
