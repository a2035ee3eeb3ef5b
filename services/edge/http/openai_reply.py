"""Replies of the OpenAI API, chats and completions alike (pure).

An OpenAiWriter holds the state of one reply; a Shape makes the API's objects. In an event stream
each commit is one event, sent when it arrives; otherwise texts are kept until all chats have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from outrider.cost import NANOS
from outrider.errors import OutriderError
from outrider.session.client import Accepted, Committed, Done, Provisional, Retracted
from outrider.session.types import FinishReason, TokenLogprobs
from services.edge.http import sse
from services.edge.http.openai_errors import described
from services.edge.http.openai_logprobs import CompletionOffsets, TokenLogprob
from services.edge.http.reply_metrics import ReplyMetrics, metrics_of
from services.edge.http.reply_parts import (
    PartBegun,
    PartEvent,
    PartGrew,
    PartKind,
    ReplyContent,
)
from services.edge.http.sse import Position, beginning_of
from services.edge.session.events import ClientEvent

DONE: Final = b"data: [DONE]\n\n"
_FINISH_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.CANCELLED: "stop",
}
_FINGERPRINT_CHARS: Final = 16
_PLACE: Final = "\ue000"
"""Stands for a piece's text where what is around it is written once: a private character."""


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Prompt tokens whose KV was reused."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Counts of reasoning, and of drafts that were copied from the request's prediction."""

    reasoning_tokens: int
    """Tokens of reasoning, its tags not counted."""
    accepted_prediction_tokens: int
    """Drafts that became part of the reply."""
    rejected_prediction_tokens: int
    """Drafts that the model verified in vain; each cost about as much as a token."""


class OpenAiUsage(msgspec.Struct, kw_only=True):
    """Tokens of a reply, all its choices together; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChoiceDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Ours: what else is known of a choice."""

    seed: int | UnsetType = UNSET
    """Seed that repeats this choice: send the same request with it."""
    region: str | UnsetType = UNSET
    replica: str | UnsetType = UNSET
    ttft_ms: float | UnsetType = UNSET
    """From the request to the first token, at the edge."""
    total_ms: float | UnsetType = UNSET
    cost: str | UnsetType = UNSET
    """By the price that applies, in decimals."""
    currency: str | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    """A finish reason for which the API has no word: deadline."""
    inexact: bool | UnsetType = UNSET
    """Whether a replica of another model identity continued the reply, or one used KV that was
    rounded on its way there."""
    metrics: ReplyMetrics | UnsetType = UNSET
    """Those of this choice, where a reply with several was to have metrics."""


class ProvisionalText(msgspec.Struct, kw_only=True):
    """Ours. Keep `erase_to` code points of the choice's provisional text, then append `text`."""

    index: int
    erase_to: int
    text: str
    stability: float


@dataclass(slots=True)
class CallPiece:
    """New parts of one tool call."""

    index: int
    """0 for the reply's first call."""
    id: str = ""
    """With `name`: the call begins; empty: it continues."""
    name: str = ""
    arguments: str = ""
    """More of them, JSON as the model writes it."""


@dataclass(slots=True)
class Piece:
    """New parts of a reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    """Each call once, in their order."""
    logprobs: tuple[TokenLogprobs, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


def piece_of(events: Sequence[PartEvent], logprobs: tuple[TokenLogprobs, ...] = ()) -> Piece:
    """Changes of a reply's parts, joined by kind."""
    piece = Piece(logprobs=logprobs)
    for event in events:
        match event:
            case PartBegun(part) if part.kind is PartKind.CALL:
                piece.calls.append(CallPiece(part.call_index, part.call_id, part.name))
            case PartGrew(part, text) if part.kind is PartKind.CALL:
                if not piece.calls or piece.calls[-1].index != part.call_index:
                    piece.calls.append(CallPiece(part.call_index))
                piece.calls[-1].arguments += text
            case PartGrew(part, text) if part.kind is PartKind.REASONING:
                piece.reasoning += text
            case PartGrew(_, text):
                piece.text += text
    return piece


