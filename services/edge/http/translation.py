"""Common parts of translators of other APIs to chats (pure).

A translator parses a request of its API into a msgspec struct, its conversation into messages, and
its sampling into the SamplingFields of the OpenAI API; the chat is then made as for the OpenAI API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from outrider.errors import OutriderError
from outrider.models.chat import Message, check_num_messages
from outrider.models.tools import AUTO, NONE, check_choice, check_tools
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import FinishReason, TokenLogprobs
from services.edge.http import sse
from services.edge.http.api import ApiRequest
from services.edge.http.fields import FORMAT
from services.edge.http.openai_messages import allowed, check_conversation
from services.edge.http.openai_reply import ProvisionalText
from services.edge.http.openai_sampling import (
    SamplingFields,
    StreamOptions,
    chat_request,
    check_stream_options,
    first_seed,
    read_positions,
    reply_limit,
    sampling_params,
)
from services.edge.http.passed_over import PassedOver
from services.edge.http.reply_parts import (
    PartEvent,
    PartReader,
    ReplyContent,
    ReplyTextParser,
    parser_of,
)
from services.edge.http.response_format import grammar_in
from services.edge.http.sse import Position, beginning_of
from services.edge.session.events import ChatRequest, ClientEvent
from services.edge.session.template_options import NO_OPTIONS, TemplateOptions

CUT_OFF: Final = frozenset({FinishReason.LENGTH, FinishReason.DEADLINE})
"""Ends of replies that are not the model's own."""
_UNDIGESTED: Final = frozenset(
    {
        *("model", "stream", "stream_options", "deadline_ms", "metadata", "return_metrics"),
        "added_rtt_ms",
    }
)
"""Fields that may differ when the same request is sent again, and fields that are checked
separately."""


