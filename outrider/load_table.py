"""A table of things that are slow to load: which are loaded, and who waits for one (pure).

    absent --somebody asks--> LOADING --loaded--> LOADED --evicted, or no longer defined--> CLOSING
       ^------- failed --------/                                     closed -> absent

A request for something that is not loaded waits for it; all that wait for one thing cause one load.
When all places are taken, the least recently used thing without a user is evicted. While every one
has a user, requests for others wait in order of arrival or are refused at once (`waits_for_room`).
A thing whose definition changed, or which is no longer served, takes no new users and is unloaded
after its last one.

Methods return the actions to carry out, in this order. Times are in seconds on the clock of `now`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeAlias, TypeVar

from outrider.bounds import NonNegativeFloat, NonNegativeInt
from outrider.fair_work.shares import Shares
from outrider.fair_work.turns import ANYBODY, Requester


class LoadKey(Hashable, Protocol):
    """One definition of one thing: another definition of the same name is another key."""

    @property
    def name(self) -> str:
        """Name under which it is requested."""
        ...


KeyT = TypeVar("KeyT", bound=LoadKey)
WaiterT = TypeVar("WaiterT")


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Bounds of waits for loads. Those of an edge's models are set in `[edge.loading]`."""

    max_waiting: NonNegativeInt = 256
    """Most that may wait for loads at once; for further ones, whoever has most waiting loses
    some."""
    max_wait_s: NonNegativeFloat = 60.0
    """Longest wait."""
    min_loaded_s: NonNegativeFloat = 10.0
    """Shortest time for which a loaded thing stays; without it, requests for one thing after
    another would keep loading."""
    retry_s: NonNegativeFloat = 5.0
    """After a failed load, requests for the same thing are refused for so long; the next one then
    starts another load."""


class LoadState(Enum):
    """State of a thing that takes a place."""

    LOADING = auto()
    LOADED = auto()
    CLOSING = auto()
    """It has no user; its resources are being released."""


class Refusal(Enum):
    """Reason of a refusal."""

    NOT_SERVED = auto()
    """Nothing of this name is served, or no longer."""
    FAILED = auto()
    """Its last load failed, less than `retry_s` ago."""
    TOO_MANY_WAITING = auto()
    """`max_waiting` wait already, and most of them are this one's."""
    STILL_LOADING = auto()
    """It was still being loaded when the wait ended."""
    IN_USE = auto()
    """All places have users."""


@dataclass(frozen=True, slots=True)
class Load(Generic[KeyT]):
    """Action: load this thing, then report `loaded` or `failed`."""

    key: KeyT


@dataclass(frozen=True, slots=True)
class Unload(Generic[KeyT]):
    """Action: release the resources of this thing, then report `closed`."""

    key: KeyT
    is_eviction: bool
    """Whether it is evicted to make room for another thing."""


@dataclass(frozen=True, slots=True)
class Grant(Generic[WaiterT, KeyT]):
    """Action: the waiter uses this thing from now on, until `release`."""

    waiter: WaiterT
    key: KeyT


@dataclass(frozen=True, slots=True)
class Refuse(Generic[WaiterT]):
    """This one does not get what it asked for."""

    waiter: WaiterT
    name: str
    why: Refusal
    retry_s: float = 0.0
    """Seconds until the load is tried again, if it failed."""
    reason: str = ""
    """The reason that was passed to `failed`."""
    is_deadline: bool = False
    """Whether the wait ended with the waiter's own deadline."""


LoadAction: TypeAlias = Load[KeyT] | Unload[KeyT] | Grant[WaiterT, KeyT] | Refuse[WaiterT]


@dataclass(slots=True)
class _Place:
    """State of a thing that takes a place."""

    state: LoadState = LoadState.LOADING
    num_users: int = 0
    loaded_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it may be closed: a load cannot be stopped."""
        return self.state is LoadState.LOADED and not self.num_users


@dataclass(frozen=True, slots=True, eq=False)
class _Wait(Generic[WaiterT]):
    waiter: WaiterT
    until: float
    is_deadline: bool
    """Whether it ends with the waiter's own deadline."""
    requester: Requester
    number: int
    """In order of arrival."""
    size: int = 0
    """Waiters are bounded in number alone."""