class Choice:
    """A choice so far."""

    def __init__(
        self,
        index: int,
        seed: int,
        had: Position,
        prefix: str = "",
        *,
        from_start: bool = False,
        keeps: bool = False,
        has_metrics: bool = False,
        done: Done | None = None,
    ) -> None:
        """`had` and `from_start`: as ReplyContent has them; `keeps`: all of the reply is wanted at
        the end; `prefix`: text that goes before the reply's, with the first piece of it;
        `has_metrics`: its details have them."""
        self.index = index
        self.seed = seed
        self.prefix = prefix
        self.content = ReplyContent(had, from_start=from_start, keeps=keeps)
        self.offsets = CompletionOffsets(had.num_chars)
        self._keeps = keeps
        self._has_metrics = has_metrics
        self.logprobs: list[TokenLogprob] = []
        """Log probabilities kept by a ChatShape."""
        self.begun = had != beginning_of(had)
        """Whether the client has its beginning."""
        self.had_end = had.has_ended
        """Whether the client has its end from an earlier request."""
        self._untold = "" if self.begun else prefix
        self.around: tuple[bytes, bytes] | None = None
        """Bytes that OpenAiWriter writes before and after the text of an event that only has text;
        None: no such event was written yet."""
        self.last = Piece()
        """Content that was only known at the end."""
        self.done = done

    def take_text(self, commit: Committed) -> str | None:
        """The part of a commit that the client does not have, if it consists of text only; None:
        call `take` instead."""
        return None if self._untold else self.content.take_text(commit)

    def take(self, commit: Committed) -> Piece:
        """The part of a commit that the client does not have."""
        growth = self.content.take(commit)
        return self._with_prefix(piece_of(growth.new, growth.logprobs))

    def end(self, done: Done) -> None:
        """The chat has ended. If the stream was cut off and may be resumed, held-back text stays
        held back: its meaning may still change."""
        if self._keeps or done.finish_reason.is_whole:
            self.last = self._with_prefix(piece_of(self.content.finish()))
        self.done = done

    def _with_prefix(self, piece: Piece) -> Piece:
        piece.text, self._untold = self._untold + piece.text, ""
        return piece

    @property
    def position(self) -> Position:
        """How much the client has with the next event."""
        done = self.done
        has_ended = self.had_end or (done is not None and done.finish_reason.is_whole)
        return self.content.position._replace(has_ended=has_ended)

    @property
    def finish_reason(self) -> str | None:
        """In the API's words, once it has ended."""
        if self.done is None:
            return None
        reason = self.done.finish_reason
        # A call that broke off is text: nobody is to answer it.
        if reason is FinishReason.STOP and self.content.reader.has_calls:
            return "tool_calls"
        return _FINISH_REASONS[reason]

    @property
    def details(self) -> ChoiceDetails:
        """Details of a choice that has ended."""
        done = self.done
        assert done is not None
        cost = done.usage.cost
        is_late = done.finish_reason is FinishReason.DEADLINE
        return ChoiceDetails(
            seed=self.seed,
            region=done.region or UNSET,
            replica=done.replica or UNSET,
            ttft_ms=round(done.edge_timings.ttft_ms, 3),
            total_ms=round(done.edge_timings.total_ms, 3),
            cost=UNSET if cost is None else decimals(cost.amount_nanos),
            currency=UNSET if cost is None else cost.currency,
            finish_reason="deadline" if is_late else UNSET,
            inexact=True if done.inexact else UNSET,
            metrics=metrics_of(done) if self._has_metrics else UNSET,
        )


def decimals(nanos: int) -> str:
    whole, rest = divmod(nanos, NANOS)
    return f"{whole}.{rest:09d}"


@dataclass(slots=True)
class Reply:
    """Fields shared by all objects of one reply."""

    created: int
    """Unix time."""
    reply_id: str = ""
    model: str = ""
    fingerprint: str | UnsetType = UNSET
    """Short model identity of the replica (outrider.model_identity), once known."""
    includes_usage: bool = False
    """Whether the stream ends with the usage; its other objects then have a null usage."""
    metrics: ReplyMetrics | UnsetType = UNSET
    """Metrics of the reply, once it has ended, for its last object."""

    @property
    def no_usage(self) -> UnsetType | None:
        """Usage field of a stream's objects that do not carry the usage."""
        return None if self.includes_usage else UNSET


class Shape(Protocol):
    """How one API's objects look: msgspec structs."""

    prefix: str
    """Prefix of a reply's id."""

    def opening(self, reply: Reply, choice: Choice) -> msgspec.Struct | None:
        """First object of a choice's stream, if it begins with anything but text."""
        ...

    def piece(self, reply: Reply, choice: Choice, piece: Piece) -> msgspec.Struct:
        """An object with new parts of a choice."""
        ...

    def ending(self, reply: Reply, choice: Choice) -> msgspec.Struct:
        """The end of a choice's stream, and the last piece of it."""
        ...

    def usage(self, reply: Reply, usage: OpenAiUsage) -> msgspec.Struct:
        """The last object of a stream, where it was asked for."""
        ...

    def keep(self, choice: Choice, logprobs: Sequence[TokenLogprobs]) -> None:
        """Keep log probabilities of a choice for `body`."""
        ...

    def body(self, reply: Reply, choices: Sequence[Choice], usage: OpenAiUsage) -> msgspec.Struct:
        """A reply that is not streamed."""
        ...


