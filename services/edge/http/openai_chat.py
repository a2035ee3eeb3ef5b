"""POST /v1/chat/completions of the OpenAI API (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message, check_messages, check_num_messages
from services.edge.http.api import Asked, ChatApi, PlannedReply
from services.edge.http.openai_errors import error_body, refused, unreadable
from services.edge.http.openai_reply import (
    Choice,
    ChoiceDetails,
    OpenAiUsage,
    OpenAiWriter,
    Reply,
)
from services.edge.http.openai_sampling import (
    UNLIMITED_TOKENS,
    SamplingFields,
    chat_request,
    check_stream_options,
    digest_of,
    first_seed,
    num_choices,
    read_positions,
    sampling_params,
    seed_of,
)

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_PART_SEPARATOR: Final = "\n"
_MAX_NAME_CHARS: Final = 64


def _null() -> msgspec.Raw:
    """JSON of any shape, where none was given."""
    return msgspec.Raw(b"null")


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message; parts that are no text are refused."""

    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """A message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """Asks for the next message of a conversation. Fields that are not listed are ignored."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    """Accepted; models here do not reason apart."""
    verbosity: str | None = None
    """Accepted without effect."""
    metadata: dict[str, str] | None = None
    """Accepted; nothing is stored."""
    store: bool | None = None
    """Accepted; nothing is stored."""
    service_tier: str | None = None
    """Accepted without effect."""
    safety_identifier: str | None = None
    """As `user`."""
    modalities: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prediction: msgspec.Raw = msgspec.field(default_factory=_null)
    tools: list[msgspec.Raw] | None = None
    tool_choice: msgspec.Raw = msgspec.field(default_factory=_null)
    parallel_tool_calls: bool | None = None
    functions: list[msgspec.Raw] | None = None
    response_format: msgspec.Raw = msgspec.field(default_factory=_null)


class ReplyMessage(msgspec.Struct, kw_only=True):
    """The message that was asked for."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the messages that were asked for."""

    index: int
    message: ReplyMessage
    finish_reason: str
    logprobs: None = None
    outrider: ChoiceDetails


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer, where it is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: OpenAiUsage
    system_fingerprint: str | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is new of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """What is new of one choice."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None
    outrider: ChoiceDetails | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """An event of the answer, where it is streamed."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChunkChoice]
    usage: OpenAiUsage | UnsetType | None = UNSET


class ChatShape:
    """How its objects look."""

    prefix = "chatcmpl-"

    def opening(self, reply: Reply, choice: Choice) -> ChatCompletionChunk:
        """As Shape.opening: whose message it is."""
        delta = Delta(role="assistant", content="")
        return _chunk(reply, choice, delta, outrider=ChoiceDetails(seed=choice.seed))

    def text(self, reply: Reply, choice: Choice, text: str) -> ChatCompletionChunk:
        """As Shape.text."""
        return _chunk(reply, choice, Delta(content=text))

    def ending(self, reply: Reply, choice: Choice) -> ChatCompletionChunk:
        """As Shape.ending."""
        return _chunk(reply, choice, Delta(), outrider=choice.details)

    def usage(self, reply: Reply, usage: OpenAiUsage) -> ChatCompletionChunk:
        """As Shape.usage."""
        return ChatCompletionChunk(
            id=reply.reply_id,
            created=reply.created,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=[],
            usage=usage,
        )

    def body(self, reply: Reply, choices: Sequence[Choice], usage: OpenAiUsage) -> ChatCompletion:
        """As Shape.body."""
        return ChatCompletion(
            id=reply.reply_id,
            created=reply.created,
            model=reply.model,
            choices=[
                ChatChoice(
                    index=choice.index,
                    message=ReplyMessage(content=choice.text),
                    finish_reason=choice.finish_reason or "stop",
                    outrider=choice.details,
                )
                for choice in choices
            ],
            usage=usage,
            system_fingerprint=reply.fingerprint,
        )


def _chunk(
    reply: Reply, choice: Choice, delta: Delta, outrider: ChoiceDetails | UnsetType = UNSET
) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        id=reply.reply_id,
        created=reply.created,
        model=reply.model,
        system_fingerprint=reply.fingerprint,
        choices=[
            ChunkChoice(
                index=choice.index,
                delta=delta,
                finish_reason=choice.finish_reason,
                outrider=outrider,
            )
        ],
        usage=reply.no_usage,
    )


