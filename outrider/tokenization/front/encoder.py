"""Texts and chats to ids, through the cache and the backend."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

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
Scope: TypeAlias = bytes | None
"""Whose texts: those of one scope find each other's ids, so that nobody can tell from how soon his
own text is tokenized what another one sent. None: nothing is kept of them. The template's own texts
are everybody's."""
ANYONE: Final = b""


@dataclass(slots=True)
class Draft:
    """A prompt of which some texts are still to be encoded."""

    scope: Scope = None
    parts: list[Part] = field(default_factory=list)
    missing_chars: int = 0


class SharedTokens(Protocol):
    """Ids that several processes know together, by the package that made them. Thread-safe; does
    not raise."""

    def get(self, texts: Sequence[str], scope: bytes, maker: str) -> list[array[int] | None]:
        """What is known of each of `texts`. May take milliseconds."""

    def put(self, text: str, ids: array[int], scope: bytes, maker: str) -> None:
        """Tell the others, without waiting for them."""


class CachingEncoder:
    """One model's texts to ids. Thread-safe; ids equal the vocabulary's own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: Guarded,
        policy: CachePolicy | None = None,
        shared: SharedTokens | None = None,
    ) -> None:
        """`shared` is asked for what this process has not kept."""
        self._vocabulary = vocabulary
        self.backend = backend
        self._cache = SegmentCache(policy or CachePolicy())
        self._shared = shared
        self._epoch = backend.epoch
        self._lock = threading.Lock()
        self.lookups = {content: Lookups() for content in Content}

    @property
    def size(self) -> tuple[int, int]:
        """Entries and bytes of the cache."""
        return len(self._cache), self._cache.num_bytes

    def encode(self, text: str, content: Content = Content.USER, scope: Scope = None) -> array[int]:
        """The ids of plain text. Raises InvalidRequestError for a lone surrogate."""
        ids = self._find(text, content, scope)
        if ids is not None:
            return ids
        check_text(text)
        return self.finish(Draft(scope, [(text, content)], len(text)))

    def encode_chat(self, messages: Sequence[Message], scope: Scope = None) -> array[int]:
        """The prompt ids of a chat. Raises what `Vocabulary.segments` raises."""
        return self.finish(self.begin(messages, scope))

    def begin(self, messages: Sequence[Message], scope: Scope = None) -> Draft:
        """The prompt as far as it is known without tokenizing. Raises as `encode_chat`."""
        segments = self._vocabulary.segments(messages)
        classes = iter(classify(segments, messages))
        draft = Draft(scope)
        for segment in segments:
            if segment.is_control:
                draft.parts.append(array("I", [self._vocabulary.control_id(segment.text)]))
                continue
            content = next(classes)
            ids = self._find(segment.text, content, scope)
            draft.parts.append((segment.text, content) if ids is None else ids)
            draft.missing_chars += len(segment.text) if ids is None else 0
        return draft

    def finish(self, draft: Draft, *, may_wait: bool = True) -> array[int]:
        """The prompt, its missing texts encoded. Without `may_wait` no other process is asked."""
        shared = self._ask(draft) if may_wait else {}
        whole: array[int] = array("I")
        for part in draft.parts:
            if isinstance(part, tuple):
                text, content = part
                part = shared.get(text) or self._encode(text, _scope_of(content, draft.scope))
            whole += part
        return whole

    def _find(self, text: str, content: Content, scope: Scope) -> array[int] | None:
        within = _scope_of(content, scope)
        with self._lock:
            self._forget_if_stale()
            ids = None if within is None else self._cache.get(text, within)
            self.lookups[content].count(len(text), is_hit=ids is not None)
        return ids

    def _ask(self, draft: Draft) -> dict[str, array[int]]:
        """What other processes know of the missing texts, which is known here from now on."""
        if self._shared is None or draft.scope is None or not draft.missing_chars:
            return {}
        texts = [part[0] for part in draft.parts if isinstance(part, tuple)]
        epoch, maker = self.backend.epoch, self.backend.name
        known = zip(texts, self._shared.get(texts, draft.scope, maker), strict=True)
        found = {text: ids for text, ids in known if ids is not None}
        with self._lock:
            self._forget_if_stale()
            if epoch != self._epoch:
                return {}
            for text, ids in found.items():
                self._cache.put(text, ids, draft.scope)
        return found

    def _encode(self, text: str, scope: Scope) -> array[int]:
        epoch, maker = self.backend.epoch, self.backend.name
        ids = self.backend.encode(text)
        if scope is None:
            return ids
        with self._lock:
            self._forget_if_stale()
            is_current = epoch == self._epoch
            if is_current:
                self._cache.put(text, ids, scope)
        if is_current and self._shared is not None:
            self._shared.put(text, ids, scope, maker)
        return ids

    def _forget_if_stale(self) -> None:
        """A backend that was turned off may have given wrong ids before."""
        if self._epoch != self.backend.epoch:
            self._epoch = self.backend.epoch
            self._cache.clear()


def _scope_of(content: Content, scope: Scope) -> Scope:
    return ANYONE if content is Content.ROLE_TAG else scope
