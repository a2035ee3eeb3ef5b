"""Replies as the Anthropic API writes them: content blocks, streamed or whole (pure).

That API's document lists many fields as always there and null (`citations`, `container`,
`stop_details`, `cache_creation`). Its replies leave out those that have no value, and clients that
check replies (the AI SDK) take no null in their place, so they are not written here. `stop_reason`
and `stop_sequence` are null in its replies too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import OutriderError
from outrider.session.client import Accepted, Done
from outrider.session.types import FinishReason, TokenLogprobs
from services.edge.http.anthropic_errors import described
from services.edge.http.openai_reply import Choice, ChoiceDetails
from services.edge.http.reply_metrics import ReplyMetrics, metrics_of
from services.edge.http.reply_parts import (
    Part,
    PartBegun,
    PartEnded,
    PartEvent,
    PartGrew,
    PartKind,
    PartReader,
)
from services.edge.http.sse import Position
from services.edge.http.translation import Event

_STOP_REASONS: Final = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.DEADLINE: "max_tokens",
    FinishReason.CANCELLED: "end_turn",
}


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The model's reasoning before its answer."""

    thinking: str
    signature: str = ""
    """The message's id: it proves nothing. Clients send thoughts without a signature back as text,
    or leave them out."""


class DirectCaller(msgspec.Struct, kw_only=True):
    """Shows that the model itself calls the tool."""

    type: Literal["direct"] = "direct"


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: msgspec.Raw
    """A JSON object."""
    caller: DirectCaller


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class AnthropicUsage(msgspec.Struct, kw_only=True):
    """Tokens. The prompt's are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    """Prompt tokens whose KV was reused. At the start of a stream they are not known yet, and count
    as `input_tokens`."""
    output_tokens: int
    service_tier: str | UnsetType = UNSET
    """Left out at the end of a stream."""


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """The message that was asked for."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage
    outrider: ChoiceDetails | UnsetType = UNSET
    metrics: ReplyMetrics | UnsetType = UNSET
    """If the reply was to have them."""


class MessageStart(msgspec.Struct, kw_only=True, tag_field="type", tag="message_start"):
    """The message begins."""

    message: AnthropicMessage


class ContentBlockStart(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="signature_delta"):
    """The signature of a thought, at its end."""

    signature: str


class InputJsonDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str


class ContentBlockDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnd(msgspec.Struct, kw_only=True):
    """The fields of a message that are known at its end."""

    stop_reason: str | None
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    """The message ends."""

    delta: MessageEnd
    usage: AnthropicUsage
    """Usage of the whole message: replaces that of message_start."""
    outrider: ChoiceDetails
    metrics: ReplyMetrics | UnsetType = UNSET
    """If the reply was to have them."""


class MessageStop(msgspec.Struct, kw_only=True, tag_field="type", tag="message_stop"):
    """The message is whole."""


class Ping(msgspec.Struct, kw_only=True, tag_field="type", tag="ping"):
    """Sent when a stream was silent for a while."""


MessageEvent: TypeAlias = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
)

PING: Final = b"event: ping\ndata: " + msgspec.json.encode(Ping()) + b"\n\n"
"""Keeps a stream alive that was silent for a while."""
_NO_INPUT: Final = msgspec.Raw(b"{}")
_SERVICE_TIER: Final = "standard"


