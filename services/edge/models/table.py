"""Which models are loaded, and which chats wait for one (pure).

    absent --a chat asks--> LOADING --loaded--> LOADED --evicted, or no longer defined--> CLOSING
       ^------- failed --------/                                     closed -> absent

A chat that asks for a model that is not loaded waits for it; all that wait for one model cause one
load. When all places are taken, the least recently used model without a chat is evicted; as long as
every model has one, chats for others wait, in the order in which their models were requested. A
model whose definition changed, or which is no longer served, takes no new chats and is unloaded
after its last one.

Methods return the actions to carry out, in this order. Times are in seconds on the clock of `now`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeAlias, TypeVar

from outrider.bounds import NonNegativeFloat, NonNegativeInt
from outrider.errors import (
    DeadlineError,
    OutriderError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
)
from services.edge.models.keys import ModelKey

WaiterT = TypeVar("WaiterT")

_BUSY_RETRY_MS: Final = 1000
"""When to try again, where others have to end first."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """How many models are loaded, and how long chats wait: table `[edge.loading]`."""

    max_waiting: NonNegativeInt = 256
    """Chats that may wait for models; those beyond are refused."""
    max_wait_s: NonNegativeFloat = 60.0
    """How long a chat may wait for its model."""
    min_loaded_s: NonNegativeFloat = 10.0
    """How long a model that was loaded stays at least: chats that ask for one model after another
    would make the edge load all the time."""
    retry_s: NonNegativeFloat = 5.0
    """After a load failed, chats for that model are refused for so long; the next one after that
    has it tried again."""


class LoadState(Enum):
    """State of a model that takes a place."""

    LOADING = auto()
    LOADED = auto()
    CLOSING = auto()
    """No chat uses it; its resources are being released."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load this one, and report `loaded` or `failed`."""

    key: ModelKey


@dataclass(frozen=True, slots=True)
class Unload:
    """Release the model's resources, and report `closed`."""

    key: ModelKey
    is_eviction: bool
    """Whether it makes room for another one."""


@dataclass(frozen=True, slots=True)
class Grant(Generic[WaiterT]):
    """This one uses the model from now on, until `release`."""

    waiter: WaiterT
    key: ModelKey


@dataclass(frozen=True, slots=True)
class Refuse(Generic[WaiterT]):
    """This one does not get its model."""

    waiter: WaiterT
    error: OutriderError


LoadAction: TypeAlias = Load | Unload | Grant[WaiterT] | Refuse[WaiterT]


@dataclass(slots=True)
class _Place:
    """A model that is loaded, or will be, or was."""

    state: LoadState = LoadState.LOADING
    num_users: int = 0
    loaded_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wait:
    until: float
    is_deadline: bool
    """Whether the chat's own deadline ends it."""


