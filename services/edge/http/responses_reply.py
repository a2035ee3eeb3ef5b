"""Replies as the OpenAI Responses API writes them: items, streamed or whole (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from outrider.errors import OutriderError
from outrider.session.client import Accepted, Done
from outrider.session.types import TokenLogprobs
from services.edge.http.openai_errors import described
from services.edge.http.openai_logprobs import TokenLogprob, written_logprobs
from services.edge.http.openai_reply import Choice
from services.edge.http.reply_metrics import metrics_of
from services.edge.http.reply_parts import (
    Part,
    PartBegun,
    PartEnded,
    PartEvent,
    PartGrew,
    PartKind,
    PartReader,
)
from services.edge.http.responses_objects import (
    IN_PROGRESS,
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    ErrorEvent,
    ErrorPayload,
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputItemAdded,
    OutputItemDone,
    OutputMessage,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    OutputTokensDetails,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseObject,
    ResponsesUsage,
)
from services.edge.http.sse import Position
from services.edge.http.translation import CUT_OFF, Event

MAX_ECHO_BYTES: Final = 16 << 10
"""Longest instructions and tools repeated in the first events of a stream: longer ones would delay
the text, and are only in the last event."""
_FAILURES: Final = {it: it for it in ("context_length_exceeded", "rate_limit_exceeded")}
"""Codes of failed responses by those of errors; for others the API has `server_error`."""
_COMPLETED: Final = "completed"
_INCOMPLETE: Final = "incomplete"


_ID_PREFIXES: Final = {PartKind.TEXT: "msg", PartKind.REASONING: "rs", PartKind.CALL: "fc"}


class ResponseShape:
    """How a reply is written; a Shape."""

    def __init__(self, seed: int, frame: ResponseObject, *, has_metrics: bool = False) -> None:
        """`frame`: the response as it begins; `has_metrics`: whether the client wants metrics."""
        self._seed = seed
        self._has_metrics = has_metrics
        self._frame = frame
        self._request_id = ""
        """Empty: nothing has begun."""
        self._logprobs: list[TokenLogprob] = []
        """Log probabilities of the text's tokens, encoded. If they were requested, the reply is one
        text, perhaps behind reasoning."""
        self._num_begun: list[int] = []
        """Code points that each of these tokens begins."""
        self._num_told = 0
        """How many of them were sent to the client with text."""

    def began(self, accepted: Accepted) -> list[Event]:
        """Events for the start of a reply; see Shape.began."""
        self._named(accepted)
        return self._opening()

    def _opening(self) -> list[Event]:
        brief = self._frame
        echo = len(msgspec.json.encode([brief.instructions, brief.tools]))
        if echo > MAX_ECHO_BYTES:
            brief = msgspec.structs.replace(brief, instructions=None, tools=[])
        return [
            _event(ResponseCreated(response=brief)),
            _event(ResponseInProgress(response=brief)),
        ]

    def scored(self, logprobs: Sequence[TokenLogprobs], num_fresh: int) -> None:
        """Keep log probabilities for the next texts; see Shape.scored."""
        if logprobs:
            self._logprobs += written_logprobs(logprobs)
            # In UTF-8 all bytes of a character but its first are 10xxxxxx.
            self._num_begun += [
                sum(byte & 0xC0 != 0x80 for byte in entry.chosen.text) for entry in logprobs
            ]
            self._num_told = max(self._num_told, len(self._logprobs) - num_fresh)

    def part(self, event: PartEvent) -> list[Event]:
        """Events for a change of a part; see Shape.part."""
        part = event.part
        match event:
            case PartBegun():
                return self._part_begun(part)
            case PartGrew(text=text):
                return [self._part_grew(part, text)]
            case PartEnded():
                return self._part_ended(part)

    def ended(self, reader: PartReader, done: Done) -> list[Event]:
        """Events for the end of a reply; see Shape.ended."""
        response = self._response(reader, done)
        if response.status == _INCOMPLETE:
            return [_event(ResponseIncomplete(response=response))]
        return [_event(ResponseCompleted(response=response))]

    def body(self, accepted: Accepted, reader: PartReader, done: Done) -> ResponseObject:
        """The whole reply as one response; see Shape.body."""
        self._named(accepted)
        return self._response(reader, done)

    def failed(self, error: OutriderError) -> list[Event]:
        """Events for a failure; see Shape.failed. A response that has not begun does so for them:
        some clients look for the code in `response.failed`, the official packages for `error`."""
        wording = described(error).error
        code = _FAILURES.get(wording.code or "", "server_error")
        failed = msgspec.structs.replace(
            self._frame, status="failed", error=ResponseError(code=code, message=error.message)
        )
        last = _event(ResponseFailed(response=failed))
        if self._request_id:
            return [last]
        payload = ErrorPayload(
            type=wording.type, code=wording.code, message=error.message, param=wording.param
        )
        told = ErrorEvent(code=wording.code, message=error.message, error=payload)
        return [*self._opening(), _event(told), last]

    def _named(self, accepted: Accepted) -> None:
        self._request_id = accepted.request_id
        self._frame = msgspec.structs.replace(
            self._frame, id=f"resp_{accepted.request_id}", model=accepted.model
        )
        if (used := accepted.sampling) is not None:
            self._frame.temperature, self._frame.top_p = used.temperature, used.top_p

    def _part_begun(self, part: Part) -> list[Event]:
        # Empty, though its first text may be known: clients append to it what the deltas bring.
        item = self._item(part, IN_PROGRESS, "")
        added = OutputItemAdded(output_index=part.index, item=item)
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
                if part.index and len(part.pieces) == 1:
                    self._leave_out_reasoning(len(text))
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

    def _leave_out_reasoning(self, num_chars: int) -> None:
        """Drop the tokens in front of the text, of which so many code points have come."""
        first = len(self._num_begun)
        while first and num_chars > 0:
            first -= 1
            num_chars -= self._num_begun[first]
        del self._logprobs[:first], self._num_begun[:first]
        self._num_told = max(0, self._num_told - first)

    def _part_ended(self, part: Part) -> list[Event]:
        item_id, index, text = self._id(part), part.index, part.text
        done: ResponseEvent
        content: OutputText | ReasoningText
        item = OutputItemDone(output_index=index, item=self._item(part, _status(part), text))
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
        is_cut_off = done.finish_reason in CUT_OFF
        seconds = round(done.edge_timings.total_ms / 1000)
        return msgspec.structs.replace(
            self._frame,
            status=_INCOMPLETE if is_cut_off else _COMPLETED,
            completed_at=None if is_cut_off else self._frame.created_at + seconds,
            incomplete_details=IncompleteDetails(reason="max_output_tokens")
            if is_cut_off
            else None,
            output=[self._item(it, _status(it), it.text) for it in reader.parts],
            usage=_usage(done),
            outrider=Choice(0, self._seed, Position(), done=done).details,
            metrics=metrics_of(done) if self._has_metrics else UNSET,
        )

    def _id(self, part: Part) -> str:
        return f"{_ID_PREFIXES[part.kind]}_{self._request_id}_{part.index}"

    def _item(self, part: Part, status: str, text: str) -> OutputItem:
        item_id = self._id(part)
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


def _status(part: Part) -> str:
    return _COMPLETED if part.is_whole and not part.is_cut_off else _INCOMPLETE


def _usage(done: Done) -> ResponsesUsage:
    usage = done.usage
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