_SHAPE: Final = ChatShape()
_decode: Final = msgspec.json.Decoder(ChatCompletionRequest).decode


def plan(asked: Asked) -> PlannedReply:
    """The chats that answer a request. Raises InvalidRequestError."""
    try:
        body = _decode(asked.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise unreadable(error) from None
    _refuse_what_is_not_served(body)
    options = check_stream_options(body)
    messages = messages_of(body.messages)
    count = num_choices(body, 1, asked.max_choices)
    is_streamed = bool(body.stream)
    had = read_positions(asked, count, is_streamed=is_streamed)
    digest = digest_of("chat", body)
    seed = first_seed(body, asked, digest)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = UNLIMITED_TOKENS if limit is None else limit
    seeds = [seed_of(seed, index) for index in range(count)]
    chats = tuple(
        replace(
            chat_request(
                body,
                asked,
                index=index,
                digest=digest,
                sampling=sampling_params(body, max_tokens, seeds[index]),
                position=had[index],
                provisional=is_streamed and bool(options.provisional),
            ),
            messages=messages,
        )
        for index in range(count)
    )
    writer = OpenAiWriter(
        _SHAPE,
        [Choice(index, seeds[index], had[index]) for index in range(count)],
        asked.now_s,
        is_streamed=is_streamed,
        includes_usage=bool(options.include_usage),
        has_ids=bool(asked.idempotency_key),
        num_per_prompt=count,
    )
    return PlannedReply(chats, writer, is_streamed, body.user or body.safety_identifier or "")


API: Final = ChatApi(plan, error_body)


def messages_of(given: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """The conversation. Raises InvalidRequestError."""
    check_num_messages(len(given))
    messages = tuple(_message(number, message) for number, message in enumerate(given))
    check_messages(messages)
    return messages


def _message(number: int, message: ChatMessage) -> Message:
    where = f"messages[{number}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise refused(
            f"{where}.role",
            f"{where}.role {message.role[:_MAX_NAME_CHARS]!r} is not served; use one of "
            f"{', '.join(_ROLES)}",
        )
    if message.tool_calls:
        raise refused(f"{where}.tool_calls", "tool calls are not served yet; send text")
    content = message.content
    if content is None or isinstance(content, str):
        return Message(role, content or "")
    return Message(role, _PART_SEPARATOR.join(_text(where, part) for part in content))


def _text(where: str, part: ContentPart) -> str:
    if part.type in _TEXT_PARTS:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    raise refused(
        f"{where}.content",
        f"{where}.content has a part of type {part.type[:_MAX_NAME_CHARS]!r}; models here read "
        "text alone",
    )


def _refuse_what_is_not_served(body: ChatCompletionRequest) -> None:
    """Raises InvalidRequestError for fields that would change the reply and cannot be heeded."""
    if body.logprobs or body.top_logprobs:
        raise refused("logprobs", "logprobs are not served yet; leave them out")
    if _is_given(body.prediction):
        raise refused("prediction", "predicted outputs are not served yet; leave them out")
    if body.tools or body.functions:
        raise refused("tools", "tools are not served yet; leave them out")
    if _is_given(body.tool_choice) and _word(body.tool_choice) not in ("none", "auto"):
        raise refused("tool_choice", "tool_choice is for requests with tools; leave it out")
    if _is_given(body.response_format) and _format(body.response_format) != "text":
        raise refused("response_format", "response_format is text; others are not served yet")
    if body.modalities and set(body.modalities) != {"text"}:
        raise refused("modalities", "models here write text alone")


class _Typed(msgspec.Struct):
    type: str


def _is_given(field: msgspec.Raw) -> bool:
    return bytes(field) != b"null"


def _word(field: msgspec.Raw) -> str | None:
    """A JSON string's text; None for other JSON."""
    try:
        return msgspec.json.decode(field, type=str)
    except msgspec.ValidationError:
        return None


def _format(field: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(field, type=_Typed).type
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequestError(
            "response_format has a field `type`", metadata={"param": "response_format"}
        ) from error