@dataclass(frozen=True, slots=True)
class _HoldOff:
    until: float
    reason: str


class LoadTable(Generic[KeyT, WaiterT]):
    """A table of at most `max_loaded` served things, and, while users of older definitions end, as
    many that are no longer served."""

    def __init__(self, max_loaded: int, limits: LoadLimits, *, waits_for_room: bool = True) -> None:
        """`waits_for_room`: whether requests wait if all places have users; otherwise they are
        refused at once."""
        assert max_loaded > 0
        self._max_loaded = max_loaded
        self._limits = limits
        self._waits_for_room = waits_for_room
        self._served: dict[str, KeyT] = {}
        """Served keys by name, in the order in which they were defined."""
        self._places: OrderedDict[KeyT, _Place] = OrderedDict()
        """Places by key, the least recently used first."""
        self._queues: OrderedDict[KeyT, OrderedDict[WaiterT, _Wait[WaiterT]]] = OrderedDict()
        """Waiters by key; the key requested first comes first."""
        self._queue_of: dict[WaiterT, KeyT] = {}
        self._shares: Shares[_Wait[WaiterT]] = Shares()
        """Of those who wait."""
        self._num_asked = 0
        self._held_off: dict[KeyT, _HoldOff] = {}
        """Keys whose load failed, each with the time of the next attempt."""

    @property
    def num_waiting(self) -> int:
        """Waiters of all keys."""
        return len(self._queue_of)

    def served(self, name: str) -> KeyT | None:
        """The definition that requests for this name get."""
        return self._served.get(name)

    def define(self, keys: Iterable[KeyT], now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """Replace the set of served keys."""
        before, self._served = self._served, {key.name: key for key in keys}
        actions: list[LoadAction[KeyT, WaiterT]] = []
        for old in before.values():
            if (new := self._served.get(old.name)) == old:
                continue
            self._held_off.pop(old, None)
            queue = self._queues.pop(old, OrderedDict())
            if new is not None:
                self._move(queue, new)
                continue
            for wait in queue.values():
                self._left(wait)
                actions.append(Refuse(wait.waiter, old.name, Refusal.NOT_SERVED))
        for key, place in self._places.items():
            if place.is_idle and not self._serves(key):
                actions.append(self._close(key, is_eviction=False))
        for key in [key for key in self._queues if self._is_loaded(key)]:
            actions += self._grant_all(key)  # it was defined so before, and has users still
        return actions + self._fill(now)

    def ask(
        self,
        name: str,
        waiter: WaiterT,
        now: float,
        patience_s: float | None = None,
        requester: Requester = ANYBODY,
    ) -> list[LoadAction[KeyT, WaiterT]]:
        """Request the thing of this name. `patience_s`: seconds until the waiter's own deadline;
        None: it has none. `requester`: with whom the places to wait are shared."""
        key = self._served.get(name)
        if key is None:
            return [Refuse(waiter, name, Refusal.NOT_SERVED)]
        if self._is_loaded(key):
            self._use(key)
            return [Grant(waiter, key)]
        hold_off = self._held_off.get(key)
        if hold_off is not None and now < hold_off.until:
            wait_s = hold_off.until - now
            return [Refuse(waiter, name, Refusal.FAILED, wait_s, hold_off.reason)]
        longest_s = self._limits.max_wait_s
        is_deadline = patience_s is not None and patience_s < longest_s
        wait_s = patience_s if patience_s is not None and is_deadline else longest_s
        self._num_asked += 1
        wait = _Wait(waiter, now + wait_s, is_deadline, requester, self._num_asked)
        given_up = self._shares.admit(wait, self._limits.max_waiting, math.inf)
        if given_up is None:
            return [*self._fill(now, key), Refuse(waiter, name, Refusal.TOO_MANY_WAITING)]
        actions: list[LoadAction[KeyT, WaiterT]] = []
        for lost in given_up:
            self._shares.add(lost)  # until it is forgotten
            theirs = self._queue_of[lost.waiter].name
            self._forget(lost.waiter)
            actions.append(Refuse(lost.waiter, theirs, Refusal.TOO_MANY_WAITING))
        self._queue_of[waiter] = key
        self._queues.setdefault(key, OrderedDict())[waiter] = wait
        actions += self._fill(now)
        if not self._waits_for_room and key not in self._places:
            self._forget(waiter)
            actions.append(Refuse(waiter, name, Refusal.IN_USE))
        return actions

    def preload(self, name: str) -> list[LoadAction[KeyT, WaiterT]]:
        """Load the thing of this name if there is room, without a request."""
        key = self._served[name]
        if key in self._places or self._wanting() or self._is_full():
            return []
        return [self._load(key)]

    def use(self, name: str) -> KeyT | None:
        """The key of this name, in use until `release`; None if it is not loaded."""
        key = self._served.get(name)
        if key is None or not self._is_loaded(key):
            return None
        self._use(key)
        return key

    def use_again(self, key: KeyT) -> None:
        """Add a user of this key until `release`; it may be an older definition. The key has to be
        loaded, and served or in use."""
        assert self._is_loaded(key)
        self._use(key)

    def release(self, key: KeyT, now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """Record that a user of this key has ended."""
        place = self._places[key]
        assert place.state is LoadState.LOADED and place.num_users > 0
        place.num_users -= 1
        self._places.move_to_end(key)
        if place.num_users:
            return []
        actions: list[LoadAction[KeyT, WaiterT]] = []
        if not self._serves(key):
            actions.append(self._close(key, is_eviction=False))
        return actions + self._fill(now)

    def leave(self, waiter: WaiterT, now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """Record that a waiter stops waiting. A load that it caused continues."""
        if waiter not in self._queue_of:
            return []
        self._forget(waiter)
        return self._fill(now)

    def loaded(self, key: KeyT, now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """Record that a load has succeeded."""
        place = self._places[key]
        assert place.state is LoadState.LOADING
        place.state = LoadState.LOADED
        place.loaded_at = now
        self._places.move_to_end(key)
        if not self._serves(key):
            return [self._close(key, is_eviction=False), *self._fill(now)]
        return self._grant_all(key) + self._fill(now)

    def failed(self, key: KeyT, now: float, reason: str = "") -> list[LoadAction[KeyT, WaiterT]]:
        """Record that a load has failed; `reason` is passed on to the refused waiters."""
        assert self._places[key].state is LoadState.LOADING
        del self._places[key]
        actions: list[LoadAction[KeyT, WaiterT]] = []
        if self._serves(key):
            retry_s = self._limits.retry_s
            self._held_off[key] = _HoldOff(now + retry_s, reason)
            for wait in self._queues.pop(key, OrderedDict()).values():
                self._left(wait)
                actions.append(Refuse(wait.waiter, key.name, Refusal.FAILED, retry_s, reason))
        return actions + self._fill(now)

    def closed(self, key: KeyT, now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """Record that the resources of this key are released."""
        assert self._places[key].state is LoadState.CLOSING
        del self._places[key]
        return self._fill(now)

    def next_deadline(self) -> float | None:
        """Time at which to call `tick`, unless another method is called first."""
        times = [wait.until for queue in self._queues.values() for wait in queue.values()]
        if len(self._places) < 2 * self._max_loaded and self._wanting():
            times += [at for _, at in self._evictable()]
        return min(times, default=None)

    def tick(self, now: float) -> list[LoadAction[KeyT, WaiterT]]:
        """End waits that are over, and evict what may be evicted by now."""
        actions: list[LoadAction[KeyT, WaiterT]] = []
        for key, queue in list(self._queues.items()):
            for waiter, wait in list(queue.items()):
                if wait.until <= now:
                    self._forget(waiter)
                    why = Refusal.STILL_LOADING if key in self._places else Refusal.IN_USE
                    late = Refuse(waiter, key.name, why, is_deadline=wait.is_deadline)
                    actions.append(late)
        return actions + self._fill(now)

    def check_invariants(self) -> None:
        """Assert that the bounds hold and that the indexes agree."""
        places, limits = self._places, self._limits
        # One that is served again while it still has a user may be one too many.
        assert self._num_served_places() <= self._max_loaded or not self._evictable()
        assert len(places) <= 2 * self._max_loaded
        assert self.num_waiting <= limits.max_waiting
        waiting = {waiter: key for key, queue in self._queues.items() for waiter in queue}
        assert waiting == self._queue_of and len(waiting) == self._shares.count
        assert all(self._queues.values())
        for key in (*self._queues, *self._held_off):
            assert self._serves(key) and not self._is_loaded(key)
        for key, place in places.items():
            assert not place.num_users or place.state is LoadState.LOADED
            assert self._serves(key) or not place.is_idle, "it ought to be unloaded"

    def _serves(self, key: KeyT) -> bool:
        return self._served.get(key.name) == key

    def _is_loaded(self, key: KeyT) -> bool:
        place = self._places.get(key)
        return place is not None and place.state is LoadState.LOADED

    def _num_served_places(self) -> int:
        """Number of places of keys that requests may still get."""
        return sum(
            self._serves(key) and place.state is not LoadState.CLOSING
            for key, place in self._places.items()
        )

    def _use(self, key: KeyT) -> None:
        self._places[key].num_users += 1
        self._places.move_to_end(key)

    def _is_full(self) -> bool:
        is_full = self._num_served_places() >= self._max_loaded
        return is_full or len(self._places) >= 2 * self._max_loaded

    def _load(self, key: KeyT) -> Load[KeyT]:
        self._places[key] = _Place()
        self._held_off.pop(key, None)
        return Load(key)

    def _close(self, key: KeyT, *, is_eviction: bool) -> Unload[KeyT]:
        self._places[key].state = LoadState.CLOSING
        return Unload(key, is_eviction)

    def _grant_all(self, key: KeyT) -> list[LoadAction[KeyT, WaiterT]]:
        self._held_off.pop(key, None)
        actions: list[LoadAction[KeyT, WaiterT]] = []
        for wait in self._queues.pop(key, OrderedDict()).values():
            self._left(wait)
            self._use(key)
            actions.append(Grant(wait.waiter, key))
        return actions

    def _move(self, queue: OrderedDict[WaiterT, _Wait[WaiterT]], key: KeyT) -> None:
        """Move those that wait for an older definition to this one."""
        if not queue:
            return
        self._queues.setdefault(key, OrderedDict()).update(queue)
        for waiter in queue:
            self._queue_of[waiter] = key

    def _forget(self, waiter: WaiterT) -> None:
        key = self._queue_of[waiter]
        self._left(self._queues[key].pop(waiter))
        if not self._queues[key]:
            del self._queues[key]

    def _left(self, wait: _Wait[WaiterT]) -> None:
        """It waits no longer, and is in no queue."""
        del self._queue_of[wait.waiter]
        self._shares.remove(wait)

    def _wanting(self) -> list[KeyT]:
        """Keys that are waited for and not being loaded."""
        return [key for key in self._queues if key not in self._places]

    def _evictable(self) -> list[tuple[KeyT, float]]:
        """Keys without a user, each with the time from which it may be evicted; the least recently
        used first."""
        return [
            (key, place.loaded_at + self._limits.min_loaded_s)
            for key, place in self._places.items()
            if place.is_idle
        ]

    def _fill(self, now: float, *more: KeyT) -> list[LoadAction[KeyT, WaiterT]]:
        """Begin the loads for which there is room, or for which others can be evicted: those that
        are waited for, then `more`."""
        actions: list[LoadAction[KeyT, WaiterT]] = []
        while self._num_served_places() > self._max_loaded and (idle := self._evictable()):
            actions.append(self._close(idle[0][0], is_eviction=True))
        for key in (*self._wanting(), *(key for key in more if key not in self._places)):
            if len(self._places) >= 2 * self._max_loaded:
                break
            if self._num_served_places() >= self._max_loaded:
                ripe = [victim for victim, at in self._evictable() if at <= now]
                if not ripe:
                    break  # those behind wait too, or it would never have its turn
                actions.append(self._close(ripe[0], is_eviction=True))
            actions.append(self._load(key))
        return actions