class MessageShape:
    """How a reply is written; a Shape."""

    def __init__(self, seed: int, *, shows_thinking: bool, has_metrics: bool = False) -> None:
        """`shows_thinking`: whether the client wants what the model thought; `has_metrics`: whether
        it wants metrics."""
        self._seed = seed
        self._has_metrics = has_metrics
        self._shows_thinking = shows_thinking
        self._indices: dict[int, int] = {}
        """Index of the block for each part's index."""
        self._message_id = ""

    def began(self, accepted: Accepted) -> list[Event]:
        """Events for the start of a reply; see Shape.began."""
        self._message_id = _id_of(accepted)
        usage = AnthropicUsage(
            input_tokens=accepted.prompt_tokens, output_tokens=0, service_tier=_SERVICE_TIER
        )
        return [_event(MessageStart(message=_message(accepted, [], usage)))]

    def scored(self, logprobs: Sequence[TokenLogprobs], num_fresh: int) -> None:
        """Does nothing: that API has no log probabilities."""

    def part(self, event: PartEvent) -> list[Event]:
        """Events for a change of a part; see Shape.part."""
        part = event.part
        if not self._is_shown(part):
            return []
        index = self._indices.setdefault(part.index, len(self._indices))
        match event:
            case PartBegun():
                begun = ContentBlockStart(index=index, content_block=_empty_block(part))
                return [_event(begun)]
            case PartGrew(text=text):
                return [_event(ContentBlockDelta(index=index, delta=_delta(part, text)))]
            case PartEnded():
                stop = _event(ContentBlockStop(index=index))
                if part.kind is not PartKind.REASONING:
                    return [stop]
                signature = SignatureDelta(signature=self._message_id)
                return [_event(ContentBlockDelta(index=index, delta=signature)), stop]

    def ended(self, reader: PartReader, done: Done) -> list[Event]:
        """Events for the end of a reply; see Shape.ended."""
        reason, stop_sequence = _stop(reader, done)
        end = MessageDelta(
            delta=MessageEnd(stop_reason=reason, stop_sequence=stop_sequence),
            usage=_usage(done),
            outrider=self._details(done),
            metrics=self._metrics(done),
        )
        return [_event(end), _event(MessageStop())]

    def body(self, accepted: Accepted, reader: PartReader, done: Done) -> AnthropicMessage:
        """The whole reply as one message; see Shape.body."""
        shown = [it for it in reader.parts if self._is_shown(it)]
        blocks = [_block(it, _id_of(accepted)) for it in shown]
        message = _message(accepted, blocks, _usage(done))
        message.usage.service_tier = _SERVICE_TIER
        message.stop_reason, message.stop_sequence = _stop(reader, done)
        message.outrider = self._details(done)
        message.metrics = self._metrics(done)
        return message

    def failed(self, error: OutriderError) -> list[Event]:
        """The event for a failure; see Shape.failed."""
        return [Event("error", described(error))]

    def _is_shown(self, part: Part) -> bool:
        return self._shows_thinking or part.kind is not PartKind.REASONING

    def _details(self, done: Done) -> ChoiceDetails:
        return Choice(0, self._seed, Position(), done=done).details

    def _metrics(self, done: Done) -> ReplyMetrics | UnsetType:
        return metrics_of(done) if self._has_metrics else UNSET


def _event(data: MessageEvent) -> Event:
    return Event(str(data.__struct_config__.tag), data)


def _id_of(accepted: Accepted) -> str:
    return f"msg_{accepted.request_id}"


def _message(
    accepted: Accepted, content: list[ContentBlock], usage: AnthropicUsage
) -> AnthropicMessage:
    return AnthropicMessage(id=_id_of(accepted), model=accepted.model, content=content, usage=usage)


def _usage(done: Done) -> AnthropicUsage:
    usage = done.usage
    return AnthropicUsage(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens),
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
    )


def _stop(reader: PartReader, done: Done) -> tuple[str, str | None]:
    """Why the message ended, and the stop sequence that did it."""
    if done.finish_reason is not FinishReason.STOP:
        return _STOP_REASONS[done.finish_reason], None
    if done.stop_string:
        return "stop_sequence", done.stop_string
    return "tool_use" if reader.has_calls else "end_turn", None


def _empty_block(part: Part) -> ContentBlock:
    match part.kind:
        case PartKind.TEXT:
            return TextBlock(text="")
        case PartKind.REASONING:
            return ThinkingBlock(thinking="")
        case PartKind.CALL:
            return _tool_use(part, _NO_INPUT)


def _block(part: Part, signature: str) -> ContentBlock:
    """A whole part. A call without whole arguments is no call, but text."""
    match part.kind:
        case PartKind.TEXT:
            return TextBlock(text=part.text)
        case PartKind.REASONING:
            return ThinkingBlock(thinking=part.text, signature=signature)
        case PartKind.CALL if part.is_whole:
            return _tool_use(part, msgspec.Raw(part.text.strip().encode() or b"{}"))
        case PartKind.CALL:
            return TextBlock(text=part.source)


def _tool_use(part: Part, arguments: msgspec.Raw) -> ToolUseBlock:
    return ToolUseBlock(id=part.call_id, name=part.name, input=arguments, caller=DirectCaller())


def _delta(part: Part, text: str) -> TextDelta | ThinkingDelta | InputJsonDelta:
    match part.kind:
        case PartKind.TEXT:
            return TextDelta(text=text)
        case PartKind.REASONING:
            return ThinkingDelta(thinking=text)
        case PartKind.CALL:
            return InputJsonDelta(partial_json=text)
