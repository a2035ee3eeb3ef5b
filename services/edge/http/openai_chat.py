"""POST /v1/chat/completions of the OpenAI API (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outrider.models.chat import check_text
from outrider.models.tools import AUTO, NONE
from outrider.sampling.params import SamplingParams
from outrider.session.types import TokenLogprobs
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.http.bodies import null
from services.edge.http.fields import FORMAT, Door
from services.edge.http.openai_errors import error_body, refused
from services.edge.http.openai_logprobs import (
    ChatLogprobs,
    chat_count,
    chat_logprobs,
    written_logprobs,
)
from services.edge.http.openai_messages import (
    ChatMessage,
    ContentPart,
    Tool,
    choice_of,
    messages_of,
    text_of,
    tools_of,
)
from services.edge.http.openai_plan import Prompt, plan_choices
from services.edge.http.openai_reply import (
    CallPiece,
    Choice,
    ChoiceDetails,
    OpenAiUsage,
    Piece,
    Reply,
)
from services.edge.http.openai_sampling import (
    SamplingFields,
    check_metadata,
    reply_limit,
    sampling_params,
)
from services.edge.http.reply_metrics import ReplyMetrics
from services.edge.http.reply_parts import Part, PartKind
from services.edge.http.requests import RequestReader
from services.edge.http.response_format import check_strict, grammar_of
from services.edge.http.template_fields import check_continues, continues_in, template_options
from services.edge.session.events import ChatRequest
from services.edge.session.request_fields import check_prediction


class Prediction(msgspec.Struct, kw_only=True):
    """Expected text of the reply: where it is right, the reply comes faster."""

    type: str
    content: str | list[ContentPart]


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """Asks for the next message of a conversation. What becomes of fields that are not listed is
    told in the guide (docs/guides/fields.md)."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template, as in vLLM; one that it does not have is refused."""
    enable_thinking: bool | None = None
    """Whether the model reasons before it answers, by the variable that its template has for it."""
    reasoning_effort: str | None = None
    """none, minimal, low, medium, high, xhigh or max: the template's variable of that name, or
    whether the model reasons."""
    continue_final_message: bool | None = None
    """Whether the reply continues the last message, which is the assistant's, as in vLLM."""
    add_generation_prompt: bool | None = None
    """The opposite of `continue_final_message`; other values are refused."""
    metadata: dict[str, str] | None = None
    """Accepted; nothing is stored."""
    safety_identifier: str | None = None
    """Alternative to `user`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    """Number of likeliest tokens in each place of the reply, 0 to 20; needs `logprobs`."""
    prediction: Prediction | None = None
    tools: list[Tool] | None = None
    tool_choice: msgspec.Raw = msgspec.field(default_factory=null)
    """none, auto, required, {"type": "function", "function": {"name": NAME}}, or {"type":
    "allowed_tools", "allowed_tools": {"mode": MODE, "tools": [...]}}."""
    parallel_tool_calls: bool | None = None
    typing_id: str | None = None
    """The `id` by which /v1/chat/typing was told the last message while it was typed: the reply may
    have begun."""


class ReplyFunction(msgspec.Struct, kw_only=True):
    """The function that a call names, with its arguments."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


class ReplyToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: ReplyFunction


