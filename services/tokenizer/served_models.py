"""The models that one service serves: whose vocabulary is loaded, who uses it, and when it goes.

Vocabularies are loaded when a request names their model, and when the configuration file adds one.
At most `max_loaded` are in memory: for another one the one that was used least recently goes, but
never one that a request is using. A vocabulary that cannot be loaded costs those who ask for it,
and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from outrider.errors import (
    ConfigError,
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.models.catalog import ModelCatalog
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.selection import AUTO, load_backend, select_backend
from outrider.tokenization.encoder import CachingEncoder
from services.tokenizer.vocabularies import CacheSettings, ServedVocabulary

RETRY_S: Final = 5.0
"""A vocabulary that could not be loaded is tried again when it is asked for after so long."""
MAX_WAIT_S: Final = 2.0
"""Longest wait of a request for a vocabulary that is being loaded. Less than the 2.5 s for which
a router waits for each of four tokenizers (a quarter of its `tokenize_timeout_s`): one that has not
answered by then is asked last from then on, whatever the model."""
MAX_WAITING: Final = 64
"""Requests that wait for vocabularies at once: a stream answers 256 requests at a time, and those
of other models need room there."""

_log = structlog.get_logger()


LoadModel: TypeAlias = Callable[[str], tuple[ServedVocabulary, ...]]
"""Loads a model's vocabularies, the current one, then those it had before; blocks, in a thread.
Raises OutriderError."""


@dataclass(frozen=True, slots=True)
class StoreLoader:
    """Loads vocabularies from the model store. Raises UnknownModelError, ModelStoreError,
    ConfigError for a backend that does not exist."""

    catalog: ModelCatalog
    store: ModelStore
    backend: str = AUTO
    caches: CacheSettings = field(default_factory=CacheSettings)
    previous: tuple[tuple[str, Path], ...] = ()
    """Models and the folders of vocabularies (`Vocabulary.save`) that they had before, served
    beside the current ones."""

    def __call__(self, model: str) -> tuple[ServedVocabulary, ...]:
        """As LoadModel."""
        spec = self.catalog.lookup(model)
        vocabulary = load_vocabulary(spec, self.store)
        chosen = load_backend(spec, self.store, vocabulary, self.backend)
        served = [ServedVocabulary.of(model, vocabulary, chosen, self.caches)]
        for name, folder in self.previous:
            if name == model:
                older = Vocabulary.load(folder)
                backend = select_backend(older, self.backend)
                served.append(ServedVocabulary.of(model, older, backend, self.caches))
        return tuple(served)


@dataclass(slots=True, eq=False)
class _Entry:
    """A model whose vocabularies are loaded, or being loaded."""

    model: str
    loading: asyncio.Future[tuple[ServedVocabulary, ...]]
    num_users: int = 0

    @property
    def loaded(self) -> tuple[ServedVocabulary, ...]:
        """Its vocabularies, none before they are there."""
        done = self.loading.done() and not self.loading.cancelled()
        return () if not done or self.loading.exception() else self.loading.result()


class ServedModels:
    """Belongs to one event loop."""

    def __init__(
        self,
        load: LoadModel,
        models: Iterable[str],
        *,
        max_loaded: int,
        max_wait_s: float = MAX_WAIT_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`models`: at least one, the first is the default. `clock` is in seconds."""
        self._load = load
        self._models = tuple(dict.fromkeys(models))
        self._max_loaded = max_loaded
        self._max_wait_s = max_wait_s
        self._num_waiting = 0
        self._clock = clock or asyncio.get_running_loop().time
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By model, the one used least recently first."""
        self._leaving: set[_Entry] = set()
        """Removed or replaced, but in use. Whoever knows their digest still finds them."""
        self._failed: dict[str, tuple[OutriderError, float]] = {}
        """Why a model could not be loaded, and when."""
        self.on_unload: Callable[[CachingEncoder], None] = lambda encoder: None
        """Told of every vocabulary that is given up."""

    @classmethod
    def of(cls, served: Iterable[ServedVocabulary]) -> ServedModels:
        """These alone, all loaded; the first of a model is its current one."""
        by_model: dict[str, tuple[ServedVocabulary, ...]] = {}
        for entry in served:
            by_model[entry.model] = (*by_model.get(entry.model, ()), entry)
        found = cls(by_model.__getitem__, by_model, max_loaded=len(by_model))
        for model, vocabularies in by_model.items():
            loading = asyncio.get_running_loop().create_future()
            loading.set_result(vocabularies)
            found._entries[model] = _Entry(model, loading)
        return found

    async def preload(self) -> None:
        """Load as many as there is room for, the first ones first. Raises what loading the default
        model raises; others are tried again when they are asked for."""
        default, *others = self._models[: self._max_loaded]
        entries = [self._start(model) for model in (default, *others)]
        await asyncio.gather(*(entry.loading for entry in entries), return_exceptions=True)
        entries[0].loading.result()

    def configure(
        self, load: LoadModel, models: Iterable[str], changed: Collection[str] = ()
    ) -> None:
        """Serve these models from now on, loaded by `load`. Those of `changed` are loaded anew,
        those that are new are loaded if there is room. Requests under way go on with what they
        have."""
        self._load = load
        before = set(self._models)
        self._models = tuple(dict.fromkeys(models))
        self._failed.clear()
        for model in list(self._entries):
            if model not in self._models or model in changed:
                self._give_up(self._entries.pop(model))
        for model in self._models:
            is_new = model not in before or model in changed
            if is_new and model not in self._entries and len(self._entries) < self._max_loaded:
                self._start(model)

    async def close(self) -> None:
        """Wait for what is being loaded: threads cannot be stopped."""
        loading = [entry.loading for entry in (*self._entries.values(), *self._leaving)]
        await asyncio.gather(*loading, return_exceptions=True)

    def loaded(self) -> list[ServedVocabulary]:
        """All that are in memory."""
        entries = (*self._entries.values(), *self._leaving)
        return [served for entry in entries for served in entry.loaded]

    @asynccontextmanager
    async def using(self, model: str, digest: bytes = b"") -> AsyncIterator[ServedVocabulary]:
        """The vocabulary of a model, the default for "", with that digest if one is given; it stays
        loaded as long as the context lasts.

        Raises UnknownModelError, VocabularyMismatchError for a digest that is not served,
        VocabularyUnavailableError for a vocabulary that cannot be loaded, or not so soon, and
        OverloadedError if others are using all that may be loaded.
        """
        entry = self._entry(model or self._models[0], digest)
        entry.num_users += 1
        try:
            yield _with_digest(entry.loaded or await self._wait(entry), digest)
        finally:
            self._left(entry)

    async def _wait(self, entry: _Entry) -> tuple[ServedVocabulary, ...]:
        """Until a vocabulary is loaded. Raises VocabularyUnavailableError."""
        if self._num_waiting >= MAX_WAITING:
            raise _not_yet(entry.model)
        self._num_waiting += 1
        try:
            # Whoever stops waiting does not stop the loading, for which others may wait too.
            await asyncio.wait([entry.loading], timeout=self._max_wait_s)
        finally:
            self._num_waiting -= 1
        if not entry.loading.done():
            raise _not_yet(entry.model)
        if (error := entry.loading.exception()) is not None:
            raise _unavailable(entry.model, error) from error
        return entry.loading.result()

    def _left(self, entry: _Entry) -> None:
        """One user less."""
        entry.num_users -= 1
        if not entry.num_users and entry in self._leaving:
            self._leaving.discard(entry)
            self._forget(entry)

    def _entry(self, model: str, digest: bytes) -> _Entry:
        for leaving in self._leaving if digest else ():
            # A worker asks for what its part of a long text was begun with.
            if leaving.model == model and digest in _digests(leaving):
                current = self._entries.get(model)
                if current is None or digest not in _digests(current):
                    return leaving
        if model not in self._models:
            raise UnknownModelError(
                f"No vocabulary of model {model[:100]!r} here: use {', '.join(self._models)}."
            )
        found = self._entries.get(model)
        if found is None:
            self._check_failed(model)
            self._make_room()
            found = self._start(model)
        self._entries.move_to_end(model)
        return found

    def _check_failed(self, model: str) -> None:
        """Raises VocabularyUnavailableError if it could not be loaded a moment ago."""
        error, failed_at = self._failed.get(model, (None, 0.0))
        if error is not None and self._clock() - failed_at < RETRY_S:
            raise error

    def _make_room(self) -> None:
        """Raises OverloadedError."""
        while len(self._entries) >= self._max_loaded:
            idle = (entry for entry in self._entries.values() if _is_idle(entry))
            if (oldest := next(idle, None)) is None:
                raise OverloadedError(
                    f"All {self._max_loaded} vocabularies that may be loaded are in use: try again "
                    "in a moment, or raise max_loaded_vocabularies.",
                    retry_delay_ms=500,
                )
            self._give_up(self._entries.pop(oldest.model))

    def _start(self, model: str) -> _Entry:
        load = self._load
        loading = asyncio.ensure_future(asyncio.to_thread(load, model))
        entry = self._entries[model] = _Entry(model, loading)
        loading.add_done_callback(lambda _: self._finished(entry))
        return entry

    def _finished(self, entry: _Entry) -> None:
        if entry.loading.cancelled():
            return
        error = entry.loading.exception()
        if error is None:
            _log.info("vocabulary_loaded", model=entry.model)
            return
        # A stack helps with defects alone.
        stack = None if isinstance(error, OutriderError) else error
        _log.error("vocabulary_not_loaded", model=entry.model, error=str(error), exc_info=stack)
        if self._entries.get(entry.model) is entry:
            del self._entries[entry.model]
            self._failed[entry.model] = _unavailable(entry.model, error), self._clock()

    def _give_up(self, entry: _Entry) -> None:
        """One that is no entry any more."""
        if entry.num_users:
            self._leaving.add(entry)
        else:
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        for served in entry.loaded:
            self.on_unload(served.encoder)
        _log.info("vocabulary_unloaded", model=entry.model)


def _is_idle(entry: _Entry) -> bool:
    return not entry.num_users and entry.loading.done()


def _digests(entry: _Entry) -> set[bytes]:
    return {served.vocabulary.digest for served in entry.loaded}


def _unavailable(model: str, error: BaseException) -> OutriderError:
    """What those are told who ask for a model that cannot be loaded."""
    reason = error.message if isinstance(error, OutriderError) else "see the tokenizer's log"
    return VocabularyUnavailableError(
        f"The vocabulary of model {model} cannot be loaded here: {reason}",
        retry_delay_ms=round(RETRY_S * 1000),
    )


def _not_yet(model: str) -> OutriderError:
    return VocabularyUnavailableError(
        f"The vocabulary of model {model} is being loaded here: try again in a moment.",
        retry_delay_ms=1000,
    )


def _with_digest(served: tuple[ServedVocabulary, ...], digest: bytes) -> ServedVocabulary:
    """Raises VocabularyMismatchError."""
    current = served[0]
    for entry in served:
        if digest in (b"", entry.vocabulary.digest):
            return entry
    ours = current.vocabulary.digest
    raise VocabularyMismatchError(
        f"Vocabulary {digest.hex()} of model {current.model} is not served here, "
        f"{ours.hex()} is: use the model's own, or ask a tokenizer that has yours.",
        metadata={"ours": ours.hex(), "theirs": digest.hex()},
    )


def check_models(models: Iterable[str], catalog: ModelCatalog) -> None:
    """Raises ConfigError for a model that is not defined."""
    for model in models:
        try:
            catalog.lookup(model)
        except UnknownModelError as error:
            raise ConfigError(f"models has {model!r}: {error.message}") from error
