"""Requests and answers between the seam's words and vLLM's (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from outrider.engines.turn.base import TurnPiece, TurnRequest
from outrider.engines.turn.logprobs import logprobs_of
from outrider.engines.turn.vllm.api import Api
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.session.types import FinishReason, Priority

PRIORITIES: Final[Mapping[Priority, int]] = {
    Priority.HIGH: 0,
    Priority.MEDIUM: 1,
    Priority.LOW: 2,
}
"""The least is served first."""
_FINISHES: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_SEED_BITS: Final = 63


def prompt_of(api: Api, request: TurnRequest) -> Any:
    """vllm.inputs.TokensInput."""
    return api.tokens_input(list(request.ids), cache_salt=request.salt.hex() or None)


def salt_of(text: str) -> bytes:
    """The salt that prompt_of wrote."""
    return bytes.fromhex(text)


def sampling_of(api: Api, request: TurnRequest) -> Any:
    """vllm.SamplingParams. Its seed has 63 bits: others may not fit an int64 behind it."""
    given = request.sampling
    arguments: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": given.top_k,
        "min_p": given.min_p,
        "repetition_penalty": given.repetition_penalty,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
        "stop_token_ids": list(request.end_ids),
        "ignore_eos": True,
        "detokenize": False,
        "output_kind": api.delta,
    }
    if given.temperature:
        arguments["seed"] = request.seed >> (64 - _SEED_BITS)
    if given.logit_bias:
        arguments["logit_bias"] = dict(given.logit_bias)
    if given.num_logprobs >= 0:
        arguments["logprobs"] = given.num_logprobs
    if given.grammar is not None:
        # vLLM masks all but the model's own end where a grammar is complete.
        arguments["ignore_eos"] = False
        arguments["structured_outputs"] = api.structured_outputs(**_grammar(given.grammar))
    return api.sampling_params(**arguments)


def _grammar(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"json": grammar.text}
        case GrammarKind.JSON_OBJECT:
            return {"json_object": True}
        case GrammarKind.REGEX:
            return {"regex": grammar.text}
        case GrammarKind.LARK:
            return {"grammar": grammar.text}


def piece_of(output: Any, num_logprobs: int, *, is_first: bool) -> TurnPiece:
    """A piece from a RequestOutput of kind DELTA."""
    written = output.outputs[0]
    ids = tuple(int(it) for it in written.token_ids)
    return TurnPiece(
        ids,
        _FINISHES.get(written.finish_reason or ""),
        logprobs_of(ids, written.logprobs or (), num_logprobs) if num_logprobs >= 0 else (),
        output.num_cached_tokens if is_first else None,
    )
