"""The border: what the protos of several services share, as dataclasses and back, validated.

Token blocks, sampling, log probabilities, errors, and of a session its priority, speculation, end,
token counts, times and cost (`protos/outrider/v1/common.proto`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Final

from outrider.codec.tokens import Block
from outrider.cost import Cost
from outrider.errors import (
    InvalidRequestError,
    InvalidSamplingError,
    MalformedFrameError,
    OutriderError,
    by_reason,
)
from outrider.fair_work.turns import Requester
from outrider.models.chat import Message, check_num_calls
from outrider.models.tools import ToolCall
from outrider.reply_parsing.formats import MAX_TAG_CHARS, ReasoningTags
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import MAX_LOGPROBS, SamplingParams, check_counts
from outrider.session.types import (
    MAX_DRAFTS_PER_CALL,
    MIN_LOGPROB,
    AcceptanceCount,
    FinishReason,
    Priority,
    ScoredToken,
    Speculation,
    Timings,
    TokenLogprobs,
    Usage,
)
from outrider.v1 import common_pb2, embedding_pb2

DEFAULT_MAX_TOKENS = 256
"""Longest reply of a request that names none."""
MAX_MESSAGE_CHARS = 1024
"""Longer messages of errors are cut: a trailer has to fit gRPC's 8 KiB of metadata."""
MAX_AT_ONCE_INPUTS = 32
"""Most inputs of an embedding request that is sent as one message."""
MAX_METADATA = 16
MAX_METADATA_CHARS = 128
MAX_RETRY_DELAY_MS = 600_000

_SPECULATION: Final[Mapping[Speculation, common_pb2.Speculation.ValueType]] = {
    Speculation.ON: common_pb2.SPECULATION_ON,
    Speculation.OFF: common_pb2.SPECULATION_OFF,
    Speculation.REGION_ONLY: common_pb2.SPECULATION_REGION_ONLY,
}
_SPECULATION_OF: Final[Mapping[int, Speculation]] = {
    common_pb2.SPECULATION_UNSPECIFIED: Speculation.ON,
    **{number: speculation for speculation, number in _SPECULATION.items()},
}
_FINISH_REASON: Final[Mapping[FinishReason, common_pb2.FinishReason.ValueType]] = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: common_pb2.FINISH_REASON_DEADLINE,
}
_FINISH_REASON_OF: Final[Mapping[int, FinishReason]] = {
    number: reason for reason, number in _FINISH_REASON.items()
}
_GRAMMAR_KIND: Final[Mapping[GrammarKind, common_pb2.GrammarKind.ValueType]] = {
    GrammarKind.JSON_SCHEMA: common_pb2.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.JSON_OBJECT: common_pb2.GRAMMAR_KIND_JSON_OBJECT,
    GrammarKind.REGEX: common_pb2.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: common_pb2.GRAMMAR_KIND_LARK,
}
_GRAMMAR_KIND_OF: Final[Mapping[int, GrammarKind]] = {
    number: kind for kind, number in _GRAMMAR_KIND.items()
}


def token_block_to_proto(block: Block) -> common_pb2.TokenBlock:
    """The wire form."""
    return common_pb2.TokenBlock(
        codec=common_pb2.TokenCodec.ValueType(block.codec),
        count=block.count,
        checksum=block.checksum,
        payload=block.payload,
    )


def token_block_from_proto(block: common_pb2.TokenBlock) -> Block:
    """The block as it came, unknown codecs included; `TokenCoder.decode` is what checks it."""
    checksum = block.checksum if block.HasField("checksum") else None
    return Block(block.codec, block.count, checksum, block.payload)


