"""Texts and chats to ids, through the cache and the backend."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, TypeVar

from outrider.models.chat import Message, Segment, check_text
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.cuts import SLICE_CHARS, CutRule, Cutter
from outrider.tokenization.segment_cache import CachePolicy, ContentClass, SegmentCache, classify

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class CacheLookups:
    """Lookups of one class of texts in this process's cache."""

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


PromptPiece: TypeAlias = "array[int] | tuple[str, ContentClass]"
"""Ids, or a text whose ids are not known yet."""
CacheScope: TypeAlias = bytes | None
"""Group of texts that share cached ids. Texts find only ids of their own scope, so that timing does
not reveal what others sent. None: the texts are not cached. The chat template's own texts belong to
TEMPLATE_SCOPE, whoever sends them."""
TEMPLATE_SCOPE: Final = b""


@dataclass(slots=True)
class PartialPrompt:
    """A prompt of which some texts are still to be encoded."""

    scope: CacheScope = None
    pieces: list[PromptPiece] = field(default_factory=list)
    missing_chars: int = 0


class SharedCache(Protocol):
    """A cache of ids that several processes share, by the backend that made them. Thread-safe;
    does not raise."""

    def get(self, texts: Sequence[str], scope: bytes, backend: str) -> list[array[int] | None]:
        """The ids of each of `texts`, None where they are not cached. May take milliseconds."""

    def put(self, text: str, ids: array[int], scope: bytes, backend: str) -> None:
        """Add the ids of `text`, without waiting for the write."""


