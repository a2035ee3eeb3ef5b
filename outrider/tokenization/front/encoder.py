"""Texts and chats to ids, through the cache and the backend."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from outrider.models.chat import Message, check_text
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.guarded import Guarded
from outrider.tokenization.front.cache import CachePolicy, SegmentCache
from outrider.tokenization.front.content import Content, classify


@dataclass(slots=True)
class Lookups:
    """What the cache was asked for, of one class."""

    num_texts: int = 0
    num_hits: int = 0
    num_chars: int = 0
    num_hit_chars: int = 0

    def count(self, num_chars: int, *, is_hit: bool) -> None:
        """One text was looked up."""
        self.num_texts += 1
        self.num_chars += num_chars
        self.num_hits += is_hit
        self.num_hit_chars += num_chars * is_hit


Part: TypeAlias = "array[int] | tuple[str, Content]"
"""Ids, or a text whose ids are not known yet."""


@dataclass(slots=True)
class Draft:
    """A prompt of which some texts are still to be encoded."""

    parts: list[Part] = field(default_factory=list)
    missing_chars: int = 0


class CachingEncoder:
    """One model's texts to ids. Thread-safe; ids equal the vocabulary's own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: Guarded,
        policy: CachePolicy | None = None,
        *,
        kept: Iterable[Content] = tuple(Content),
    ) -> None:
        """Texts of the classes `kept` are kept. Where no chat may tell what another one said, by
        how soon it is tokenized, that is ROLE_TAG alone."""
        self._vocabulary = vocabulary
        self.backend = backend
        self._cache = SegmentCache(policy or CachePolicy())
        self._kept = frozenset(kept)
        self._epoch = backend.epoch
        self._lock = threading.Lock()
        self.lookups = {content: Lookups() for content in Content}

    @property
    def size(self) -> tuple[int, int]:
        """Entries and bytes of the cache."""
        return len(self._cache), self._cache.num_bytes

    def encode(self, text: str, content: Content = Content.USER) -> array[int]:
        """The ids of plain text. Raises InvalidRequestError for a lone surrogate."""
        ids = self._find(text, content)
        if ids is None:
            check_text(text)
            ids = self._encode(text, content)
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> array[int]:
        """The prompt ids of a chat. Raises what `Vocabulary.segments` raises."""
        return self.finish(self.begin(messages))

    def begin(self, messages: Sequence[Message]) -> Draft:
        """The prompt as far as it is known without tokenizing. Raises as `encode_chat`."""
        segments = self._vocabulary.segments(messages)
        classes = iter(classify(segments, messages))
        draft = Draft()
        for segment in segments:
            if segment.is_control:
                draft.parts.append(array("I", [self._vocabulary.control_id(segment.text)]))
                continue
            content = next(classes)
            ids = self._find(segment.text, content)
            draft.parts.append((segment.text, content) if ids is None else ids)
            draft.missing_chars += len(segment.text) if ids is None else 0
        return draft

    def finish(self, draft: Draft) -> array[int]:
        """The prompt, its missing texts encoded."""
        whole: array[int] = array("I")
        for part in draft.parts:
            whole += self._encode(*part) if isinstance(part, tuple) else part
        return whole

    def _find(self, text: str, content: Content) -> array[int] | None:
        with self._lock:
            self._forget_if_stale()
            ids = self._cache.get(text)
            self.lookups[content].count(len(text), is_hit=ids is not None)
        return ids

    def _encode(self, text: str, content: Content) -> array[int]:
        epoch = self.backend.epoch
        ids = self.backend.encode(text)
        if content in self._kept:
            with self._lock:
                self._forget_if_stale()
                if epoch == self._epoch:
                    self._cache.put(text, ids)
        return ids

    def _forget_if_stale(self) -> None:
        """A backend that was turned off may have given wrong ids before."""
        if self._epoch != self.backend.epoch:
            self._epoch = self.backend.epoch
            self._cache.clear()
