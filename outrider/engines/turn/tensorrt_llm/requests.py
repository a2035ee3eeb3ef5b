"""Requests and answers between the seam's words and TensorRT-LLM's (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from outrider.engines.turn.base import TurnPiece, TurnRequest
from outrider.engines.turn.logprobs import logprobs_of
from outrider.engines.turn.tensorrt_llm.api import Api, Output
from outrider.session.types import FinishReason, Priority, TokenLogprobs

PRIORITIES: Final[Mapping[Priority, float]] = {
    Priority.HIGH: 1.0,
    Priority.MEDIUM: 0.5,
    Priority.LOW: 0.0,
}
_FINISHES: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_NO_END: Final = -1


def arguments_of(api: Api, request: TurnRequest) -> dict[str, Any]:
    """Arguments of LLM.generate_async."""
    arguments: dict[str, Any] = {
        "inputs": list(request.ids),
        "sampling_params": api.sampling_params(**_sampling(request)),
        "streaming": True,
        "cache_salt": request.salt.hex() or None,
    }
    if api.has_priority:
        arguments["priority"] = PRIORITIES[request.priority]
    return arguments


def _sampling(request: TurnRequest) -> dict[str, Any]:
    """Arguments of SamplingParams. None of temperature, top_p and top_k is the runtime's word for
    greedy; without a tokenizer it asks for an end_id."""
    given = request.sampling
    found: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "end_id": request.end_ids[0] if request.end_ids else _NO_END,
        "pad_id": 0,
        "stop_token_ids": list(request.end_ids[1:]) or None,
        "ignore_eos": not request.end_ids,
        "detokenize": False,
    }
    if given.temperature:
        found |= {"temperature": given.temperature, "top_p": given.top_p}
        found |= {"top_k": given.top_k} if given.top_k else {}
    if given.num_logprobs >= 0:
        found["logprobs"] = max(1, given.num_logprobs)  # 0 would be none
    return found


class Written:
    """Takes a request's answers apart: they hold the reply as far as it is."""

    def __init__(self, num_logprobs: int) -> None:
        self._num_logprobs = num_logprobs
        self._num_ids = 0
        self._is_first = True

    def piece(self, output: Output) -> TurnPiece:
        """What is new. A reply that ended without a reason, by a cancellation in the runtime, has
        no `finish`."""
        whole = output.outputs[0]
        start, self._num_ids = self._num_ids, len(whole.token_ids)
        ids = tuple(int(it) for it in whole.token_ids[start:])
        scores: tuple[TokenLogprobs, ...] = ()
        if self._num_logprobs >= 0:
            scores = logprobs_of(ids, whole.logprobs[start : self._num_ids], self._num_logprobs)
        cached = int(output.cached_tokens) if self._is_first else None
        self._is_first = False
        finish = _FINISHES.get(whole.finish_reason or "") if output.finished else None
        return TurnPiece(ids, finish, scores, cached)
