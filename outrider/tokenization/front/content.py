"""What the texts of a prompt are, to tell which of them come again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from outrider.models.chat import Message, Segment

DOCUMENT_CHARS: Final = 4096
"""A user's message from here on is taken for a document with a question."""


class Content(StrEnum):
    """The class of one text between control tokens."""

    ROLE_TAG = "role_tag"
    """The template's own words."""
    SYSTEM = "system"
    USER = "user"
    REPLY = "reply"
    """What the assistant said before."""
    DOCUMENT = "document"


_OF_ROLE: Final = {"system": Content.SYSTEM, "assistant": Content.REPLY}


def classify(segments: Sequence[Segment], messages: Sequence[Message]) -> list[Content]:
    """The class of every text segment, in order; control tokens are left out.

    Messages come in order, and a template may trim them: a segment with the next one's text in it
    is that message's, any other is the template's.
    """
    said = [message for message in messages if message.content.strip()]
    found, at = [], 0
    for segment in segments:
        if segment.is_control:
            continue
        if at < len(said) and said[at].content.strip() in segment.text:
            found.append(_class_of(said[at]))
            at += 1
        else:
            found.append(Content.ROLE_TAG)
    return found


def _class_of(message: Message) -> Content:
    is_long = len(message.content) >= DOCUMENT_CHARS
    return _OF_ROLE.get(message.role, Content.DOCUMENT if is_long else Content.USER)