def sampling_to_proto(params: SamplingParams) -> common_pb2.Sampling:
    """The wire form."""
    return common_pb2.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[common_pb2.LogitBias(id=i, bias=b) for i, b in params.logit_bias.items()],
        seed=params.seed,
        max_tokens=params.max_tokens,
        stop=params.stop,
        stop_ids=params.stop_ids,
        ignore_eos=params.ignore_eos,
        acceptance_threshold=params.acceptance_threshold,
        num_logprobs=params.num_logprobs if params.num_logprobs >= 0 else None,
        grammar=_grammar_to_proto(params.grammar),
        special_tokens=params.special_tokens,
        max_thinking_tokens=params.max_thinking_tokens if params.max_thinking_tokens >= 0 else None,
        reasoning_tags=params.reasoning_tags or (),
    )


def sampling_from_proto(sampling: common_pb2.Sampling) -> SamplingParams:
    """An unset optional field means the default of SamplingParams; max_tokens 0 means 256. Raises
    InvalidSamplingError for values out of range."""
    check_counts(len(sampling.stop), len(sampling.stop_ids), len(sampling.logit_bias))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        min_p=sampling.min_p if sampling.HasField("min_p") else 0.0,
        repetition_penalty=(
            sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0
        ),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias={entry.id: entry.bias for entry in sampling.logit_bias},
        seed=sampling.seed,
        max_tokens=sampling.max_tokens or DEFAULT_MAX_TOKENS,
        stop=tuple(sampling.stop),
        stop_ids=tuple(sampling.stop_ids),
        ignore_eos=sampling.ignore_eos,
        acceptance_threshold=sampling.acceptance_threshold,
        num_logprobs=sampling.num_logprobs if sampling.HasField("num_logprobs") else -1,
        grammar=_grammar_from_proto(sampling.grammar) if sampling.HasField("grammar") else None,
        special_tokens=sampling.special_tokens,
        max_thinking_tokens=(
            sampling.max_thinking_tokens if sampling.HasField("max_thinking_tokens") else -1
        ),
        reasoning_tags=_tags_from_proto(sampling.reasoning_tags),
    )


def _tags_from_proto(tags: Sequence[str]) -> ReasoningTags | None:
    if not tags:
        return None
    if len(tags) != 2 or not all(0 < len(tag) <= MAX_TAG_CHARS for tag in tags):
        raise InvalidSamplingError(f"reasoning has two tags of 1 to {MAX_TAG_CHARS} characters")
    return ReasoningTags(*tags)


def message_to_proto(message: Message) -> common_pb2.ChatMessage:
    """The wire form."""
    return common_pb2.ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=[
            common_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def message_from_proto(message: common_pb2.ChatMessage) -> Message:
    """A message, of which only the number of tool calls is checked, before each of them costs; the
    rest is for outrider.models.chat.check_messages. Raises InvalidRequestError."""
    check_num_calls(len(message.tool_calls))
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls)
    return Message(
        message.role,
        message.content,
        calls,
        message.tool_call_id,
        message.name,
        message.reasoning,
    )


def logprobs_to_proto(logprobs: Iterable[TokenLogprobs]) -> list[common_pb2.TokenLogprobs]:
    """The wire form."""
    return [
        common_pb2.TokenLogprobs(
            chosen=_scored_to_proto(at.chosen), top=map(_scored_to_proto, at.top)
        )
        for at in logprobs
    ]


def _scored_to_proto(token: ScoredToken) -> common_pb2.ScoredToken:
    return common_pb2.ScoredToken(id=token.id, logprob=token.logprob, text=token.text)


def logprobs_from_proto(
    messages: Sequence[common_pb2.TokenLogprobs], *, max_tokens: int
) -> tuple[TokenLogprobs, ...]:
    """Log probabilities from protobuf. Raises MalformedFrameError for more than `max_tokens`
    tokens, for more alternatives than can be requested, and for values that are no log
    probabilities."""
    if not messages:
        return ()
    if len(messages) > max_tokens or any(len(at.top) > MAX_LOGPROBS for at in messages):
        raise MalformedFrameError(
            f"the peer sent log probabilities of {len(messages)} tokens, or of more than "
            f"{MAX_LOGPROBS} for one; at most {max_tokens} tokens have any"
        )
    return tuple(
        TokenLogprobs(_scored_from_proto(at.chosen), tuple(map(_scored_from_proto, at.top)))
        for at in messages
    )


