"""Sampling fields of requests of the OpenAI API, common to chats and completions (pure).

Besides that API's own fields there are those that vLLM and others added, by their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from outrider.errors import InvalidRequestError, InvalidSamplingError
from outrider.sampling.params import SamplingParams
from outrider.session.types import Priority, Speculation
from services.edge.http.api import ApiRequest
from services.edge.http.openai_errors import refused
from services.edge.http.response_format import ResponseFormat
from services.edge.http.sse import Position, positions
from services.edge.session.events import ChatRequest, ResumePoint
from services.edge.session.request_fields import choice_id, request_id, residency

_UNLIMITED_TOKENS: Final = 2**31 - 1
_NO_LIMIT: Final = -1
_SAMPLING_NAMES: Final = {it.name for it in dataclasses.fields(SamplingParams)}
_NAMES: Final = {"stop_ids": "stop_token_ids"}
"""Fields of this API by their names in SamplingParams."""
_MAX_METADATA: Final = 16
_MAX_METADATA_KEY_CHARS: Final = 64
_MAX_METADATA_CHARS: Final = 512
"""Pairs of metadata, and characters of each; what OpenAI's own API takes."""
_SEEDS: Final = 2**64
_SAFE_SEEDS: Final = 2**53
"""Seeds chosen here are returned to the client, and JavaScript reads larger numbers inexactly."""


class StreamOptions(msgspec.Struct, kw_only=True):
    """Optional contents of an event stream."""

    include_usage: bool | None = None
    """The tokens, in a last event without choices."""
    provisional: bool | None = None
    """Text that is not final yet, in events of the type `outrider.provisional`. Ours."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that every request for text may have."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    top_k: int | None = None
    """Keep only this many of the likeliest ids, as in vLLM; 0 and -1 keep all."""
    min_p: float | None = None
    """Drop ids less likely than this share of the likeliest, as in vLLM."""
    repetition_penalty: float | None = None
    """Penalty for tokens that occurred before, as in vLLM; 1: none."""
    stop_token_ids: list[int] | None = None
    """Further ids that end the reply, as in vLLM."""
    ignore_eos: bool | None = None
    """Whether to continue past the model's own end ids, as in vLLM."""
    priority: str | None = None
    """Ours: low, medium or high."""
    deadline_ms: int | None = None
    """Ours: milliseconds after which the reply ends."""
    speculation: str | None = None
    """Ours: on, region_only or off."""
    added_rtt_ms: int | None = None
    """Ours, for development: milliseconds by which the way to the region is made longer."""
    residency: list[str] | None = None
    """Ours: the regions in which the prompt may be computed."""
    return_metrics: bool | None = None
    """Ours: whether the reply tells times and what became of drafts, as `metrics`."""
    max_thinking_tokens: int | None = None
    """Most tokens of reasoning, at which it is ended; -1: no limit. Of chats."""
    thinking_token_budget: int | None = None
    """The same, as in vLLM."""


def reply_limit(max_tokens: int | None, default: int) -> int:
    """Most tokens of a reply, given what the request says about it, and the default for one that
    says nothing (0: none). -1 is LM Studio's and llama.cpp's word for no limit. The model's context
    is another limit, ModelLimits."""
    if max_tokens is None:
        max_tokens = default or _NO_LIMIT
    return _UNLIMITED_TOKENS if max_tokens == _NO_LIMIT else max_tokens


def returns_metrics(wanted: bool | None, asked: ApiRequest) -> bool:
    """Whether the reply has metrics, given what the request says about it."""
    return asked.return_metrics if wanted is None else wanted


def sampling_params(
    fields: SamplingFields, max_tokens: int, names: Mapping[str, str] | None = None
) -> SamplingParams:
    """The request's sampling, without its seed. The API's defaults: temperature 1, everything else
    off; they hold for models without settings of their own (`left_to_model`). `names`: fields that
    the API has by other names than SamplingParams. Raises InvalidSamplingError, which names the
    field as the API does."""
    try:
        return _sampling_params(fields, max_tokens)
    except InvalidSamplingError as error:
        name, _, rest = error.message.partition(" ")
        if name not in _SAMPLING_NAMES:
            raise
        own_names = {**_NAMES, **(names or {})}
        if fields.max_thinking_tokens is None:
            own_names["max_thinking_tokens"] = "thinking_token_budget"
        own = own_names.get(name, name)
        raise InvalidSamplingError(f"{own} {rest}", metadata={"param": own}) from None


def _sampling_params(fields: SamplingFields, max_tokens: int) -> SamplingParams:
    stop = fields.stop
    return SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_k=max(0, fields.top_k or 0) if fields.top_k != -1 else 0,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        min_p=fields.min_p or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=_biases(fields),
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_ids=_stop_ids(fields),
        ignore_eos=bool(fields.ignore_eos),
        max_thinking_tokens=_max_thinking_tokens(fields),
    )


