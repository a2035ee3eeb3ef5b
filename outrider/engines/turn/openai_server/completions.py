"""Requests to `/v1/completions` and what its stream says, by the kind of server (pure).

vLLM's fields beyond OpenAI's: `return_token_ids`, `return_tokens_as_token_ids`, `cache_salt`,
`priority`, `stop_token_ids`, `structured_outputs` (its documentation, "OpenAI-Compatible Server").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from outrider.engines.turn.base import Ability, TurnLoad, TurnPiece, TurnRequest
from outrider.errors import (
    EngineError,
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.session.types import (
    MIN_LOGPROB,
    FinishReason,
    Priority,
    ScoredToken,
    TokenLogprobs,
)

VLLM_ABILITIES: Final = frozenset(Ability) - {Ability.LARK, Ability.PRIORITY}
"""Its queue knows priorities only if it was started so."""
_MAX_SEED: Final = 2**63 - 1
_PRIORITIES: Final = {Priority.HIGH: 0, Priority.MEDIUM: 1, Priority.LOW: 2}
"""vLLM serves lower numbers first."""
_FINISHES: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_ID_PREFIX: Final = "token_id:"


def body_of(request: TurnRequest, model: str, *, has_priorities: bool) -> dict[str, Any]:
    """The request for vLLM. All sampling is said: what is left out, the server takes from the
    model's own defaults."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.ids),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": request.seed & _MAX_SEED,
        "stop_token_ids": list(request.end_ids),
        # A grammar ends the reply by the model's own end.
        "ignore_eos": sampling.grammar is None,
        "add_special_tokens": False,
        "return_token_ids": True,
        "cache_salt": request.salt.hex() or "none",
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias.items()}
    if sampling.num_logprobs >= 0:
        body |= {"logprobs": sampling.num_logprobs, "return_tokens_as_token_ids": True}
    if sampling.grammar is not None:
        body["structured_outputs"] = _structured(sampling.grammar)
    if has_priorities:
        body["priority"] = _PRIORITIES[request.priority]
    return body


def _structured(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return {"json": json.loads(grammar.text)}
    if grammar.kind is GrammarKind.REGEX:
        return {"regex": grammar.text}
    return {"json_object": True}


class CompletionStream:
    """Reads the events of one streamed reply."""

    def __init__(self, num_logprobs: int = -1) -> None:
        self._num_logprobs = num_logprobs
        self._held: TurnPiece | None = None
        """The last piece, until the usage behind it says what was cached."""

    def read(self, line: bytes) -> TurnPiece | None:
        """The piece that a line completes; None: none. Raises EngineError for what is no such
        stream, and the error that the server reports."""
        if not line.startswith(b"data:"):
            return None
        data = line[5:].strip()
        if data == b"[DONE]":
            held, self._held = self._held, None
            return held
        event = _json(data)
        if "error" in event:
            raise error_of(500, event)
        usage = event.get("usage")
        if self._held is not None and isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens")
            held, self._held = self._held, None
            return held._replace(cached_tokens=cached if isinstance(cached, int) else None)
        choices = event.get("choices")
        if not choices:
            return None
        piece = self._piece(choices[0])
        if piece.finish is not None:
            self._held = piece
            return None
        return piece if piece.ids else None

    def _piece(self, choice: Mapping[str, Any]) -> TurnPiece:
        ids = choice.get("token_ids")
        if not isinstance(ids, list) or not all(isinstance(it, int) for it in ids):
            raise EngineError("the server's stream has no token ids; it needs return_token_ids")
        reason = choice.get("finish_reason")
        finish = None if reason is None else _FINISHES.get(reason)
        if reason is not None and finish is None:
            raise EngineError(f"the server ended the reply as {str(reason)[:40]!r}")
        logprobs: tuple[TokenLogprobs, ...] = ()
        if self._num_logprobs >= 0 and ids:
            logprobs = _logprobs(choice.get("logprobs"), ids, self._num_logprobs)
        return TurnPiece(tuple(ids), finish, logprobs)


def _logprobs(said: Any, ids: list[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    try:
        chosen = said["token_logprobs"]
        tops = said.get("top_logprobs") or [None] * len(ids)
        return tuple(
            TokenLogprobs(
                ScoredToken(id, _logprob(own)),
                tuple(
                    sorted(
                        (
                            ScoredToken(int(name.removeprefix(_ID_PREFIX)), _logprob(value))
                            for name, value in (top or {}).items()
                        ),
                        key=lambda it: (-it.logprob, it.id),
                    )[:num_top]
                ),
            )
            for id, own, top in zip(ids, chosen, tops, strict=True)
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise EngineError("the server's log probabilities cannot be read") from error


def _logprob(value: float | None) -> float:
    return MIN_LOGPROB if value is None else min(0.0, max(MIN_LOGPROB, float(value)))


def error_of(status: int, answer: object) -> OutriderError:
    """What a server's refusal means for the session."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    said = error.get("message", error) if isinstance(error, dict) else error
    code = error.get("code", status) if isinstance(error, dict) else status
    text = " ".join(str(said).split())[:300]
    if code in (400, 422):
        return InvalidSamplingError(f"the engine's server refused the request: {text}")
    if code in (401, 403):
        return UnavailableError("the engine's server refuses this replica's key")
    if code in (429, 503):
        return OverloadedError(
            "the engine's server has no room; come back later", retry_delay_ms=500
        )
    return EngineError(f"the engine's server failed: {text}")


def _json(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise EngineError("the server's stream has an event that is no JSON") from error
    if not isinstance(event, dict):
        raise EngineError("the server's stream has an event that is no object")
    return event


def load_of(metrics: bytes) -> TurnLoad | None:
    """vLLM's load by its metrics; None: they do not say it."""
    running, waiting = (
        _sum(metrics, b"vllm:num_requests_" + it) for it in (b"running", b"waiting")
    )
    if running is None or waiting is None:
        return None
    usage, num_blocks = _sum(metrics, b"vllm:kv_cache_usage_perc"), num_blocks_of(metrics)
    free = None if usage is None or not num_blocks else round((1.0 - usage) * num_blocks)
    return TurnLoad(int(running), int(waiting), free)


def num_blocks_of(metrics: bytes) -> int:
    """Blocks of vLLM's KV; 0: its metrics do not say."""
    return _label(metrics, b"num_gpu_blocks")


def block_tokens_of(metrics: bytes) -> int:
    """Tokens of such a block; 0: its metrics do not say."""
    return _label(metrics, b"block_size")


def _label(metrics: bytes, name: bytes) -> int:
    found = re.search(rb"^vllm:cache_config_info\{[^}]*\b" + name + rb'="(\d+)"', metrics, re.M)
    return int(found[1]) if found else 0


def _sum(metrics: bytes, name: bytes) -> float | None:
    pattern = rb"^" + re.escape(name) + rb"(?:\{[^}\n]*\})? ([0-9.eE+-]+)$"
    values = [float(value) for value in re.findall(pattern, metrics, re.M)]
    return sum(values) if values else None
