"""What is read in a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

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
    """Where it begins in the reply's text, with the spaces before it, in code points."""


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, JSON as the model writes it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """Nothing more comes of a call."""

    index: int
    is_whole: bool
    """False: its arguments are no whole JSON object, for the model went wrong or was stopped."""
    end: int = 0
    """Where it ends in the reply's text, in code points."""


ReplyEvent: TypeAlias = (
    ReasoningDelta | ContentDelta | ToolCallBegun | ArgumentsDelta | ToolCallEnded
)