class ReplyMessage(msgspec.Struct, kw_only=True):
    """The message that was asked for."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    """The model's reasoning before its content; only of models that reason."""
    tool_calls: list[ReplyToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the messages that were asked for."""

    index: int
    message: ReplyMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    outrider: ChoiceDetails


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer, where it is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: OpenAiUsage
    metrics: ReplyMetrics | UnsetType = UNSET
    """Of a reply with one choice, if it was to have them."""
    system_fingerprint: str | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of a call's function."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    """More of them."""


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of a call; id, type and name come when it begins."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """New parts of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """New parts of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    outrider: ChoiceDetails | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """An event of the answer, where it is streamed."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChunkChoice]
    usage: OpenAiUsage | UnsetType | None = UNSET
    metrics: ReplyMetrics | UnsetType = UNSET
    """In the last chunk of a reply with one choice, if it was to have them."""


class ChatShape:
    """How its objects look."""

    prefix = "chatcmpl-"

    def opening(self, reply: Reply, choice: Choice) -> ChatCompletionChunk:
        """The chunk with a message's role; see Shape.opening."""
        delta = Delta(role="assistant", content="")
        return _chunk(reply, choice, delta, outrider=ChoiceDetails(seed=choice.seed))

    def piece(self, reply: Reply, choice: Choice, piece: Piece) -> ChatCompletionChunk:
        """A chunk with new text, reasoning and calls; see Shape.piece."""
        return _chunk(reply, choice, _delta(piece), logprobs=_logprobs(piece.logprobs))

    def ending(self, reply: Reply, choice: Choice) -> ChatCompletionChunk:
        """The last chunk of a choice; see Shape.ending."""
        chunk = _chunk(reply, choice, _delta(choice.last), outrider=choice.details)
        chunk.metrics = UNSET if reply.includes_usage else reply.metrics
        return chunk

    def usage(self, reply: Reply, usage: OpenAiUsage) -> ChatCompletionChunk:
        """The chunk with the usage; see Shape.usage."""
        return ChatCompletionChunk(
            id=reply.reply_id,
            created=reply.created,
            model=reply.model,
            system_fingerprint=reply.fingerprint,
            choices=[],
            usage=usage,
            metrics=reply.metrics,
        )

    def keep(self, choice: Choice, logprobs: Sequence[TokenLogprobs]) -> None:
        """Keep log probabilities for `body`; see Shape.keep."""
        choice.logprobs += written_logprobs(logprobs)

    def body(self, reply: Reply, choices: Sequence[Choice], usage: OpenAiUsage) -> ChatCompletion:
        """The whole reply; see Shape.body."""
        return ChatCompletion(
            id=reply.reply_id,
            created=reply.created,
            model=reply.model,
            choices=[
                ChatChoice(
                    index=choice.index,
                    message=_whole_message(choice.content.reader.parts),
                    finish_reason=choice.finish_reason or "stop",
                    logprobs=ChatLogprobs(content=choice.logprobs) if choice.logprobs else None,
                    outrider=choice.details,
                )
                for choice in choices
            ],
            usage=usage,
            metrics=reply.metrics,
            system_fingerprint=reply.fingerprint,
        )


def _whole_message(parts: Sequence[Part]) -> ReplyMessage:
    """A call that did not become whole is content, as the model wrote it."""
    calls = [
        ReplyToolCall(id=it.call_id, function=ReplyFunction(name=it.name, arguments=it.text))
        for it in parts
        if it.kind is PartKind.CALL and it.is_whole
    ]
    content = "".join(
        it.text if it.kind is PartKind.TEXT else it.source
        for it in parts
        if it.kind is not PartKind.REASONING
    )
    reasoning = "".join(it.text for it in parts if it.kind is PartKind.REASONING)
    return ReplyMessage(
        content=None if calls and not content else content,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def _delta(piece: Piece) -> Delta:
    return Delta(
        content=piece.text or UNSET,
        reasoning_content=piece.reasoning or UNSET,
        tool_calls=[_call_delta(call) for call in piece.calls] or UNSET,
    )


def _call_delta(call: CallPiece) -> ToolCallDelta:
    if not call.id:
        return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
    function = FunctionDelta(name=call.name, arguments=call.arguments)
    return ToolCallDelta(index=call.index, id=call.id, type="function", function=function)


def _logprobs(entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
    return chat_logprobs(entries) if entries else None


def _chunk(
    reply: Reply,
    choice: Choice,
    delta: Delta,
    *,
    logprobs: ChatLogprobs | None = None,
    outrider: ChoiceDetails | UnsetType = UNSET,
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
                logprobs=logprobs,
                finish_reason=choice.finish_reason,
                outrider=outrider,
            )
        ],
        usage=reply.no_usage,
    )


_SHAPE: Final = ChatShape()
_REQUESTS: Final = RequestReader(Door.CHAT, ChatCompletionRequest)


def plan(asked: ApiRequest) -> PlannedReply:
    """The chats that answer a request. Raises InvalidRequestError."""
    request = _REQUESTS.read(asked.body)
    body = request.body
    check_metadata(body.metadata)
    messages = messages_of(body.messages)
    choice, tools = choice_of(body.tool_choice, tools_of(body.tools or (), request.passed_over))
    for number, tool in enumerate(body.tools or ()):
        if tool.function is not None and tool.function.strict and choice not in (AUTO, NONE):
            check_strict(tool.function.parameters, f"tools[{number}].function.parameters")
    prediction = _prediction(body.prediction)
    options = template_options(
        body.chat_template_kwargs,
        request.names,
        thinks=body.enable_thinking,
        effort=body.reasoning_effort,
        continues=continues_in(body.continue_final_message, body.add_generation_prompt),
    )
    sampling = replace(
        _sampling(body, asked.default_max_tokens, request.names),
        grammar=grammar_of(
            body.response_format, request.names.get(FORMAT, FORMAT), request.passed_over
        ),
        num_logprobs=chat_count(body.logprobs, body.top_logprobs),
    )
    check_continues(options, sampling.grammar, request.names.get(FORMAT, FORMAT))

    def put_into(chat: ChatRequest) -> ChatRequest:
        return replace(
            chat,
            messages=messages,
            prediction=prediction,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            template_options=options,
        )

    typing_id = body.typing_id or ""
    if (seed := asked.typed_seed(typing_id)) is not None:
        asked = replace(asked, random_seed=seed)
    planned = plan_choices(
        "chat",
        body,
        asked,
        _SHAPE,
        sampling,
        [Prompt(put_into)],
        is_chat=True,
        has_tools=bool(tools) and choice != NONE,
        user=body.user or body.safety_identifier or "",
        passed_over=request.passed_over,
    )
    return replace(planned, typing_id=typing_id if len(planned.chats) == 1 else "")


API: Final = ChatApi(plan, error_body)


def _sampling(
    body: ChatCompletionRequest, default_max_tokens: int, names: Mapping[str, str]
) -> SamplingParams:
    if body.max_completion_tokens is None:
        return sampling_params(body, reply_limit(body.max_tokens, default_max_tokens), names)
    limit = reply_limit(body.max_completion_tokens, default_max_tokens)
    return sampling_params(body, limit, {**names, "max_tokens": "max_completion_tokens"})


def _prediction(given: Prediction | None) -> str:
    if given is None:
        return ""
    if given.type != "content":
        raise refused("prediction", "a prediction is of type content")
    text = text_of("prediction.content", given.content)
    check_text(text)
    check_prediction(text)
    return text
