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
from outrider.load_table import Grant, Load, LoadAction, LoadLimits, LoadTable, Refuse, Unload
from outrider.models.catalog import ModelCatalog
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.selection import AUTO, load_backend, select_backend
from outrider.tokenization.encoder import CachingEncoder
from services.tokenizer.refusals import mismatch_error, refusal_error
from services.tokenizer.vocabularies import CacheSettings, ServedVocabulary

WAITS: Final = LoadLimits(max_waiting=64, max_wait_s=2.0, min_loaded_s=0.0, retry_s=5.0)
"""A request waits less than the 2.5 s for which a router waits for each of four tokenizers (a
quarter of its `tokenize_timeout_s`): one that has not answered by then is asked last from then on,
whatever the model. A stream answers 256 requests at a time, and those that wait leave room there
for other models."""
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


class _Key(NamedTuple):
    """One definition of a model: its vocabularies, the current one and those it had before."""

    name: str
    number: int
    """Every definition has another one."""


class _Granted(NamedTuple):
    """The vocabulary that a request uses."""

    key: _Key
    served: ServedVocabulary


@dataclass(frozen=True, slots=True)
class Lease:
    """A vocabulary that stays loaded until it is released."""

    served: ServedVocabulary
    release: Callable[[], None]
    """To be called once."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request that waits."""

    digest: bytes
    """Digest of the vocabulary that it wants; b"": the current one."""
    granted: asyncio.Future[_Granted]