class OpenAiWriter:
    """Writes one reply; a ReplyWriter."""

    def __init__(
        self,
        shape: Shape,
        choices: Sequence[Choice],
        created: int,
        *,
        is_streamed: bool,
        includes_usage: bool,
        has_ids: bool,
        num_per_prompt: int,
        has_metrics: bool,
    ) -> None:
        """`has_ids`: whether stream events carry ids to resume with; `num_per_prompt`: number of
        consecutive choices that share a prompt; `has_metrics`: a reply with one choice has them."""
        self._shape = shape
        self._choices = choices
        self._num_per_prompt = num_per_prompt
        self._reply = Reply(created, includes_usage=includes_usage)
        self._is_streamed = is_streamed
        self._has_ids = has_ids
        self._has_metrics = has_metrics
        self._encode = msgspec.json.Encoder().encode

    def take(self, index: int, event: ClientEvent) -> bytes:
        """Bytes to send for an event; see ReplyWriter.take."""
        choice = self._choices[index]
        if type(event) is Committed:  # as nearly all are
            return self._commit(choice, event)
        match event:
            case Accepted(request_id, model):
                choice.content.accepted(event)
                if not self._reply.reply_id:
                    self._reply.reply_id = self._shape.prefix + request_id
                    self._reply.model = model
            case Done():
                # In one event with the end: a client that has the id of an event has all of it.
                begin = b""
                if self._is_streamed and not choice.had_end:
                    begin = self._begin(choice)
                choice.end(event)
                if self._has_metrics:
                    self._reply.metrics = metrics_of(event)
                if self._is_streamed and not choice.had_end:
                    return begin + self._event(self._shape.ending(self._reply, choice))
            case Provisional(_, erase_to, text, stability):
                return self._provisional(choice, erase_to, text, stability)
            case Retracted(erase_to):
                return self._provisional(choice, erase_to, "", 1.0)
        return b""

    def whole(self) -> bytes:
        """The last bytes of a whole reply; see ReplyWriter.whole."""
        if not self._is_streamed:
            body = self._shape.body(self._reply, self._choices, self._usage())
            return self._encode(body)
        last = b""
        if self._reply.includes_usage:
            last = self._event(self._shape.usage(self._reply, self._usage()))
        return last + DONE

    def failed(self, error: OutriderError) -> bytes:
        """The last bytes of a failed stream; see ReplyWriter.failed."""
        return sse.event(self._encode(described(error))) + DONE

    def _commit(self, choice: Choice, commit: Committed) -> bytes:
        if commit.model_identity:
            hexadecimal = commit.model_identity.hex()[:_FINGERPRINT_CHARS]
            self._reply.fingerprint = f"fp_{hexadecimal}"
            for each in self._choices:
                each.around = None
        if not self._is_streamed:
            if logprobs := choice.take(commit).logprobs:
                self._shape.keep(choice, logprobs)
            return b""
        begin = self._begin(choice)
        if (text := choice.take_text(commit)) is not None:
            return begin + self._text(choice, text) if text else begin
        piece = choice.take(commit)
        if not piece:
            return begin
        return begin + self._event(self._shape.piece(self._reply, choice, piece))

    def _text(self, choice: Choice, text: str) -> bytes:
        """The event of a piece that is text alone. It says the same as those before it but for the
        text: that is written once."""
        if choice.around is None:
            example = self._encode(self._shape.piece(self._reply, choice, Piece(_PLACE)))
            before, place, behind = example.rpartition(self._encode(_PLACE))
            assert place
            choice.around = before, behind
        before, behind = choice.around
        return self._sent(b"".join((before, self._encode(text), behind)))

    def _begin(self, choice: Choice) -> bytes:
        """The bytes in front of a choice's first text; none for a client that already has some of
        it."""
        if choice.begun:
            return b""
        choice.begun = True
        first = self._shape.opening(self._reply, choice)
        return b"" if first is None else self._event(first)

    def _provisional(self, choice: Choice, erase_to: int, text: str, stability: float) -> bytes:
        """Provisional text as an event; none for a reply that may have calls or reasoning."""
        if not self._is_streamed or not choice.content.reader.is_plain:
            return b""
        shown = ProvisionalText(
            index=choice.index, erase_to=erase_to, text=text, stability=round(stability, 4)
        )
        # A type of its own, which only who asks for it gets; without an id, for nobody can resume
        # from text that is not final.
        return sse.event(self._encode(shown), name="outrider.provisional")

    def _event(self, data: msgspec.Struct) -> bytes:
        return self._sent(self._encode(data))

    def _sent(self, data: bytes) -> bytes:
        event_id = sse.event_id(it.position for it in self._choices) if self._has_ids else ""
        return sse.event(data, event_id=event_id)

    def _usage(self) -> OpenAiUsage:
        usages = [it.done.usage for it in self._choices if it.done is not None]
        prompts = usages[:: self._num_per_prompt]
        num_prompt = sum(it.prompt_tokens for it in prompts)
        num_completion = sum(it.completion_tokens for it in usages)
        return OpenAiUsage(
            prompt_tokens=num_prompt,
            completion_tokens=num_completion,
            total_tokens=num_prompt + num_completion,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(it.cached_tokens for it in prompts)
            ),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(it.reasoning_tokens for it in usages),
                accepted_prediction_tokens=sum(it.accepted_prediction_tokens for it in usages),
                rejected_prediction_tokens=sum(it.rejected_prediction_tokens for it in usages),
            ),
        )