class ExtraFields(msgspec.Struct, kw_only=True):
    """Fields that the API itself does not have; each as in chat completions."""

    stream_options: StreamOptions | None = None
    seed: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    priority: str | None = None
    """low, medium or high."""
    deadline_ms: int | None = None
    """Milliseconds after which the reply ends."""
    speculation: str | None = None
    """on, region_only or off."""
    added_rtt_ms: int | None = None
    """For development: milliseconds by which the way to the region is made longer."""
    residency: list[str] | None = None
    """The regions in which the prompt may be computed."""
    return_metrics: bool | None = None
    """Whether the reply tells times and what became of drafts, as `metrics`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template."""
    enable_thinking: bool | None = None
    """Whether the model reasons before it answers."""
    max_thinking_tokens: int | None = None
    """Most tokens of reasoning, at which it is ended; -1: no limit."""
    thinking_token_budget: int | None = None
    """The same, as in vLLM."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The model's input; fields as in ChatRequest."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    tool_choice: str = AUTO
    parallel_tool_calls: bool = True
    template_options: TemplateOptions = NO_OPTIONS

    @property
    def shown_tools(self) -> tuple[str, ...]:
        """Tools that are shown to the model."""
        return () if self.tool_choice == NONE else self.tools


def conversation(
    messages: tuple[Message, ...],
    definitions: Sequence[str],
    tool_choice: str,
    *,
    field: str,
    parallel: bool,
    names: Collection[str] | None = None,
    options: TemplateOptions,
) -> Conversation:
    """A conversation, which stands in the request's `field`, and the tools (as
    outrider.models.tools.check_tools takes them) that may be called in it; `names`: of those that
    tool_choice allows, None for all. Raises InvalidRequestError."""
    check_num_messages(len(messages))
    check_conversation(messages, field)
    tools = check_tools(definitions)
    if names is not None:
        tool_choice, tools = allowed(tool_choice, names, tools)
    return Conversation(messages, tools, check_choice(tool_choice, tools), parallel, options)


def definition_of(name: str | None, description: str | None, parameters: msgspec.Raw) -> str:
    """The definition of a tool, which is not looked at yet."""
    fields = {"name": name, "description": description, "parameters": parameters}
    return msgspec.json.encode(fields).decode()


@dataclass(frozen=True, slots=True)
class PlannedChat:
    """The one chat that answers a request."""

    request: ChatRequest
    seed: int
    had: Position
    """How much of the reply the client has: events (not tokens) and code points."""


def plan_chat(
    api: str,
    body: ExtraFields,
    fields: SamplingFields,
    asked: ApiRequest,
    said: Conversation,
    response_format: Mapping[str, Any],
    *,
    passed_over: PassedOver,
    names: Mapping[str, str],
    num_logprobs: int = -1,
) -> PlannedChat:
    """The chat of a request. `api`: name of the API; `fields`: its sampling; `response_format`: in
    the form of chat completions; `names`: of the request's fields, by those of chat completions,
    where they differ; `num_logprobs`: as in SamplingParams. Raises InvalidRequestError
    and InvalidSamplingError."""
    fields = msgspec.structs.replace(
        fields,
        stream_options=body.stream_options,
        seed=body.seed,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        deadline_ms=body.deadline_ms,
        speculation=body.speculation,
        added_rtt_ms=body.added_rtt_ms,
        residency=body.residency,
        max_thinking_tokens=body.max_thinking_tokens,
        thinking_token_budget=body.thinking_token_budget,
    )
    options = check_stream_options(fields)
    is_streamed = bool(fields.stream)
    (had,) = read_positions(asked, 1, is_streamed=is_streamed)
    sampling = replace(
        sampling_params(fields, reply_limit(fields.max_tokens, asked.default_max_tokens), names),
        grammar=grammar_in(response_format, names.get(FORMAT, FORMAT), passed_over),
        num_logprobs=num_logprobs,
    )
    digest = _digest_of(api, body)
    seed = first_seed(fields, asked, digest)
    request = chat_request(
        fields,
        asked,
        index=0,
        digest=digest,
        sampling=replace(sampling, seed=seed),
        # From the beginning, whatever the client has: where a part begins is read in the text
        # before it.
        position=beginning_of(had),
        provisional=is_streamed and bool(options.provisional),
    )
    request = replace(
        request,
        messages=said.messages,
        tools=said.tools,
        tool_choice=said.tool_choice,
        parallel_tool_calls=said.parallel_tool_calls,
        template_options=said.template_options,
        # It would be as the model writes it, calls and all.
        provisional=request.provisional and not said.shown_tools,
    )
    return PlannedChat(request, seed, had)


def _digest_of(api: str, body: ExtraFields) -> bytes:
    """Digest of a request, as by openai_sampling.digest_of."""
    fields = msgspec.structs.asdict(body)
    fields["logit_bias"] = sorted((body.logit_bias or {}).items())
    bare = {name: value for name, value in fields.items() if name not in _UNDIGESTED}
    text = msgspec.json.encode(bare, order="deterministic")
    return blake2b(text, key=api.encode(), digest_size=16).digest()


class Shape(Protocol):
    """How one API writes a reply. Its methods are called in the order of the reply, and it keeps
    the state it needs."""

    def began(self, accepted: Accepted) -> list[Event]:
        """The first of it is about to come."""
        ...

    def scored(self, logprobs: Sequence[TokenLogprobs], num_fresh: int) -> None:
        """Log probabilities of committed tokens, before their text. The last `num_fresh` were not
        sent to the client yet."""
        ...

    def part(self, event: PartEvent) -> list[Event]:
        """A part of it begins, grows or ends."""
        ...

    def ended(self, reader: PartReader, done: Done) -> list[Event]:
        """The end of a whole reply."""
        ...

    def body(self, accepted: Accepted, reader: PartReader, done: Done) -> msgspec.Struct:
        """The whole reply, if it is not streamed."""
        ...

    def failed(self, error: OutriderError) -> list[Event]:
        """The failure of a reply, which may have begun."""
        ...


class Numbered(msgspec.Struct, kw_only=True):
    """Data of an event that carries the event's number."""

    sequence_number: int = 0
    """0 for the first; set when it is written."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: its type, and JSON."""

    name: str
    data: msgspec.Struct