def left_to_model(fields: SamplingFields) -> tuple[str, ...]:
    """Names of the values that a request does not give, as ChatRequest has them. The model's own
    take their place, as with vLLM's `generation_config`."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return tuple(name for name in names if getattr(fields, name) is None)


def _max_thinking_tokens(fields: SamplingFields) -> int:
    limits = (fields.max_thinking_tokens, fields.thinking_token_budget)
    return next((limit for limit in limits if limit is not None), -1)


def _biases(fields: SamplingFields) -> dict[int, float]:
    biases = fields.logit_bias or {}
    if any(token < 0 for token in biases):
        raise refused("logit_bias", "logit_bias is by token id, and ids are not negative")
    return biases


def _stop_ids(fields: SamplingFields) -> tuple[int, ...]:
    ids = tuple(fields.stop_token_ids or ())
    if any(not 0 <= token < 2**31 for token in ids):
        raise refused("stop_token_ids", "stop_token_ids are token ids, which are not negative")
    return ids


def check_num_prompts(num_prompts: int, max_choices: int) -> None:
    """Raises InvalidRequestError for more than a request may have."""
    if num_prompts > max_choices:
        raise refused(
            "prompt", f"at most {max_choices} prompts are answered at a time; send several requests"
        )


def num_choices(fields: SamplingFields, num_prompts: int, max_choices: int) -> int:
    """Choices for each prompt. Raises InvalidRequestError for more than a request may have."""
    check_num_prompts(num_prompts, max_choices)
    count = 1 if fields.n is None else fields.n
    if count < 1 or count * num_prompts > max_choices:
        raise refused(
            "n",
            f"n is 1 to {max_choices // num_prompts}; send several requests for more choices",
        )
    return count


def check_stream_options(fields: SamplingFields) -> StreamOptions:
    """Raises InvalidRequestError for options of a stream that was not asked for."""
    if fields.stream_options is None:
        return StreamOptions()
    if not fields.stream:
        raise refused("stream_options", "stream_options is for streams; set stream to true")
    return fields.stream_options


def first_seed(fields: SamplingFields, asked: ApiRequest, digest: bytes) -> int:
    """The seed of the first choice: the request's own. Without one it is random; of a request with
    an idempotency key it follows from that and the rest of the request, so that the same request is
    answered alike by an edge that does not know it any more."""
    if fields.seed is not None:
        return fields.seed % _SEEDS
    if not asked.idempotency_key:
        return asked.random_seed
    hashed = blake2b(asked.idempotency_key.encode(), key=digest, digest_size=8).digest()
    return int.from_bytes(hashed, "little") % _SAFE_SEEDS


def seed_of(first: int, index: int) -> int:
    """The seed of a choice. Choices differ, and the same request has the same ones again."""
    if not index:
        return first
    hashed = blake2b(
        first.to_bytes(8, "little") + index.to_bytes(4, "little"), digest_size=8, person=b"choice"
    )
    return int.from_bytes(hashed.digest(), "little") % _SAFE_SEEDS


def digest_of(api: str, fields: SamplingFields) -> bytes:
    """BLAKE2b-128 (RFC 7693) of a request, without what may differ when it is sent again: whether
    and how it is streamed, its deadline, metrics, and the model, which is looked at apart."""
    bare = msgspec.structs.replace(
        fields,
        model=None,
        stream=None,
        stream_options=None,
        deadline_ms=None,
        added_rtt_ms=None,
        return_metrics=None,
        user=None,
        logit_bias=None,
    )
    biases = sorted((fields.logit_bias or {}).items())
    text = msgspec.json.encode([bare, biases], order="deterministic")
    return blake2b(text, key=api.encode(), digest_size=16).digest()


def chat_request(
    fields: SamplingFields,
    asked: ApiRequest,
    *,
    index: int,
    digest: bytes,
    sampling: SamplingParams,
    position: Position,
    provisional: bool,
) -> ChatRequest:
    """The request for the chat of one choice, without its prompt. Raises InvalidRequestError."""
    return ChatRequest(
        request_id=choice_id(request_id(asked.idempotency_key), index),
        model=fields.model or "",
        messages=(),
        sampling=sampling,
        left_to_model=left_to_model(fields),
        priority=_priority(fields),
        deadline_ms=_deadline_ms(fields),
        provisional=provisional,
        speculation=_speculation(fields),
        added_rtt_ms=fields.added_rtt_ms or 0,
        residency=residency(fields.residency or ()),
        trace=asked.trace,
        resume=ResumePoint(
            upto=position.num_tokens,
            num_chars=position.num_chars,
            template_date=position.template_date,
        ),
        digest=digest,
        is_keyed=bool(asked.idempotency_key),
    )


def check_metadata(given: Mapping[str, str] | None) -> None:
    """Raises InvalidRequestError for more than that API takes: unused fields must not cost much,
    and Responses repeat them."""
    pairs = given or {}
    if len(pairs) > _MAX_METADATA or any(
        len(key) > _MAX_METADATA_KEY_CHARS or len(value) > _MAX_METADATA_CHARS
        for key, value in pairs.items()
    ):
        raise refused(
            "metadata",
            f"metadata has at most {_MAX_METADATA} pairs, of {_MAX_METADATA_KEY_CHARS} and "
            f"{_MAX_METADATA_CHARS} characters",
        )


def read_positions(asked: ApiRequest, num_chats: int, *, is_streamed: bool) -> tuple[Position, ...]:
    """How much of the reply the client has. Raises InvalidRequestError."""
    if not asked.last_event_id or not is_streamed:
        return (Position(),) * num_chats
    if not asked.idempotency_key:
        raise InvalidRequestError(
            "Last-Event-ID goes with the Idempotency-Key that the reply was asked for with; send "
            "both, and the same body"
        )
    return positions(asked.last_event_id, num_chats)


def _priority(fields: SamplingFields) -> Priority | None:
    if fields.priority is None:
        return None
    try:
        return Priority[fields.priority.upper()]
    except KeyError:
        raise refused("priority", "priority is low, medium or high") from None


def _deadline_ms(fields: SamplingFields) -> int:
    deadline_ms = fields.deadline_ms or 0
    if not 0 <= deadline_ms < 2**31:
        raise refused("deadline_ms", "deadline_ms is a number of milliseconds, 1 or more")
    return deadline_ms


def _speculation(fields: SamplingFields) -> Speculation:
    try:
        return Speculation(fields.speculation or Speculation.ON)
    except ValueError:
        raise refused("speculation", "speculation is on, region_only or off") from None
