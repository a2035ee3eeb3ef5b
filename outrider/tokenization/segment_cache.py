"""A cache of the ids of prompt segments, and the classes of segments that are counted apart. Pure.

A segment is the whole text between two tokens of the template's. Such a token is a hard boundary
of the tokenizer, so a segment's ids do not depend on the text around it. Any other stretch of text
(a role tag apart from the message behind it) could not be cached exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from outrider.lru_map import LruMap
from outrider.models.chat import Message, Segment

_ENTRY_BYTES: Final = 256
"""Memory of an entry besides its text and ids: three object headers and a slot in the table."""

_Key: TypeAlias = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How much is kept."""

    max_entries: int = 16_384
    max_bytes: int = 64 << 20
    max_text_bytes: int = 64 << 10
    """A text of more bytes in UTF-8 is not cached. System prompts and role tags recur, and system
    prompts may be long; longer texts are mostly documents that are asked about once."""


class SegmentCache:
    """Least recently used texts are evicted first; texts are found only in the scope they were put
    in. Not thread-safe."""

    def __init__(self, policy: CachePolicy) -> None:
        self._max_text_bytes = policy.max_text_bytes
        self._ids: LruMap[_Key, array[int]] = LruMap(
            policy.max_entries, max_weight=policy.max_bytes, weigh=_num_bytes
        )

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def num_bytes(self) -> int:
        """Memory of all entries, within a few per cent."""
        return self._ids.weight

    def get(self, text: str, scope: bytes = b"") -> array[int] | None:
        """The ids of `text`, not to be modified; None if it is not cached."""
        return self._ids.get((scope, text))

    def put(self, text: str, ids: array[int], scope: bytes = b"") -> None:
        """Cache the ids of `text`, if it is not too long."""
        if not _is_longer(text, self._max_text_bytes):
            self._ids.put((scope, text), ids)

    def clear(self) -> None:
        """Remove everything."""
        self._ids.clear()


def _is_longer(text: str, max_bytes: int) -> bool:
    """Whether a text is longer in UTF-8. Its size in memory is no measure: one wide character makes
    all of them wide."""
    if len(text) > max_bytes or text.isascii():
        return len(text) > max_bytes
    return len(text.encode(errors="surrogatepass")) > max_bytes


def _num_bytes(key: _Key, ids: array[int]) -> int:
    scope, text = key
    return len(scope) + text.__sizeof__() + len(ids) * ids.itemsize + _ENTRY_BYTES


DOCUMENT_CHARS: Final = 4096
"""A user's message of so many characters or more is classed as a document."""


class ContentClass(StrEnum):
    """The class of one text between control tokens, for the cache's statistics."""

    ROLE_TAG = "role_tag"
    """Text of the chat template itself."""
    SYSTEM = "system"
    """System messages, and definitions of tools where they stand apart."""
    USER = "user"
    REPLY = "reply"
    """An earlier message of the assistant."""
    DOCUMENT = "document"


_OF_ROLE: Final = {
    "system": ContentClass.SYSTEM,
    "developer": ContentClass.SYSTEM,
    "assistant": ContentClass.REPLY,
}


def classify(segments: Sequence[Segment], messages: Sequence[Message]) -> list[ContentClass]:
    """The class of every text segment, in order; tokens are left out.

    Only text that is the template's own, whatever the messages, is a ROLE_TAG: those are shared by
    all. The other classes are for statistics. Messages come in order, and a template may trim them:
    a segment with the next one's text in it is that message's; any other shows tools, their calls
    or their results.
    """
    pending = [message for message in messages if message.content.strip()]
    found: list[ContentClass] = []
    at = 0
    for segment in segments:
        if segment.is_token:
            continue
        if segment.is_template:
            found.append(ContentClass.ROLE_TAG)
        elif at < len(pending) and pending[at].content.strip() in segment.text:
            found.append(_class_of(pending[at]))
            at += 1
        else:
            found.append(ContentClass.SYSTEM if not at else ContentClass.USER)
    return found


def _class_of(message: Message) -> ContentClass:
    is_long = len(message.content) >= DOCUMENT_CHARS
    return _OF_ROLE.get(message.role, ContentClass.DOCUMENT if is_long else ContentClass.USER)
