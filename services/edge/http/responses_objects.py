"""Objects that the OpenAI Responses API sends: responses, their items, the events of a stream
(pure)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from services.edge.http.bodies import null
from services.edge.http.openai_logprobs import TokenLogprob
from services.edge.http.openai_reply import ChoiceDetails
from services.edge.http.reply_metrics import ReplyMetrics
from services.edge.http.responses_input import FunctionChoice, FunctionTool
from services.edge.http.translation import Numbered

IN_PROGRESS: Final = "in_progress"


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text."""

    text: str
    annotations: list[None] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The model's reasoning."""

    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """Text of the reply."""

    id: str
    status: str
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    """JSON."""


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning before its answer."""

    id: str
    status: str
    summary: list[None] = msgspec.field(default_factory=list)
    content: list[ReasoningText]


OutputItem: TypeAlias = OutputMessage | FunctionCall | ReasoningItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Prompt tokens whose KV was reused."""
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the reply's tokens."""

    reasoning_tokens: int
    """Tokens of reasoning, its tags not counted."""


class ResponsesUsage(msgspec.Struct, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response is not whole."""

    reason: str


class TextConfig(msgspec.Struct, kw_only=True):
    """Format of the text."""

    format: msgspec.Raw = msgspec.field(default_factory=null)
    """text, json_schema, json_object; ours: regex, lark."""
    verbosity: str | UnsetType | None = UNSET
    """Accepted without effect."""


class ReasoningConfig(msgspec.Struct, kw_only=True):
    """How the model should reason; accepted without effect."""

    effort: str | None = None
    summary: str | None = None


class ResponseObject(msgspec.Struct, kw_only=True):
    """The response; with what was asked for, as it is served."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: str = IN_PROGRESS
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = msgspec.field(default_factory=list)
    usage: ResponsesUsage | None = None
    instructions: str | None
    tools: list[FunctionTool]
    tool_choice: str | FunctionChoice
    parallel_tool_calls: bool
    max_tool_calls: int | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: TextConfig
    reasoning: ReasoningConfig
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: None = None
    store: bool = False
    """Always false: responses are not stored, even if the request asks for it."""
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | UnsetType | None = UNSET
    outrider: ChoiceDetails | UnsetType = UNSET
    metrics: ReplyMetrics | UnsetType = UNSET
    """If the response was to have them, once it has ended."""


class ResponseCreated(Numbered, kw_only=True, tag_field="type", tag="response.created"):
    """The response begins."""

    response: ResponseObject


class ResponseInProgress(Numbered, kw_only=True, tag_field="type", tag="response.in_progress"):
    """The model is at work."""

    response: ResponseObject


class ResponseCompleted(Numbered, kw_only=True, tag_field="type", tag="response.completed"):
    """The response is whole."""

    response: ResponseObject


class ResponseIncomplete(Numbered, kw_only=True, tag_field="type", tag="response.incomplete"):
    """The response ended before its text did."""

    response: ResponseObject


class ResponseFailed(Numbered, kw_only=True, tag_field="type", tag="response.failed"):
    """The response failed after it had begun."""

    response: ResponseObject


class OutputItemAdded(Numbered, kw_only=True, tag_field="type", tag="response.output_item.added"):
    """An item begins, empty."""

    output_index: int
    item: OutputItem


class OutputItemDone(Numbered, kw_only=True, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class ContentEvent(Numbered, kw_only=True):
    """An event about a part of an item's content."""

    item_id: str
    output_index: int
    content_index: int


class ContentPartAdded(
    ContentEvent, kw_only=True, tag_field="type", tag="response.content_part.added"
):
    """A part of an item begins, empty."""

    part: OutputText | ReasoningText


class ContentPartDone(
    ContentEvent, kw_only=True, tag_field="type", tag="response.content_part.done"
):
    """A part of an item is whole."""

    part: OutputText | ReasoningText


class OutputTextDelta(
    ContentEvent, kw_only=True, tag_field="type", tag="response.output_text.delta"
):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class OutputTextDone(ContentEvent, kw_only=True, tag_field="type", tag="response.output_text.done"):
    """All the text."""

    text: str
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningDelta(
    ContentEvent, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"
):
    """More of a thought."""

    delta: str


class ReasoningDone(
    ContentEvent, kw_only=True, tag_field="type", tag="response.reasoning_text.done"
):
    """The whole reasoning text."""

    text: str


class ArgumentsDelta(
    Numbered, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"
):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(
    Numbered, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"
):
    """The whole arguments of a call."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ErrorPayload(msgspec.Struct, kw_only=True):
    """An error: type, code, message and parameter."""

    type: str
    code: str | None
    message: str
    param: str | None = None


class ErrorEvent(Numbered, kw_only=True, tag_field="type", tag="error"):
    """The request failed before a response began."""

    code: str | None
    message: str
    param: str | None = None
    error: ErrorPayload
    """The same again, where other clients of that API look for it."""


ResponseEvent: TypeAlias = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent
)
