"""POST /v1/responses of the OpenAI API, without state (pure): nothing is stored, so each request
has all of its conversation."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from outrider.errors import PromptTooLongError
from outrider.models.chat import check_num_messages
from outrider.models.tools import AUTO, NONE
from services.edge.http.api import ApiRequest, ChatApi, PlannedReply
from services.edge.http.bodies import is_given, null
from services.edge.http.fields import Door
from services.edge.http.openai_errors import error_body, refused
from services.edge.http.openai_logprobs import chat_count
from services.edge.http.openai_sampling import SamplingFields, check_metadata, returns_metrics
from services.edge.http.requests import ReadRequest, RequestReader
from services.edge.http.response_format import check_strict, flat_format
from services.edge.http.responses_input import (
    FunctionChoice,
    FunctionTool,
    InputItem,
    functions_of,
    messages_of,
    tool_choice_of,
)
from services.edge.http.responses_objects import ReasoningConfig, ResponseObject, TextConfig
from services.edge.http.responses_reply import ResponseShape
from services.edge.http.template_fields import template_options
from services.edge.http.translation import (
    Conversation,
    ExtraFields,
    PartWriter,
    conversation,
    definition_of,
    plan_chat,
)

_PLAIN_TEXT: Final = msgspec.Raw(b'{"type":"text"}')
_FORMAT: Final = "text.format"
_MAX_INCLUDE: Final = 64
_LOGPROBS: Final = "message.output_text.logprobs"


class ConversationFields(ExtraFields, kw_only=True):
    """The conversation, tools and text format of a request."""

    model: str | None = None
    """The edge's default where it is left out, as on every route."""
    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None


class InputTokensRequest(ConversationFields, kw_only=True):
    """Asks how many tokens the prompt of a response has. What becomes of fields that are not listed
    is told in the guide (docs/guides/fields.md)."""


class ResponsesRequest(ConversationFields, kw_only=True):
    """Asks for a response. What becomes of fields that are not listed is told in the guide
    (docs/guides/fields.md)."""

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    """Accepted, and returned in the response; it is of tools that the API itself runs."""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """Keep only this many of the likeliest ids, as in vLLM."""
    stop: str | list[str] | None = None
    """Texts that end the reply, as in chat completions."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    """Number of likeliest tokens in each place of the text, 0 to 20, if `include` asks for log
    probabilities."""
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    """Accepted, and returned in the response."""
    prompt_cache_key: str | None = None
    """Accepted, and returned in the response: cached prompts are found by their contents."""
    safety_identifier: str | None = None
    """Alternative to `user`."""
    user: str | None = None


class InputTokens(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    object: str = "response.input_tokens"
    input_tokens: int


_REQUESTS: Final = RequestReader(Door.RESPONSES, ResponsesRequest)
COUNTS: Final = RequestReader(Door.RESPONSES, InputTokensRequest, ResponsesRequest)


def plan(asked: ApiRequest) -> PlannedReply:
    """The chat that answers a request. Raises InvalidRequestError."""
    request = _REQUESTS.read(asked.body)
    body = request.body
    check_metadata(body.metadata)
    said = conversation_of(request)
    num_logprobs = _num_logprobs(body, said)
    fields = SamplingFields(
        model=body.model,
        stream=body.stream,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
    text_format = None if body.text is None else body.text.format
    chat = plan_chat(
        "responses",
        body,
        fields,
        asked,
        said,
        flat_format(null() if text_format is None else text_format, _FORMAT),
        passed_over=request.passed_over,
        names=request.names,
        num_logprobs=num_logprobs,
    )
    is_streamed = bool(body.stream)
    writer = PartWriter(
        ResponseShape(
            chat.seed,
            _frame(body, asked.now_s, chat.request.request_id),
            has_metrics=returns_metrics(body.return_metrics, asked),
        ),
        chat.had,
        is_streamed=is_streamed,
        has_ids=bool(asked.idempotency_key),
    )
    user = body.user or body.safety_identifier or ""
    return PlannedReply(
        *((chat.request,), writer, is_streamed, user),
        streamed_errors=(PromptTooLongError,),
        passed_over=request.passed_over,
    )


API: Final = ChatApi(plan, error_body)


def conversation_of(request: ReadRequest[ConversationFields]) -> Conversation:
    """The conversation; functions alone are left of the request's tools. Raises
    InvalidRequestError."""
    body, passed_over = request.body, request.passed_over
    if not isinstance(body.input, str):
        check_num_messages(len(body.input))
    body.tools = functions_of(body.tools or (), passed_over)
    choice, names = tool_choice_of(body.tool_choice)
    for number, tool in enumerate(body.tools):
        if tool.strict and choice not in (AUTO, NONE):
            check_strict(tool.parameters, f"tools[{number}].parameters")
    return conversation(
        messages_of(body.instructions, body.input, passed_over),
        [definition_of(it.name, it.description, it.parameters) for it in body.tools],
        choice,
        field="input",
        parallel=body.parallel_tool_calls is not False,
        names=names,
        options=template_options(
            body.chat_template_kwargs,
            request.names,
            thinks=body.enable_thinking,
            effort=body.reasoning.effort if body.reasoning is not None else None,
        ),
    )


def _num_logprobs(body: ResponsesRequest, said: Conversation) -> int:
    """SamplingParams.num_logprobs. Raises InvalidRequestError."""
    include = body.include or ()
    if len(include) > _MAX_INCLUDE:
        raise refused("include", f"include has at most {_MAX_INCLUDE} entries")
    is_asked = _LOGPROBS in include
    if is_asked and said.shown_tools:
        raise refused(
            "include",
            f"include: {_LOGPROBS} is only for replies of text; leave the tools out, or set "
            "tool_choice to none",
        )
    if not is_asked and body.top_logprobs:
        raise refused(
            "top_logprobs", f"top_logprobs goes with {_LOGPROBS!r}; put that into include"
        )
    return chat_count(is_asked, body.top_logprobs)


def _frame(body: ResponsesRequest, created_at: int, request_id: str = "") -> ResponseObject:
    """The response as it begins; what it leaves to the model is known once that is."""
    text = body.text or TextConfig()
    return ResponseObject(
        id=f"resp_{request_id}",
        created_at=created_at,
        model=body.model or "",
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
        text=TextConfig(
            format=text.format if is_given(text.format) else _PLAIN_TEXT,
            verbosity=text.verbosity or UNSET,
        ),
        reasoning=body.reasoning or ReasoningConfig(),
        metadata=body.metadata or {},
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        user=body.user or UNSET,
    )