class PartWriter:
    """Writes one reply in an API of parts; a ReplyWriter.

    A client that comes back has the beginning of the reply. That is read again, and not written.
    """

    def __init__(
        self,
        shape: Shape,
        had: Position,
        *,
        is_streamed: bool,
        has_ids: bool,
        new_parser: Callable[[Accepted], ReplyTextParser] = parser_of,
    ) -> None:
        """`has_ids`: whether the events of a stream carry ids to resume with."""
        self._content = ReplyContent(
            Position(0, had.num_chars), from_start=True, keeps=True, new_parser=new_parser
        )
        self._shape = shape
        self._had = had
        self._num_events = had.num_tokens
        """Written, before the client came back too: the first number in the id of an event."""
        self._is_streamed = is_streamed
        self._has_ids = has_ids
        self._accepted: Accepted | None = None
        self._has_begun = False
        self._done: Done | None = None
        self._encode = msgspec.json.Encoder().encode

    def take(self, index: int, event: ClientEvent) -> bytes:
        """Bytes to send for an event; see ReplyWriter.take."""
        match event:
            case Accepted():
                # The head of the stream waits: until a region has admitted the chat, a refusal is
                # an answer with a status of its own.
                self._accepted = event
                self._content.accepted(event)
            case Committed():
                return self._commit(event)
            case Done():
                self._done = event
            case Provisional(_, erase_to, text, stability):
                return self._provisional(erase_to, text, stability)
            case Retracted(erase_to):
                return self._provisional(erase_to, "", 1.0)
        return b""

    def whole(self) -> bytes:
        """The last bytes of a whole reply; see ReplyWriter.whole."""
        accepted, reader, done = self._accepted, self._content.reader, self._done
        assert accepted is not None and done is not None
        is_cut_off = done.finish_reason in CUT_OFF
        events = [*self._begin(), *self._parts(self._content.finish(is_cut_off=is_cut_off))]
        if not self._is_streamed:
            return self._encode(self._shape.body(accepted, reader, done))
        return self._written([*events, *self._shape.ended(reader, done)])

    def failed(self, error: OutriderError) -> bytes:
        """The last bytes of a failed reply; see ReplyWriter.failed."""
        return self._written(self._shape.failed(error))

    def _commit(self, commit: Committed) -> bytes:
        growth = self._content.take(commit)
        if not growth.is_told_again:
            self._shape.scored(commit.logprobs, len(commit.logprobs))
            return self._written([*self._begin(), *self._parts(growth.new)])
        self._begin()
        self._parts(growth.known)
        self._shape.scored(commit.logprobs, _num_behind(commit.logprobs, growth.num_new_chars))
        new = self._parts(growth.new)
        return self._written(new) if growth.num_new_chars else b""

    def _begin(self) -> list[Event]:
        if self._has_begun or self._accepted is None:
            return []
        self._has_begun = True
        begun = self._shape.began(self._accepted)
        return [] if self._had.num_tokens else begun

    def _parts(self, events: list[PartEvent]) -> list[Event]:
        return [made for event in events for made in self._shape.part(event)]

    def _provisional(self, erase_to: int, text: str, stability: float) -> bytes:
        """Provisional text as an event; none for a reply that may have calls or reasoning."""
        if not self._is_streamed or not self._content.reader.is_plain:
            return b""
        shown = ProvisionalText(
            index=0, erase_to=erase_to, text=text, stability=round(stability, 4)
        )
        return sse.event(self._encode(shown), name="outrider.provisional")

    def _written(self, events: list[Event]) -> bytes:
        """Encode events. An id stands for everything up to its event, so only the last event has
        one."""
        if not self._is_streamed:
            return b""
        written: list[bytes] = []
        for event in events:
            if isinstance(event.data, Numbered):
                event.data.sequence_number = self._num_events
            self._num_events += 1
            is_last = len(written) == len(events) - 1
            position = self._content.position._replace(num_tokens=self._num_events)
            event_id = sse.event_id([position]) if self._has_ids and is_last else ""
            data = self._encode(event.data)
            written.append(sse.event(data, name=event.name, event_id=event_id))
        return b"".join(written)


def _num_behind(logprobs: Sequence[TokenLogprobs], num_chars: int) -> int:
    """How many of the last tokens it takes to begin so many code points."""
    count = 0
    for entry in reversed(logprobs):
        if num_chars <= 0:
            break
        # In UTF-8 all bytes of a character but its first are 10xxxxxx.
        num_chars -= sum(byte & 0xC0 != 0x80 for byte in entry.chosen.text)
        count += 1
    return count