def _scored_from_proto(token: common_pb2.ScoredToken) -> ScoredToken:
    if not MIN_LOGPROB <= token.logprob <= 0.0:  # NaN is neither
        raise MalformedFrameError(f"the peer calls {token.logprob} a log probability")
    return ScoredToken(token.id, token.logprob, token.text)


def _grammar_to_proto(grammar: Grammar | None) -> common_pb2.Grammar | None:
    if grammar is None:
        return None
    return common_pb2.Grammar(kind=_GRAMMAR_KIND[grammar.kind], text=grammar.text)


def _grammar_from_proto(grammar: common_pb2.Grammar) -> Grammar:
    kind = _GRAMMAR_KIND_OF.get(grammar.kind)
    if kind is None:
        raise InvalidSamplingError(f"grammar kind {grammar.kind} is not known to this version")
    return Grammar(kind, grammar.text)


def requester_to_proto(requester: Requester) -> common_pb2.Requester:
    """Who asks, for another service."""
    return common_pb2.Requester(origin=requester.origin, client=requester.client)


def requester_from_proto(requester: common_pb2.Requester, peer: str) -> Requester:
    """Who asks, as `peer` says; itself if it does not."""
    return Requester(requester.origin or peer, requester.client)


def check_at_once(request: embedding_pb2.EmbedAtOnceRequest) -> None:
    """Raises MalformedFrameError for a request with too many inputs for one message."""
    if len(request.inputs) > MAX_AT_ONCE_INPUTS:
        raise MalformedFrameError(
            f"a request in one message has at most {MAX_AT_ONCE_INPUTS} inputs; open a stream"
        )


def priority_to_proto(priority: Priority | None) -> common_pb2.Priority.ValueType:
    """The wire form; None leaves the priority to the receiver."""
    return common_pb2.Priority.ValueType(priority or common_pb2.PRIORITY_UNSPECIFIED)


def priority_from_proto(number: int) -> Priority | None:
    """None where the sender named none. Raises InvalidRequestError."""
    if number == common_pb2.PRIORITY_UNSPECIFIED:
        return None
    try:
        return Priority(number)
    except ValueError:
        raise InvalidRequestError(f"priority {number} is not known to this version") from None


def speculation_to_proto(speculation: Speculation) -> common_pb2.Speculation.ValueType:
    """The wire form."""
    return _SPECULATION[speculation]


def speculation_from_proto(number: int) -> Speculation:
    """ON where the sender named none. Raises InvalidRequestError."""
    speculation = _SPECULATION_OF.get(number)
    if speculation is None:
        raise InvalidRequestError(f"speculation {number} is not known to this version")
    return speculation


def finish_reason_to_proto(reason: FinishReason) -> common_pb2.FinishReason.ValueType:
    """The wire form."""
    return _FINISH_REASON[reason]


def finish_reason_from_proto(number: int) -> FinishReason:
    """Raises MalformedFrameError."""
    reason = _FINISH_REASON_OF.get(number)
    if reason is None:
        raise MalformedFrameError(f"the session ended for a reason that is not known, {number}")
    return reason


def usage_to_proto(usage: Usage) -> common_pb2.Usage:
    """The wire form."""
    message = common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        draft_tokens=usage.draft_tokens,
        accepted_tokens=usage.accepted_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
        lossy_tokens=usage.lossy_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        accepted_edge_tokens=usage.accepted_edge_tokens,
        uncounted_tokens=usage.uncounted_tokens,
        acceptance=chain.from_iterable(usage.acceptance),
    )
    set_cost(message, usage.cost)
    return message


