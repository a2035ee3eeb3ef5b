"""Loads and gives up vocabularies beside the event loop, as the table decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import structlog

from outrider.errors import ConfigError, OutriderError, UnknownModelError
from outrider.models.catalog import ModelCatalog
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.selection import AUTO, load_backend, select_backend
from outrider.tokenization.encoder import CachingEncoder
from services.tokenizer.vocabularies import CacheSettings, ServedVocabulary
from services.tokenizer.vocabulary_table import (
    Grant,
    Load,
    Refuse,
    TableAction,
    Unload,
    VocabularyKey,
    VocabularyLimits,
    VocabularyTable,
)

_SEE_LOG: Final = "see the tokenizer's log"
"""Message to callers about a defect, whose own text may reveal private data."""

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
        """Load a model's vocabularies; see LoadModel."""
        spec = self.catalog.lookup(model)
        vocabulary = load_vocabulary(spec, self.store)
        chosen = load_backend(self.store, vocabulary, self.backend)
        served = [ServedVocabulary.of(model, vocabulary, chosen, self.caches)]
        for name, folder in self.previous:
            if name == model:
                older = Vocabulary.load(folder)
                backend = select_backend(older, self.backend)
                served.append(ServedVocabulary.of(model, older, backend, self.caches))
        return tuple(served)


class _Granted(NamedTuple):
    """The vocabulary that a request uses."""

    key: VocabularyKey
    served: ServedVocabulary


@dataclass(frozen=True, slots=True)
class Lease:
    """A vocabulary that stays loaded until it is released."""

    served: ServedVocabulary
    release: Callable[[], None]
    """To be called once."""


_Waiter: TypeAlias = "asyncio.Future[_Granted]"
"""A request that waits."""