class CachingEncoder:
    """One model's texts to ids. Thread-safe; ids equal the vocabulary's own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: FallbackBackend,
        policy: CachePolicy | None = None,
        shared: SharedCache | None = None,
        cuts: CutRule | None = None,
    ) -> None:
        """`shared` is asked for texts that are not in this process's cache. `cuts`: where texts may
        be cut; None: nowhere."""
        self._vocabulary = vocabulary
        self.backend = backend
        self._cache = SegmentCache(policy or CachePolicy())
        self._shared = shared
        self._cuts = cuts
        self._generation = backend.generation
        self._lock = threading.Lock()
        self.lookups = {content: CacheLookups() for content in ContentClass}

    @property
    def size(self) -> tuple[int, int]:
        """Entries and bytes of the cache."""
        return len(self._cache), self._cache.num_bytes

    def encode(
        self, text: str, content: ContentClass = ContentClass.USER, scope: CacheScope = None
    ) -> array[int]:
        """The ids of plain text. Raises InvalidRequestError for a lone surrogate."""
        return completed(self.text_slices(text, content, scope))

    def text_slices(
        self, text: str, content: ContentClass = ContentClass.USER, scope: CacheScope = None
    ) -> Generator[int, None, array[int]]:
        """Like `encode`, in slices as `in_slices` makes them."""
        ids = self._find(text, content, scope)
        if ids is not None:
            return ids
        check_text(text)
        prompt = PartialPrompt(scope, [(text, content)], len(text))
        return (yield from self.in_slices(prompt))

    def encode_chat(
        self,
        messages: Sequence[Message],
        scope: CacheScope = None,
        *,
        tools: Sequence[str] = (),
        variables: str = "",
    ) -> array[int]:
        """The prompt ids of a chat. Raises what `Vocabulary.segments` raises."""
        return self.finish(self.begin(messages, scope, tools=tools, variables=variables))

    def begin(
        self,
        messages: Sequence[Message],
        scope: CacheScope = None,
        *,
        tools: Sequence[str] = (),
        variables: str = "",
    ) -> PartialPrompt:
        """The prompt as far as this process's cache has it. Raises what `encode_chat` raises."""
        segments = self._vocabulary.segments(messages, tools, variables)
        return self._begin(segments, classify(segments, messages), scope)

    def begin_text(
        self, text: str, scope: CacheScope = None, *, is_prompt: bool = False
    ) -> PartialPrompt:
        """Like `begin`, for a text in which control tokens' names and markup are these tokens.
        `is_prompt`: with those that the model's prompts begin and end with. Raises
        InvalidRequestError for a lone surrogate."""
        segments = self._vocabulary.raw_segments(text, is_prompt=is_prompt)
        classes = [ContentClass.USER for segment in segments if not segment.is_token]
        return self._begin(segments, classes, scope)

    def _begin(
        self, segments: Sequence[Segment], contents: Iterable[ContentClass], scope: CacheScope
    ) -> PartialPrompt:
        classes = iter(contents)
        prompt = PartialPrompt(scope)
        for segment in segments:
            if segment.is_token:
                prompt.pieces.append(array("I", [self._vocabulary.token_id(segment.text)]))
                continue
            content = next(classes)
            ids = self._find(segment.text, content, scope)
            if ids is None:
                prompt.pieces.append((segment.text, content))
                prompt.missing_chars += len(segment.text)
            else:
                prompt.pieces.append(ids)
        return prompt

    def finish(self, prompt: PartialPrompt, *, may_wait: bool = True) -> array[int]:
        """The prompt's ids, its missing texts encoded. Without `may_wait` the shared cache is not
        asked."""
        return completed(self.in_slices(prompt, may_wait=may_wait))

    def in_slices(
        self, prompt: PartialPrompt, *, may_wait: bool = True
    ) -> Generator[int, None, array[int]]:
        """Like `finish`, SLICE_CHARS at a time where texts may be cut; yields the ids so far."""
        shared = self._find_shared(prompt) if may_wait else {}
        whole: array[int] = array("I")
        for piece in prompt.pieces:
            if isinstance(piece, tuple):
                text, content = piece
                ids = shared.get(text)
                if ids is None:
                    scope = _scope_of(content, prompt.scope)
                    ids = yield from self._encode(text, scope, len(whole))
                whole += ids
            else:
                whole += piece
        return whole

    def _find(self, text: str, content: ContentClass, scope: CacheScope) -> array[int] | None:
        within = _scope_of(content, scope)
        with self._lock:
            self._clear_if_stale()
            ids = None if within is None else self._cache.get(text, within)
            self.lookups[content].count(len(text), is_hit=ids is not None)
        return ids

    def _find_shared(self, prompt: PartialPrompt) -> dict[str, array[int]]:
        """The shared cache's ids of the missing texts, which are put into this process's too."""
        if self._shared is None or prompt.scope is None or not prompt.missing_chars:
            return {}
        texts = [piece[0] for piece in prompt.pieces if isinstance(piece, tuple)]
        generation = self.backend.generation
        cached = self._shared.get(texts, prompt.scope, self.backend.name)
        found = {text: ids for text, ids in zip(texts, cached, strict=True) if ids is not None}
        with self._lock:
            self._clear_if_stale()
            if generation != self._generation:
                return {}
            for text, ids in found.items():
                self._cache.put(text, ids, prompt.scope)
        return found

    def _encode(
        self, text: str, scope: CacheScope, num_before: int
    ) -> Generator[int, None, array[int]]:
        generation = self.backend.generation
        backend = self.backend.name
        ids: array[int] = array("I")
        for number, part in enumerate(self._parts(text)):
            if number:
                yield num_before + len(ids)
            ids += self.backend.encode(part)
        if scope is None:
            return ids
        with self._lock:
            self._clear_if_stale()
            is_current = generation == self._generation
            if is_current:
                self._cache.put(text, ids, scope)
        if is_current and self._shared is not None:
            self._shared.put(text, ids, scope, backend)
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        """A text in parts whose ids, joined, are its own; whole where it may not be cut."""
        if self._cuts is None or len(text) <= SLICE_CHARS:
            yield text
            return
        cutter = Cutter(self._cuts, target_chars=SLICE_CHARS, max_chars=SLICE_CHARS + len(text))
        for start in range(0, len(text), SLICE_CHARS):
            yield from cutter.feed(text[start : start + SLICE_CHARS])
        yield from filter(None, cutter.finish())

    def _clear_if_stale(self) -> None:
        """A backend that was turned off may have given wrong ids before."""
        if self._generation != self.backend.generation:
            self._generation = self.backend.generation
            self._cache.clear()


def _scope_of(content: ContentClass, scope: CacheScope) -> CacheScope:
    return TEMPLATE_SCOPE if content is ContentClass.ROLE_TAG else scope


def completed(steps: Generator[int, None, ResultT]) -> ResultT:
    """What the generator returns once all of it is done."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
