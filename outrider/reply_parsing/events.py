"""Events that parsing a reply produces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """The model calls a tool; its arguments follow."""

    index: int
    """0 for the reply's first call."""
    id: str
    name: str
    begin: int = 0
    """Start of the call in the reply's text, including spaces in front of it, in code points."""


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, JSON as the model writes it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """End of a call: nothing more of it follows."""

    index: int
    is_whole: bool
    """False: its arguments are no whole JSON object, for the model went wrong or was stopped."""
    end: int = 0
    """End of the call in the reply's text, in code points."""


ReplyEvent: TypeAlias = (
    ReasoningDelta | ContentDelta | ToolCallBegun | ArgumentsDelta | ToolCallEnded
)