def usage_from_proto(usage: common_pb2.Usage) -> Usage:
    """Raises MalformedFrameError."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        draft_tokens=usage.draft_tokens,
        accepted_tokens=usage.accepted_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
        lossy_tokens=usage.lossy_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        accepted_edge_tokens=usage.accepted_edge_tokens,
        uncounted_tokens=usage.uncounted_tokens,
        acceptance=_acceptance_from_proto(usage.acceptance),
        cost=cost_of(usage),
    )


def _acceptance_from_proto(numbers: Sequence[int]) -> tuple[AcceptanceCount, ...]:
    """Raises MalformedFrameError."""
    try:
        counts = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        found = tuple(AcceptanceCount(*count) for count in counts)
    except ValueError:
        raise MalformedFrameError("calls that verified drafts are told by three numbers") from None
    if any(not it.accepted <= it.drafted <= MAX_DRAFTS_PER_CALL for it in found):
        raise MalformedFrameError(
            f"a call verified more than {MAX_DRAFTS_PER_CALL} drafts, or accepted more than it "
            "verified"
        )
    return found


def set_cost(usage: common_pb2.Usage, cost: Cost | None) -> None:
    """Replace the cost in `usage`; None removes it."""
    if cost is None:
        if usage.HasField("cost"):  # clearing would set a `usage` that is not there
            usage.ClearField("cost")
    else:
        usage.cost.amount_nanos = cost.amount_nanos
        usage.cost.currency = cost.currency


def cost_of(usage: common_pb2.Usage) -> Cost | None:
    """The cost that a peer names; None where it names none. Raises MalformedFrameError."""
    if not usage.HasField("cost"):
        return None
    try:
        return Cost(usage.cost.amount_nanos, usage.cost.currency)
    except ValueError as error:
        raise MalformedFrameError(f"the peer says that the chat costs {error}") from error


def timings_to_proto(timings: Timings) -> common_pb2.Timings:
    """The wire form."""
    return common_pb2.Timings(
        queue_ms=timings.queue_ms,
        prefill_ms=timings.prefill_ms,
        ttft_ms=timings.ttft_ms,
        total_ms=timings.total_ms,
    )


def timings_from_proto(timings: common_pb2.Timings) -> Timings:
    """The times as the peer measured them."""
    return Timings(
        queue_ms=timings.queue_ms,
        prefill_ms=timings.prefill_ms,
        ttft_ms=timings.ttft_ms,
        total_ms=timings.total_ms,
    )


class GrpcCode(IntEnum):
    """google.rpc.Code, those that the error tree uses."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def error_to_proto(error: OutriderError) -> common_pb2.ErrorDetail:
    """The wire form, in frames and in the `outrider-error-bin` trailer; long messages and metadata
    are cut."""
    return common_pb2.ErrorDetail(
        reason=error.reason,
        message=error.message[:MAX_MESSAGE_CHARS],
        grpc_code=GrpcCode[error.grpc_code],
        retry_delay_ms=min(max(error.retry_delay_ms, 0), MAX_RETRY_DELAY_MS),
        metadata=_bounded(error.metadata),
    )


def error_from_proto(detail: common_pb2.ErrorDetail) -> OutriderError:
    """The error a peer reported; an unknown reason gives the root class, reason in metadata."""
    metadata = _bounded(detail.metadata)
    cls = by_reason(detail.reason)
    if cls.reason != detail.reason:
        metadata["reason"] = detail.reason[:MAX_METADATA_CHARS]
    return cls(
        detail.message[:MAX_MESSAGE_CHARS] or "the peer gave no message",
        retry_delay_ms=min(detail.retry_delay_ms, MAX_RETRY_DELAY_MS),
        metadata=metadata,
    )


def _bounded(metadata: Mapping[str, str]) -> dict[str, str]:
    return {
        key[:MAX_METADATA_CHARS]: value[:MAX_METADATA_CHARS]
        for key, value in list(metadata.items())[:MAX_METADATA]
    }
