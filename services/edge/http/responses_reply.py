"""Replies as the OpenAI Responses API writes them: items, streamed or whole (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from outrider.errors import OutriderError
from outrider.session_types import FinishReason, TokenLogprobs
from services.edge.http.openai_errors import described
from services.edge.http.openai_logprobs import TokenLogprob, chat_logprobs
from services.edge.http.openai_reply import Choice, ChoiceDetails
from services.edge.http.reply_parts import (
    Part,
    PartBegun,
    PartEnded,
    PartEvent,
    PartGrew,
    PartKind,
    PartReader,
)
from services.edge.http.responses_input import FunctionChoice, FunctionTool
from services.edge.http.sse import Position
from services.edge.http.translation import Event, Numbered
from services.edge.session.events import Accepted, Done

MAX_ECHO_BYTES: Final = 16 << 10
"""Of instructions and tools: longer ones are not repeated in the first events of a stream, which
would hold up the text, but in the last one."""
_IN_PROGRESS: Final = "in_progress"
_COMPLETED: Final = "completed"
_INCOMPLETE: Final = "incomplete"
_CUT_OFF: Final = frozenset({FinishReason.LENGTH, FinishReason.DEADLINE})


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """Text."""

    text: str
    annotations: list[None] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

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
    """What the model thought before its answer."""

    id: str
    status: str
    summary: list[None] = msgspec.field(default_factory=list)
    content: list[ReasoningText]


OutputItem: TypeAlias = OutputMessage | FunctionCall | ReasoningItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Whose KV was reused."""
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Of the reply's tokens."""

    reasoning_tokens: int = 0
    """Not counted apart."""


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
    """How text is to look."""

    format: dict[str, Any] | None = None
    verbosity: str | UnsetType | None = UNSET
    """Accepted without effect."""


class ReasoningConfig(msgspec.Struct, kw_only=True):
    """How the model is to think; accepted without effect."""

    effort: str | None = None
    summary: str | None = None


class ResponseObject(msgspec.Struct, kw_only=True):
    """The response; with what was asked for, as it is served."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: str = _IN_PROGRESS
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
    """Nothing is stored here, whatever was asked for."""
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | UnsetType | None = UNSET
    outrider: ChoiceDetails | UnsetType = UNSET


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
    """The response cannot go on."""

    response: ResponseObject


class OutputItemAdded(Numbered, kw_only=True, tag_field="type", tag="response.output_item.added"):
    """An item begins, empty."""

    output_index: int
    item: OutputItem


class OutputItemDone(Numbered, kw_only=True, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class ContentPartAdded(Numbered, kw_only=True, tag_field="type", tag="response.content_part.added"):
    """A part of an item begins, empty."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class ContentPartDone(Numbered, kw_only=True, tag_field="type", tag="response.content_part.done"):
    """A part of an item is whole."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class OutputTextDelta(Numbered, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    """More text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class OutputTextDone(Numbered, kw_only=True, tag_field="type", tag="response.output_text.done"):
    """All the text."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)


class ReasoningDelta(Numbered, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    """More of a thought."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningDone(Numbered, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    """All of a thought."""

    item_id: str
    output_index: int
    content_index: int
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
    """All of a call's arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ErrorPayload(msgspec.Struct, kw_only=True):
    """What went wrong."""

    type: str
    code: str | None
    message: str
    param: str | None = None


class ErrorEvent(Numbered, kw_only=True, tag_field="type", tag="error"):
    """There is no response, and there will be none."""

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

_ID_PREFIXES: Final = {PartKind.TEXT: "msg", PartKind.REASONING: "rs", PartKind.CALL: "fc"}


