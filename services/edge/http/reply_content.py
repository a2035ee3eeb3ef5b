"""What one chat's commits come to: text, reasoning, tool calls, log probabilities (pure).

A ReplyContent reads what the chat commits and says what of it the client lacks. Calls and reasoning
stand in the text, and where one begins is known only to who has read all before it: so a chat whose
reply has them is told from its beginning, also for a client that has some of it already, and what
that client has is read and left out here. The same text gives the same content, however it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
)
from outrider.reply_parsing.parser import ReadReply, ReplyParser, ReplyReader
from outrider.session_types import TokenLogprobs
from services.edge.http.sse import Position
from services.edge.session.events import Accepted, Commit


@dataclass(slots=True)
class CallPiece:
    """What is new of one tool call."""

    index: int
    """0 for the reply's first call."""
    id: str = ""
    """With `name`: the call begins; empty: it goes on."""
    name: str = ""
    arguments: str = ""
    """More of them, JSON as the model writes it."""


@dataclass(slots=True)
class Piece:
    """What is new of a reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    """Each call once, in their order."""
    logprobs: tuple[TokenLogprobs, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


class ReplyContent:
    """Of one chat."""

    def __init__(self, had: Position, *, from_start: bool = False, keeps: bool = False) -> None:
        """`had`: how much of the reply the client has from an earlier request; `from_start`: the
        chat tells that again; `keeps`: all of it is wanted at the end."""
        self.position = had
        """How much the client has once it has what was returned last."""
        self._num_read = 0 if from_start else had.num_chars
        """Code points of the reply that were told so far, or that nobody tells again."""
        self._keeps = keeps
        self._parser: ReplyParser | None = None
        self._reader = ReplyReader()
        self._texts: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        """All of them, where they are kept."""
        self.has_calls = False
        """Whether a tool was called."""

    def accepted(self, event: Accepted) -> None:
        """The chat is under way: how its reply is to be read is known."""
        if event.reply_format is not None and self._parser is None:
            self._parser = ReplyParser(event.reply_format, event.request_id)

    def take(self, commit: Commit) -> Piece:
        """What the client lacks of a commit."""
        begin, self._num_read = self._num_read, self._num_read + len(commit.text)
        num_had = max(0, self.position.num_chars - begin)
        num_new = max(0, commit.upto - self.position.num_tokens)
        logprobs = commit.logprobs[max(0, len(commit.logprobs) - num_new) :]
        self.position = Position(
            max(commit.upto, self.position.num_tokens),
            max(self._num_read, self.position.num_chars),
        )
        if self._keeps:
            self._texts.append(commit.text)
            self.logprobs += logprobs
        if self._parser is None:
            return Piece(commit.text[num_had:], logprobs=logprobs)
        if num_had:
            self._read(self._parser.push(commit.text[:num_had]))
        piece = self._read(self._parser.push(commit.text[num_had:]))
        piece.logprobs = logprobs
        return piece

    def finish(self) -> Piece:
        """The chat has ended: what had to wait until it was known what it is."""
        return Piece() if self._parser is None else self._read(self._parser.finish())

    def whole(self) -> ReadReply:
        """All of it, where it was kept."""
        text = "".join(self._texts)
        return ReadReply(text, "", ()) if self._parser is None else self._reader.reply(text)

    def _read(self, events: Iterable[ReplyEvent]) -> Piece:
        piece = Piece()
        for event in events:
            if self._keeps:
                self._reader.take(event)
            match event:
                case ContentDelta(text):
                    piece.text += text
                case ReasoningDelta(text):
                    piece.reasoning += text
                case ToolCallBegun(index, call_id, name):
                    self.has_calls = True
                    piece.calls.append(CallPiece(index, call_id, name))
                case ArgumentsDelta(index, text):
                    if not piece.calls or piece.calls[-1].index != index:
                        piece.calls.append(CallPiece(index))
                    piece.calls[-1].arguments += text
        return piece