class ModelTable(Generic[WaiterT]):
    """At most `max_loaded` models that are served, and while chats on older definitions end, as
    many that are not served any more."""

    def __init__(self, max_loaded: int, limits: LoadLimits) -> None:
        assert max_loaded > 0
        self._max_loaded = max_loaded
        self._limits = limits
        self._served: dict[str, ModelKey] = {}
        """Served models by name, in the order in which they were defined."""
        self._places: OrderedDict[ModelKey, _Place] = OrderedDict()
        """The least recently used first."""
        self._queues: OrderedDict[ModelKey, OrderedDict[WaiterT, _Wait]] = OrderedDict()
        """Waiting chats, by model; the model requested first comes first."""
        self._queue_of: dict[WaiterT, ModelKey] = {}
        self._held_off: dict[ModelKey, float] = {}
        """Until when models that could not be loaded are not tried again."""

    @property
    def num_waiting(self) -> int:
        """Chats that wait for a model."""
        return len(self._queue_of)

    def served(self, name: str) -> ModelKey | None:
        """The definition that new chats of this name get."""
        return self._served.get(name)

    def define(self, keys: Iterable[ModelKey], now: float) -> list[LoadAction[WaiterT]]:
        """Replace the defined models."""
        before, self._served = self._served, {key.name: key for key in keys}
        actions: list[LoadAction[WaiterT]] = []
        for old in before.values():
            if (new := self._served.get(old.name)) == old:
                continue
            self._held_off.pop(old, None)
            queue = self._queues.pop(old, OrderedDict())
            if new is not None:
                self._move(queue, new)
                continue
            for waiter in queue:
                del self._queue_of[waiter]
                actions.append(Refuse(waiter, _removed(old.name)))
        for key, place in self._places.items():
            if place.state is LoadState.LOADED and not place.num_users and not self._serves(key):
                actions.append(self._close(key, is_eviction=False))
        for key in [key for key in self._queues if self._is_loaded(key)]:
            actions += self._grant_all(key)  # it was defined so before, and has chats still
        return actions + self._fill(now)

    def ask(
        self, name: str, waiter: WaiterT, now: float, patience_s: float | None = None
    ) -> list[LoadAction[WaiterT]]:
        """A chat wants a model. `patience_s`: until its own deadline; None: it has none."""
        key = self._served.get(name)
        if key is None:
            return [Refuse(waiter, _removed(name))]
        if self._is_loaded(key):
            self._use(key)
            return [Grant(waiter, key)]
        held_off_s = self._held_off.get(key, now) - now
        if held_off_s > 0:
            return [Refuse(waiter, _failed(name, held_off_s))]
        if self.num_waiting >= self._limits.max_waiting:
            return [Refuse(waiter, _too_many(self.num_waiting))]
        longest_s = self._limits.max_wait_s
        is_deadline = patience_s is not None and patience_s < longest_s
        wait_s = patience_s if patience_s is not None and is_deadline else longest_s
        self._queue_of[waiter] = key
        self._queues.setdefault(key, OrderedDict())[waiter] = _Wait(now + wait_s, is_deadline)
        return self._fill(now)

    def preload(self, name: str) -> list[LoadAction[WaiterT]]:
        """Load the model of this name if there is room, without a waiting chat."""
        key = self._served[name]
        if key in self._places or self._queues or self._is_full():
            return []
        return [self._load(key)]

    def use(self, name: str) -> ModelKey | None:
        """The model of this name, if it is loaded: it is in use until `release`."""
        key = self._served.get(name)
        if key is None or not self._is_loaded(key):
            return None
        self._use(key)
        return key

    def release(self, key: ModelKey, now: float) -> list[LoadAction[WaiterT]]:
        """A chat on this model has ended."""
        place = self._places[key]
        assert place.state is LoadState.LOADED and place.num_users > 0
        place.num_users -= 1
        self._places.move_to_end(key)
        actions: list[LoadAction[WaiterT]] = []
        if not place.num_users and not self._serves(key):
            actions.append(self._close(key, is_eviction=False))
        return actions + self._fill(now)

    def leave(self, waiter: WaiterT, now: float) -> list[LoadAction[WaiterT]]:
        """A chat stops waiting. A load that it caused continues."""
        if waiter not in self._queue_of:
            return []
        self._forget(waiter)
        return self._fill(now)

    def loaded(self, key: ModelKey, now: float) -> list[LoadAction[WaiterT]]:
        """A load has succeeded."""
        place = self._places[key]
        assert place.state is LoadState.LOADING
        place.state = LoadState.LOADED
        place.loaded_at = now
        self._places.move_to_end(key)
        if not self._serves(key):
            return [self._close(key, is_eviction=False), *self._fill(now)]
        return self._grant_all(key) + self._fill(now)

    def failed(self, key: ModelKey, now: float) -> list[LoadAction[WaiterT]]:
        """A load has failed."""
        assert self._places[key].state is LoadState.LOADING
        del self._places[key]
        actions: list[LoadAction[WaiterT]] = []
        if self._serves(key):
            self._held_off[key] = now + self._limits.retry_s
            for waiter in self._queues.pop(key, OrderedDict()):
                del self._queue_of[waiter]
                actions.append(Refuse(waiter, _failed(key.name, self._limits.retry_s)))
        return actions + self._fill(now)

    def closed(self, key: ModelKey, now: float) -> list[LoadAction[WaiterT]]:
        """A model's resources were released."""
        assert self._places[key].state is LoadState.CLOSING
        del self._places[key]
        return self._fill(now)

    def next_deadline(self) -> float | None:
        """When to call `tick`, unless something else comes first."""
        times = [wait.until for queue in self._queues.values() for wait in queue.values()]
        if len(self._places) < 2 * self._max_loaded and self._wanting():
            times += [at for _, at in self._evictable()]
        return min(times, default=None)

    def tick(self, now: float) -> list[LoadAction[WaiterT]]:
        """Time has passed."""
        actions: list[LoadAction[WaiterT]] = []
        for key, queue in list(self._queues.items()):
            for waiter, wait in list(queue.items()):
                if wait.until <= now:
                    self._forget(waiter)
                    is_loading = key in self._places
                    actions.append(Refuse(waiter, _too_late(key.name, wait, is_loading=is_loading)))
        return actions + self._fill(now)

    def check_invariants(self) -> None:
        """Assert that the bounds hold and that the indexes agree."""
        places, limits = self._places, self._limits
        # One that is served again while a chat is still on it may be one too many.
        assert self._num_served_places() <= self._max_loaded or not self._evictable()
        assert len(places) <= 2 * self._max_loaded
        assert self.num_waiting <= limits.max_waiting
        waiting = {waiter: key for key, queue in self._queues.items() for waiter in queue}
        assert waiting == self._queue_of
        assert all(self._queues.values())
        for key in (*self._queues, *self._held_off):
            assert self._serves(key) and not self._is_loaded(key)
        for key, place in places.items():
            assert not place.num_users or place.state is LoadState.LOADED
            is_idle = place.state is LoadState.LOADED and not place.num_users
            assert self._serves(key) or not is_idle, "it ought to be unloaded"

    def _serves(self, key: ModelKey) -> bool:
        return self._served.get(key.name) == key

    def _is_loaded(self, key: ModelKey) -> bool:
        place = self._places.get(key)
        return place is not None and place.state is LoadState.LOADED

    def _num_served_places(self) -> int:
        """Places of models that new chats may get."""
        return sum(
            self._serves(key) and place.state is not LoadState.CLOSING
            for key, place in self._places.items()
        )

    def _use(self, key: ModelKey) -> None:
        self._places[key].num_users += 1
        self._places.move_to_end(key)

    def _is_full(self) -> bool:
        is_full = self._num_served_places() >= self._max_loaded
        return is_full or len(self._places) >= 2 * self._max_loaded

    def _load(self, key: ModelKey) -> Load:
        self._places[key] = _Place()
        self._held_off.pop(key, None)
        return Load(key)

    def _close(self, key: ModelKey, *, is_eviction: bool) -> Unload:
        self._places[key].state = LoadState.CLOSING
        return Unload(key, is_eviction)

    def _grant_all(self, key: ModelKey) -> list[LoadAction[WaiterT]]:
        self._held_off.pop(key, None)
        actions: list[LoadAction[WaiterT]] = []
        for waiter in self._queues.pop(key, OrderedDict()):
            del self._queue_of[waiter]
            self._use(key)
            actions.append(Grant(waiter, key))
        return actions

    def _move(self, queue: OrderedDict[WaiterT, _Wait], key: ModelKey) -> None:
        """Move chats that wait for an older definition to this one."""
        if not queue:
            return
        self._queues.setdefault(key, OrderedDict()).update(queue)
        for waiter in queue:
            self._queue_of[waiter] = key

    def _forget(self, waiter: WaiterT) -> None:
        key = self._queue_of.pop(waiter)
        del self._queues[key][waiter]
        if not self._queues[key]:
            del self._queues[key]

    def _wanting(self) -> list[ModelKey]:
        """Models that are waited for and not being loaded."""
        return [key for key in self._queues if key not in self._places]

    def _evictable(self) -> list[tuple[ModelKey, float]]:
        """Models without a chat that may give way, and from when on; the least recently used
        first."""
        return [
            (key, place.loaded_at + self._limits.min_loaded_s)
            for key, place in self._places.items()
            if place.state is LoadState.LOADED and not place.num_users
        ]

    def _fill(self, now: float) -> list[LoadAction[WaiterT]]:
        """Begin the loads for which there is room, or for which models can be evicted."""
        actions: list[LoadAction[WaiterT]] = []
        while self._num_served_places() > self._max_loaded and (idle := self._evictable()):
            actions.append(self._close(idle[0][0], is_eviction=True))
        for key in self._wanting():
            if len(self._places) >= 2 * self._max_loaded:
                break
            if self._num_served_places() >= self._max_loaded:
                ripe = [victim for victim, at in self._evictable() if at <= now]
                if not ripe:
                    break  # those behind wait too, or it would never have its turn
                actions.append(self._close(ripe[0], is_eviction=True))
            actions.append(self._load(key))
        return actions


def _removed(name: str) -> OutriderError:
    return UnknownModelError(f"the model {name} is not served here any more; ask for another one")


def _failed(name: str, wait_s: float) -> OutriderError:
    return UnavailableError(
        f"the model {name} cannot be loaded here at the moment; try again in {wait_s:.0f} s, or "
        "ask for another one",
        retry_delay_ms=max(1, round(wait_s * 1000)),
    )


def _too_many(num_waiting: int) -> OutriderError:
    return OverloadedError(
        f"{num_waiting} chats already wait for models to be loaded; try again",
        retry_delay_ms=_BUSY_RETRY_MS,
    )


def _too_late(name: str, wait: _Wait, *, is_loading: bool) -> OutriderError:
    why = "is still being loaded" if is_loading else "has no room until chats on others end"
    text = f"the model {name} {why}; try again, or ask for another one"
    if wait.is_deadline:
        return DeadlineError(f"the deadline passed: {text}")
    return OverloadedError(text, retry_delay_ms=_BUSY_RETRY_MS)