class ResponseShape:
    """How a reply is written; a Shape."""

    def __init__(self, seed: int, frame: ResponseObject) -> None:
        """`frame`: the response as it begins, without id and model."""
        self._seed = seed
        self._frame = frame
        self._request_id = ""
        """Empty: nothing has begun."""
        self._logprobs: list[TokenLogprob] = []
        """Of all tokens. Where they were asked for, the reply has one part, which is text."""
        self._num_told = 0
        """How many of them the client was told with text."""

    def began(self, accepted: Accepted) -> list[Event]:
        """As Shape.began."""
        self._named(accepted)
        brief = self._frame
        echo = len(msgspec.json.encode([brief.instructions, brief.tools]))
        if echo > MAX_ECHO_BYTES:
            brief = msgspec.structs.replace(brief, instructions=None, tools=[])
        return [
            _event(ResponseCreated(response=brief)),
            _event(ResponseInProgress(response=brief)),
        ]

    def scored(self, logprobs: Sequence[TokenLogprobs], num_fresh: int) -> None:
        """As Shape.scored."""
        if logprobs:
            self._logprobs += chat_logprobs(logprobs).content
            self._num_told = max(self._num_told, len(self._logprobs) - num_fresh)

    def part(self, event: PartEvent) -> list[Event]:
        """As Shape.part."""
        part = event.part
        match event:
            case PartBegun():
                return self._part_begun(part)
            case PartGrew(text=text):
                return [self._part_grew(part, text)]
            case PartEnded():
                return self._part_ended(part)

    def ended(self, reader: PartReader, done: Done) -> list[Event]:
        """As Shape.ended."""
        response = self._response(reader, done)
        if response.status == _INCOMPLETE:
            return [_event(ResponseIncomplete(response=response))]
        return [_event(ResponseCompleted(response=response))]

    def body(self, accepted: Accepted, reader: PartReader, done: Done) -> ResponseObject:
        """As Shape.body."""
        self._named(accepted)
        return self._response(reader, done)

    def failed(self, error: OutriderError) -> Event:
        """As Shape.failed."""
        wording = described(error).error
        code = "rate_limit_exceeded" if error.http_status == 429 else "server_error"
        if self._request_id:
            failed = msgspec.structs.replace(
                self._frame,
                status="failed",
                error=ResponseError(code=code, message=error.message),
            )
            return _event(ResponseFailed(response=failed))
        payload = ErrorPayload(
            type=wording.type, code=wording.code, message=error.message, param=wording.param
        )
        return _event(ErrorEvent(code=wording.code, message=error.message, error=payload))

    def _named(self, accepted: Accepted) -> None:
        self._request_id = accepted.request_id
        self._frame = msgspec.structs.replace(
            self._frame, id=f"resp_{accepted.request_id}", model=accepted.model
        )

    def _part_begun(self, part: Part) -> list[Event]:
        added = OutputItemAdded(output_index=part.index, item=self._item(part, _IN_PROGRESS))
        if part.kind is PartKind.CALL:
            return [_event(added)]
        content = OutputText(text="") if part.kind is PartKind.TEXT else ReasoningText(text="")
        begun = ContentPartAdded(
            item_id=self._id(part), output_index=part.index, content_index=0, part=content
        )
        return [_event(added), _event(begun)]

    def _part_grew(self, part: Part, text: str) -> Event:
        item_id, index = self._id(part), part.index
        match part.kind:
            case PartKind.TEXT:
                fresh = self._logprobs[self._num_told :]
                self._num_told = len(self._logprobs)
                return _event(
                    OutputTextDelta(
                        item_id=item_id,
                        output_index=index,
                        content_index=0,
                        delta=text,
                        logprobs=fresh,
                    )
                )
            case PartKind.REASONING:
                return _event(
                    ReasoningDelta(item_id=item_id, output_index=index, content_index=0, delta=text)
                )
            case PartKind.CALL:
                return _event(ArgumentsDelta(item_id=item_id, output_index=index, delta=text))

    def _part_ended(self, part: Part) -> list[Event]:
        item_id, index, text = self._id(part), part.index, part.text
        done: ResponseEvent
        content: OutputText | ReasoningText
        item = OutputItemDone(output_index=index, item=self._item(part, _whole_status(part)))
        match part.kind:
            case PartKind.CALL:
                done = ArgumentsDone(
                    item_id=item_id, output_index=index, name=part.name, arguments=text
                )
                return [_event(done), _event(item)]
            case PartKind.TEXT:
                content = OutputText(text=text, logprobs=self._logprobs)
                done = OutputTextDone(
                    item_id=item_id,
                    output_index=index,
                    content_index=0,
                    text=text,
                    logprobs=self._logprobs,
                )
            case PartKind.REASONING:
                content = ReasoningText(text=text)
                done = ReasoningDone(
                    item_id=item_id, output_index=index, content_index=0, text=text
                )
        whole = ContentPartDone(item_id=item_id, output_index=index, content_index=0, part=content)
        return [_event(done), _event(whole), _event(item)]

    def _response(self, reader: PartReader, done: Done) -> ResponseObject:
        is_cut_off = done.finish_reason in _CUT_OFF
        seconds = round(done.edge_timings.total_ms / 1000)
        return msgspec.structs.replace(
            self._frame,
            status=_INCOMPLETE if is_cut_off else _COMPLETED,
            completed_at=None if is_cut_off else self._frame.created_at + seconds,
            incomplete_details=IncompleteDetails(reason="max_output_tokens")
            if is_cut_off
            else None,
            output=[self._item(it, self._end_status(it, reader, done)) for it in reader.parts],
            usage=_usage(done),
            outrider=Choice(0, self._seed, Position(), done=done).details,
        )

    def _end_status(self, part: Part, reader: PartReader, done: Done) -> str:
        is_last = part is reader.parts[-1]
        return _INCOMPLETE if is_last and done.finish_reason in _CUT_OFF else _whole_status(part)

    def _id(self, part: Part) -> str:
        return f"{_ID_PREFIXES[part.kind]}_{self._request_id}_{part.index}"

    def _item(self, part: Part, status: str) -> OutputItem:
        item_id, text = self._id(part), part.text
        match part.kind:
            case PartKind.TEXT:
                content = [OutputText(text=text, logprobs=self._logprobs)] if text else []
                return OutputMessage(id=item_id, status=status, content=content)
            case PartKind.REASONING:
                thoughts = [ReasoningText(text=text)] if text else []
                return ReasoningItem(id=item_id, status=status, content=thoughts)
            case PartKind.CALL:
                return FunctionCall(
                    id=item_id,
                    status=status,
                    call_id=part.call_id,
                    name=part.name,
                    arguments=text,
                )


def _event(data: ResponseEvent) -> Event:
    return Event(str(data.__struct_config__.tag), data)


def _whole_status(part: Part) -> str:
    return _COMPLETED if part.is_whole else _INCOMPLETE


def _usage(done: Done) -> ResponsesUsage:
    usage = done.usage
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