class ServedModels:
    """Belongs to one event loop."""

    def __init__(self, load: LoadModel, models: Iterable[str], limits: VocabularyLimits) -> None:
        """`models`: at least one, the first is the default."""
        self._load_model = load
        self._table = VocabularyTable[_Waiter](models, limits)
        self._loop = asyncio.get_running_loop()
        self._loaded: dict[VocabularyKey, tuple[ServedVocabulary, ...]] = {}
        self._loads: dict[VocabularyKey, asyncio.Task[Exception | None]] = {}
        """Loads under way; each ends with why it failed, if it did."""
        self._timer: asyncio.TimerHandle | None = None
        self.on_unload: Callable[[CachingEncoder], None] = lambda encoder: None
        """Called with every vocabulary that is unloaded."""

    @classmethod
    def of(cls, served: Iterable[ServedVocabulary]) -> ServedModels:
        """Models with exactly these vocabularies, all loaded; the first of a model is its current
        one."""
        by_model: dict[str, tuple[ServedVocabulary, ...]] = {}
        for entry in served:
            by_model[entry.model] = (*by_model.get(entry.model, ()), entry)
        found = cls(by_model.__getitem__, by_model, VocabularyLimits(len(by_model)))
        for load in found._table.preload():
            found._take(load.key, by_model[load.key.model])
        return found

    async def preload(self) -> None:
        """Load as many as fit, in order. Raises the error of loading the default model; others are
        tried again on demand."""
        loads = self._table.preload()
        self._perform(loads)
        tasks = [self._loads[load.key] for load in loads]
        if not tasks:
            return  # a mesh of models that embed alone
        # Whoever gives up the start does not cancel the loads: `close` waits for their threads.
        await asyncio.wait(tasks)
        if (error := tasks[0].result()) is not None:
            raise error

    def configure(
        self, load: LoadModel, models: Iterable[str], changed: Collection[str] = ()
    ) -> None:
        """Serve these models from now on, loaded by `load`. Those of `changed` are loaded anew, new
        ones if there is room. Running requests keep their vocabularies."""
        self._load_model = load
        self._perform(self._table.define(models, changed))

    async def close(self) -> None:
        """Wait for running loads: threads cannot be stopped."""
        if self._loads:
            await asyncio.wait(self._loads.values())
        if self._timer is not None:
            self._timer.cancel()

    def loaded(self) -> list[ServedVocabulary]:
        """All that are in memory."""
        return [served for loaded in self._loaded.values() for served in loaded]

    @asynccontextmanager
    async def using(self, model: str, digest: bytes = b"") -> AsyncIterator[ServedVocabulary]:
        """The vocabulary of a model, the default for "", with that digest if one is given; it stays
        loaded as long as the context lasts.

        Raises UnknownModelError, VocabularyMismatchError for a digest that is not served,
        VocabularyUnavailableError for a vocabulary that cannot be loaded, or not so soon, and
        OverloadedError if others are using all that may be loaded.
        """
        lease = await self.lend(model, digest)
        try:
            yield lease.served
        finally:
            lease.release()

    async def lend(self, model: str, digest: bytes = b"") -> Lease:
        """Like `using`, for as long as the caller likes."""
        key, served = await self._granted(model, digest)
        return Lease(served, lambda: self._perform(self._table.release(key)))

    async def _granted(self, model: str, digest: bytes) -> _Granted:
        waiter: _Waiter = self._loop.create_future()
        self._perform(self._table.ask(model, digest, waiter, self._loop.time()))
        try:
            return await waiter
        except asyncio.CancelledError:
            self._table.leave(waiter)
            if not waiter.cancelled() and waiter.exception() is None:
                # It was granted just when the request was cancelled.
                self._perform(self._table.release(waiter.result().key))
            raise

    def _perform(self, actions: Iterable[TableAction[_Waiter]]) -> None:
        for action in actions:
            self._do(action)
        if self._timer is not None:
            self._timer.cancel()
        at = self._table.next_deadline()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _do(self, action: TableAction[_Waiter]) -> None:
        match action:
            case Load(key):
                self._loads[key] = asyncio.create_task(
                    self._load(key, self._load_model), name=f"vocabulary of {key.model}"
                )
            case Unload(key):
                for served in self._loaded.pop(key):
                    self.on_unload(served.encoder)
                _log.info("vocabulary_unloaded", model=key.model)
            case Grant(waiter, key, digest):
                loaded = self._loaded[key]
                found = next(it for it in loaded if it.vocabulary.digest == digest)
                if waiter.cancelled():
                    self._perform(self._table.release(key))
                else:
                    waiter.set_result(_Granted(key, found))
            case Refuse(waiter, error):
                if not waiter.cancelled():
                    waiter.set_exception(error)

    async def _load(self, key: VocabularyKey, load_model: LoadModel) -> Exception | None:
        try:
            loaded = await asyncio.to_thread(load_model, key.model)
        except Exception as error:
            del self._loads[key]
            # A stack helps with defects alone.
            is_known = isinstance(error, OutriderError)
            stack = None if is_known else error
            _log.error("vocabulary_not_loaded", model=key.model, error=str(error), exc_info=stack)
            reason = error.message if isinstance(error, OutriderError) else _SEE_LOG
            self._perform(self._table.failed(key, reason, self._loop.time()))
            return error
        del self._loads[key]
        _log.info("vocabulary_loaded", model=key.model)
        self._take(key, loaded)
        return None

    def _take(self, key: VocabularyKey, loaded: tuple[ServedVocabulary, ...]) -> None:
        self._loaded[key] = loaded
        digests = tuple(served.vocabulary.digest for served in loaded)
        self._perform(self._table.loaded(key, digests))

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._table.tick(self._loop.time()))


def tokenized(models: Iterable[str], catalog: ModelCatalog) -> tuple[str, ...]:
    """Models whose vocabularies are served: embedding models tokenize at their replicas. Raises
    ConfigError for a model that is not defined."""
    found = list[str]()
    for model in models:
        try:
            if not catalog.lookup(model).embeds:
                found.append(model)
        except UnknownModelError as error:
            raise ConfigError(f"models has {model!r}: {error.message}") from error
    return tuple(found)