class ServedModels:
    """Belongs to one event loop."""

    def __init__(
        self, load: LoadModel, models: Iterable[str], max_loaded: int, waits: LoadLimits = WAITS
    ) -> None:
        """`models`: at least one, the first is the default. Vocabularies of at most `max_loaded`
        of them are in memory at once; while requests on replaced ones end, of as many again. A
        request for another one is refused while all of these are in use: a router has other
        tokenizers to ask."""
        self._load_model = load
        self._table = LoadTable[_Key, _Waiter](max_loaded, waits, waits_for_room=False)
        self._loop = asyncio.get_running_loop()
        self._served: dict[str, _Key] = {}
        """By model, the default first."""
        self._last_number = 0
        self._loaded: dict[_Key, tuple[ServedVocabulary, ...]] = {}
        self._loads: dict[_Key, asyncio.Task[Exception | None]] = {}
        """Loads under way; each ends with why it failed, if it did."""
        self._timer: asyncio.TimerHandle | None = None
        self.on_unload: Callable[[CachingEncoder], None] = lambda encoder: None
        """Called with every vocabulary that is unloaded."""
        self._define(models, ())

    @classmethod
    def of(cls, served: Iterable[ServedVocabulary]) -> ServedModels:
        """Models with exactly these vocabularies, all loaded; the first of a model is its current
        one."""
        by_model: dict[str, tuple[ServedVocabulary, ...]] = {}
        for entry in served:
            by_model[entry.model] = (*by_model.get(entry.model, ()), entry)
        found = cls(by_model.__getitem__, by_model, len(by_model))
        for key in found._served.values():
            found._table.preload(key.name)
            found._take(key, by_model[key.name])
        return found

    async def preload(self) -> None:
        """Load as many as fit, in order. Raises the error of loading the default model; others are
        tried again on demand."""
        self._preload(self._served)
        tasks = list(self._loads.values())
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
        self._preload(self._define(models, changed))

    def _define(self, models: Iterable[str], changed: Collection[str]) -> list[str]:
        """Serve these models; returns those that are new or changed."""
        before, self._served = self._served, {}
        for model in models:
            if model in self._served:
                continue
            if model in before and model not in changed:
                self._served[model] = before[model]
            else:
                self._last_number += 1
                self._served[model] = _Key(model, self._last_number)
        self._perform(self._table.define(self._served.values(), self._loop.time()))
        return [model for model, key in self._served.items() if before.get(model) != key]

    def _preload(self, models: Iterable[str]) -> None:
        """Load these as far as there is room."""
        for model in models:
            self._perform(self._table.preload(model))

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
        return Lease(served, lambda: self._release(key))

    async def _granted(self, model: str, digest: bytes) -> _Granted:
        model = model or next(iter(self._served), "")
        if (replaced := self._replaced(model, digest)) is not None:
            self._table.use_again(replaced.key)
            return replaced
        waiter = _Waiter(digest, self._loop.create_future())
        self._perform(self._table.ask(model, waiter, self._loop.time()))
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self._perform(self._table.leave(waiter, self._loop.time()))
            if not waiter.granted.cancelled() and waiter.granted.exception() is None:
                # It was granted just when the request was cancelled.
                self._release(waiter.granted.result().key)
            raise

    def _replaced(self, model: str, digest: bytes) -> _Granted | None:
        """A replaced vocabulary of this digest that is still in use, unless the current ones have
        it too: a worker asks for what its part of a long text was begun with."""
        current = self._served.get(model)
        if not digest or (current and _of_digest(self._loaded.get(current, ()), digest)):
            return None
        for key, loaded in self._loaded.items():
            if key.name == model and key != current and (found := _of_digest(loaded, digest)):
                return _Granted(key, found)
        return None

    def _release(self, key: _Key) -> None:
        self._perform(self._table.release(key, self._loop.time()))

    def _perform(self, actions: Iterable[LoadAction[_Key, _Waiter]]) -> None:
        for action in actions:
            self._do(action)
        if self._timer is not None:
            self._timer.cancel()
        at = self._table.next_deadline()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _do(self, action: LoadAction[_Key, _Waiter]) -> None:
        match action:
            case Load(key):
                self._loads[key] = asyncio.create_task(
                    self._load(key, self._load_model), name=f"vocabulary of {key.name}"
                )
            case Unload(key):
                for served in self._loaded.pop(key):
                    self.on_unload(served.encoder)
                _log.info("vocabulary_unloaded", model=key.name)
                self._perform(self._table.closed(key, self._loop.time()))
            case Grant(waiter, key):
                self._grant(waiter, key)
            case Refuse(waiter):
                if not waiter.granted.cancelled():
                    waiter.granted.set_exception(refusal_error(action, self._served))

    def _grant(self, waiter: _Waiter, key: _Key) -> None:
        current, *_ = loaded = self._loaded[key]
        found = _of_digest(loaded, waiter.digest) if waiter.digest else current
        if found is not None and not waiter.granted.cancelled():
            waiter.granted.set_result(_Granted(key, found))
            return
        self._release(key)
        if not waiter.granted.cancelled():
            ours = current.vocabulary.digest
            error = mismatch_error(key.name, ours=ours, theirs=waiter.digest)
            waiter.granted.set_exception(error)

    async def _load(self, key: _Key, load_model: LoadModel) -> Exception | None:
        try:
            loaded = await asyncio.to_thread(load_model, key.name)
        except Exception as error:
            del self._loads[key]
            # A stack helps with defects alone.
            is_known = isinstance(error, OutriderError)
            stack = None if is_known else error
            _log.error("vocabulary_not_loaded", model=key.name, error=str(error), exc_info=stack)
            reason = error.message if isinstance(error, OutriderError) else _SEE_LOG
            self._perform(self._table.failed(key, self._loop.time(), reason))
            return error
        del self._loads[key]
        _log.info("vocabulary_loaded", model=key.name)
        self._take(key, loaded)
        return None

    def _take(self, key: _Key, loaded: tuple[ServedVocabulary, ...]) -> None:
        self._loaded[key] = loaded
        self._perform(self._table.loaded(key, self._loop.time()))

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._table.tick(self._loop.time()))


def _of_digest(loaded: Iterable[ServedVocabulary], digest: bytes) -> ServedVocabulary | None:
    return next((it for it in loaded if it.vocabulary.digest == digest), None)


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
