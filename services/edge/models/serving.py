"""Loads and unloads models beside the event loop, as the table decides."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Final, Protocol

import structlog

from outrider.errors import OutriderError
from outrider.fair_work.turns import Requester
from outrider.load_table import Grant, Load, LoadAction, LoadTable, Refuse, Unload
from outrider.models.definitions import ModelSpec
from outrider.models.suggested_sampling import SuggestedSampling
from outrider.telemetry.metrics import Metrics
from outrider.tokenization.pool.metrics import ModelEncoder, TokenizationMetrics
from services.edge.models.embedders import Embedders
from services.edge.models.keys import EdgeModel, ModelKey
from services.edge.models.refusals import refusal_error
from services.edge.models.served import LoadVocabulary, ServedModel, load_model
from services.edge.models.settings import ModelSettings
from services.edge.telemetry.edge import EdgeTelemetry
from services.edge.wire.client import ListedModel

log = structlog.get_logger()

_MAX_LOADS: Final = 2
"""Models being loaded at the same time: a load takes a core for a second or more."""


class ModelWaiter(Protocol):
    """A chat that waits for its model. Its methods are called in the event loop, perhaps before
    `ask` has returned."""

    def granted(self, model: ServedModel) -> None:
        """The model is available: the chat uses it from now on, and must release it."""
        ...

    def refused(self, error: OutriderError) -> None:
        """The chat does not get the model."""
        ...


class EdgeModels:
    """The models of one edge. Methods are called in the event loop."""

    def __init__(
        self,
        settings: ModelSettings,
        models: Sequence[EdgeModel],
        load: LoadVocabulary,
        metrics: Metrics,
        telemetry: EdgeTelemetry,
        embedders: Sequence[ModelSpec] = (),
    ) -> None:
        self.embedders = Embedders(embedders)
        """The embedding models, which an edge does not load."""
        self._settings = settings
        self._load_vocabulary = load
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._table = LoadTable[ModelKey, ModelWaiter](settings.max_loaded, settings.loading)
        self._models: dict[str, EdgeModel] = {}
        self._loads = asyncio.Semaphore(_MAX_LOADS)
        self._defined: dict[ModelKey, EdgeModel] = {}
        """Models that are served or take a place."""
        self._loaded: dict[ModelKey, ServedModel] = {}
        self._digests: dict[ModelKey, bytes] = {}
        self._suggested: dict[ModelKey, SuggestedSampling | None] = {}
        """Suggested sampling of models whose vocabularies were loaded once."""
        self._tasks: dict[ModelKey, asyncio.Task[None]] = {}
        """Tasks that load or close models."""
        self._is_starting = False
        self._start_error: Exception | None = None
        """Why the first model could not be loaded; later errors are not kept, nor what their
        tracebacks hold."""
        self._timer: asyncio.TimerHandle | None = None
        self._actions: deque[LoadAction[ModelKey, ModelWaiter]] = deque()
        self._is_performing = False
        self.tokenizing = TokenizationMetrics(metrics.registry, self._encoders)
        self.revision = 0
        """Changes with what `listed` returns."""
        self._define(models)

    @property
    def names(self) -> Iterable[str]:
        """Names of the served models, the default first."""
        return self._models.keys()

    @property
    def first(self) -> ServedModel | None:
        """The default model, while it is loaded."""
        key = self._table.served(next(iter(self._models), ""))
        return None if key is None else self._loaded.get(key)

    @property
    def num_waiting(self) -> int:
        """Chats that wait for a model."""
        return self._table.num_waiting

    def listed(self, names: Iterable[str]) -> list[ListedModel]:
        """The models of these names, for clients."""
        models = [self._models[name] for name in names]
        return [
            ListedModel(
                model.spec.name,
                self._digests.get(model.key, b""),
                self._settings.context_tokens(model.spec),
                model.spec.sampling or self._suggested.get(model.key),
                model.spec.sampling is not None,
            )
            for model in models
        ]

    async def start(self) -> None:
        """Load the first model. Raises OutriderError."""
        first = next(iter(self._models.values()), None)
        if first is None:
            return  # an edge of models that embed alone
        key = first.key
        self._is_starting = True
        self._perform(self._table.preload(key.name))
        # Whoever gives up the start does not cancel the load: `stop` waits for its thread.
        await asyncio.shield(self._tasks[key])
        self._is_starting = False
        if self._start_error is not None:
            raise self._start_error

    async def stop(self) -> None:
        """Unload everything; no chat is left. May be called without a start, or twice."""
        self._define(())
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        self.tokenizing.close()

    def set_models(self, models: Sequence[EdgeModel], embedders: Sequence[ModelSpec] = ()) -> None:
        """Replace the served models. Chats on others, and on older definitions, continue to their
        ends; the new first model is loaded if there is room."""
        self.embedders.set(embedders)
        self._define(models)
        if models:
            self._perform(self._table.preload(models[0].spec.name))

    def ask(
        self, name: str, waiter: ModelWaiter, patience_s: float | None, requester: Requester
    ) -> None:
        """A chat wants a model that is served; see LoadTable.ask."""
        self._perform(self._table.ask(name, waiter, self._loop.time(), patience_s, requester))

    def leave(self, waiter: ModelWaiter) -> None:
        """A chat stops waiting; its methods are not called any more."""
        self._perform(self._table.leave(waiter, self._loop.time()))

    def use(self, name: str) -> ServedModel | None:
        """The model of this name if it is loaded, until it is released."""
        key = self._table.use(name)
        return None if key is None else self._loaded[key]

    def release(self, model: ServedModel) -> None:
        """A chat does not use it any more."""
        self._perform(self._table.release(model.key, self._loop.time()))

    def _define(self, models: Sequence[EdgeModel]) -> None:
        self._models = {model.spec.name: model for model in models}
        self._defined |= {model.key: model for model in models}
        self._perform(self._table.define([model.key for model in models], self._loop.time()))
        for key in [key for key in self._defined if not self._is_needed(key)]:
            self._forget(key)
        self._telemetry.served([*self._models, *self.embedders.names])
        self.revision += 1

    def _is_needed(self, key: ModelKey) -> bool:
        return self._table.served(key.name) == key or key in self._loaded or key in self._tasks

    def _forget(self, key: ModelKey) -> None:
        del self._defined[key]
        self._digests.pop(key, None)
        self._suggested.pop(key, None)
        if all(other.name != key.name for other in self._defined):
            self._telemetry.forget_model(key.name)

    def _perform(self, actions: Iterable[LoadAction[ModelKey, ModelWaiter]]) -> None:
        """Carry out actions; actions that result from them come after them."""
        self._actions += actions
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._actions:
                self._do(self._actions.popleft())
        finally:
            self._is_performing = False
        self._arm()
        self._telemetry.models(len(self._loaded), self._table.num_waiting)

    def _do(self, action: LoadAction[ModelKey, ModelWaiter]) -> None:
        match action:
            case Load(key):
                self._begin(key, self._load(self._defined[key]))
            case Unload(key, is_eviction):
                self._begin(key, self._unload(self._loaded[key], is_eviction=is_eviction))
            case Grant(waiter, key):
                waiter.granted(self._loaded[key])
            case Refuse(waiter):
                waiter.refused(refusal_error(action))

    def _begin(self, key: ModelKey, work: Coroutine[None, None, None]) -> None:
        self._tasks[key] = asyncio.create_task(work, name=f"model {key.name}")

    async def _load(self, model: EdgeModel) -> None:
        key, name = model.key, model.spec.name
        try:
            async with self._loads:
                loaded = await asyncio.to_thread(
                    load_model,
                    model,
                    self._settings,
                    self._load_vocabulary,
                    self._telemetry.labels,
                    self.tokenizing,
                )
        except Exception as failure:
            if self._is_starting:
                self._start_error = failure
            if isinstance(failure, OutriderError):
                log.warning("model_not_loaded", model=name, error=failure.message)
            else:
                log.exception("model_not_loaded", model=name, error=str(failure))
            self._telemetry.model_failed(name)
            self._ended(key)
            self._perform(self._table.failed(key, self._loop.time()))
            return
        log.info("model_loaded", model=name, backend=loaded.encoder.backend.name)
        self._loaded[key] = loaded
        self._digests[key] = loaded.vocabulary_digest
        self._suggested[key] = loaded.vocabulary.facts.sampling
        self.revision += 1
        loaded.start()
        self._telemetry.model_loaded(name)
        self._ended(key)
        self._perform(self._table.loaded(key, self._loop.time()))

    async def _unload(self, model: ServedModel, *, is_eviction: bool) -> None:
        key = model.key
        try:
            await model.close()
        except Exception:
            log.exception("model_unload_failed", model=key.name)
        log.info("model_unloaded", model=key.name, evicted=is_eviction)
        del self._loaded[key]
        self.tokenizing.retire(model.encoder)
        others = {*self._loaded, *self._tasks} - {key}
        if all(other.name != key.name for other in others):
            self._telemetry.forget_model(key.name)  # no drafter of it runs
        if is_eviction:
            self._telemetry.model_evicted(key.name)
        self._ended(key)
        self._perform(self._table.closed(key, self._loop.time()))

    def _encoders(self) -> list[ModelEncoder]:
        return [
            ModelEncoder(it.limits.model, it.encoder, it.tokenization.num_processes)
            for it in list(self._loaded.values())
        ]

    def _ended(self, key: ModelKey) -> None:
        """A model's task is about to end."""
        del self._tasks[key]
        if not self._is_needed(key):
            self._forget(key)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._table.next_deadline()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._table.tick(self._loop.time()))
