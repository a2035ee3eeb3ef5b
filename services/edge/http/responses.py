"""POST /v1/responses of the OpenAI API, without state (pure): nothing is stored, so each request
has all of its conversation."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from outrider.models.chat import Message, check_messages, check_num_messages
from services.edge.http.api import Asked, ChatApi, PlannedReply
from services.edge.http.openai_errors import error_body, refused
from services.edge.http.openai_sampling import SamplingFields
from services.edge.http.responses_input import (
    FunctionChoice,
    FunctionTool,
    InputItem,
    has_calls,
    messages_of,
    response_format_of,
    tool_choice_of,
    tool_definitions,
)
from services.edge.http.responses_reply import (
    ReasoningConfig,
    ResponseObject,
    ResponseShape,
    TextConfig,
)
from services.edge.http.translation import ExtraFields, PartWriter, plan_chat, read

_LOGPROBS: Final = "message.output_text.logprobs"


class ConversationFields(ExtraFields, kw_only=True):
    """What the model is told."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    """Accepted; input that is too long is refused."""
    previous_response_id: str | None = None
    """Refused: nothing is stored."""
    conversation: msgspec.Raw | None = None
    """Refused: nothing is stored."""
    prompt: msgspec.Raw | None = None
    """Refused: nothing is stored."""


class InputTokensRequest(ConversationFields, kw_only=True):
    """Asks how many tokens the prompt of a response has. Fields that are not listed are ignored."""


class ResponsesRequest(ConversationFields, kw_only=True):
    """Asks for a response. Fields that are not listed are ignored."""

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    """Accepted; it is of tools that the API itself runs."""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """As in vLLM."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool | None = None
    """Accepted, and taken for false: nothing is stored."""
    background: bool | None = None
    metadata: dict[str, str] | None = None
    """Accepted; told back."""
    service_tier: str | None = None
    """Accepted without effect."""
    prompt_cache_key: str | None = None
    """Accepted without effect: prompts find what is cached by what they are."""
    safety_identifier: str | None = None
    """As `user`."""
    user: str | None = None


class InputTokens(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    object: str = "response.input_tokens"
    input_tokens: int


_decode: Final = msgspec.json.Decoder(ResponsesRequest).decode
decode_count: Final = msgspec.json.Decoder(InputTokensRequest).decode


def plan(asked: Asked) -> PlannedReply:
    """The chat that answers a request. Raises InvalidRequestError."""
    body = read(_decode, asked.body)
    _refuse_logprobs(body)
    messages = conversation_of(body)
    fields = SamplingFields(
        model=body.model,
        stream=body.stream,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
    chat = plan_chat("responses", body, fields, asked, messages)
    is_streamed = bool(body.stream)
    writer = PartWriter(
        ResponseShape(chat.seed, _frame(body, asked.now_s)),
        chat.had,
        is_streamed=is_streamed,
        has_ids=bool(asked.idempotency_key),
    )
    user = body.user or body.safety_identifier or ""
    return PlannedReply((chat.request,), writer, is_streamed, user)


API: Final = ChatApi(plan, error_body)


def conversation_of(body: ConversationFields) -> tuple[Message, ...]:
    """The conversation. Raises InvalidRequestError."""
    _refuse_what_is_not_stored(body)
    _refuse_what_is_not_served(body)
    if not isinstance(body.input, str):
        check_num_messages(len(body.input))
    messages = messages_of(body.instructions, body.input)
    check_num_messages(len(messages))
    check_messages(messages)
    return messages


def _refuse_what_is_not_stored(body: ConversationFields) -> None:
    if body.previous_response_id is not None:
        raise refused(
            "previous_response_id",
            "previous_response_id: no response is stored here; send the whole conversation as "
            "`input`",
        )
    for name in ("conversation", "prompt"):
        given = getattr(body, name)
        if given is not None and bytes(given) != b"null":
            raise refused(
                name, f"{name}: none is stored here; send the whole conversation as `input`"
            )
    if isinstance(body, ResponsesRequest) and body.background:
        raise refused(
            "background", "background: no response is stored here, to be fetched later; wait for it"
        )


def _refuse_what_is_not_served(body: ConversationFields) -> None:
    """Raises InvalidRequestError for fields that would change the reply and cannot be heeded."""
    tool_definitions(body.tools or ())
    if body.tools:
        raise refused("tools", "tools are not served yet; leave them out")
    if tool_choice_of(body.tool_choice) not in ("none", "auto"):
        raise refused("tool_choice", "tool_choice is for requests with tools; leave it out")
    if has_calls(body.input):
        raise refused("input", "input: function calls are not served yet; send messages")
    text_format = None if body.text is None else body.text.format
    if response_format_of(text_format).get("type") != "text":
        raise refused("text.format", "text.format is text; others are not served yet")


def _refuse_logprobs(body: ResponsesRequest) -> None:
    """Raises InvalidRequestError."""
    if body.top_logprobs or _LOGPROBS in (body.include or ()):
        raise refused("top_logprobs", "logprobs are not served yet; leave them out")


def _frame(body: ResponsesRequest, created_at: int) -> ResponseObject:
    """The response as it begins."""
    text = body.text or TextConfig()
    return ResponseObject(
        id="",
        created_at=created_at,
        model=body.model,
        instructions=body.instructions,
        tools=body.tools or [],
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        max_tool_calls=body.max_tool_calls,
        max_output_tokens=body.max_output_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        top_logprobs=body.top_logprobs or 0,
        text=TextConfig(format=text.format or {"type": "text"}, verbosity=text.verbosity or UNSET),
        reasoning=body.reasoning or ReasoningConfig(),
        metadata=body.metadata or {},
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        user=body.user or UNSET,
    )
