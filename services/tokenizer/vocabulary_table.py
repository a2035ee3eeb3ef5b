"""Which vocabularies are loaded, and which requests wait for one (pure).

    absent --asked for, or preloaded--> LOADING --loaded--> LOADED --evicted, or replaced--> absent
       ^----------- failed ---------------/

A request for a vocabulary that is being loaded waits for it, but not long. When all places are
taken, the least recently used vocabulary without a request is evicted; if every one has a request,
those for others are refused: a router has other tokenizers to ask. (An edge lets them wait:
`services/edge/models/table.py`.) A model whose definition changed is loaded anew beside the old
vocabularies. Requests that use these continue, and find them by digest, until the last one ends.

Methods return the actions to carry out, in this order. Times are in seconds on the clock of `now`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from outrider.errors import (
    OutriderError,
    OverloadedError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)

WaiterT = TypeVar("WaiterT")

_BUSY_RETRY_MS: Final = 500
_LOADING_RETRY_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class VocabularyLimits:
    """How many vocabularies are loaded, and how long requests wait for them."""

    max_loaded: int
    """Most models whose vocabularies are in memory; while requests on replaced ones end, as many of
    these."""
    max_wait_s: float = 2.0
    """Longest wait of a request for a vocabulary that is being loaded. Less than the 2.5 s for
    which a router waits for each of four tokenizers (a quarter of its `tokenize_timeout_s`): a
    tokenizer that has not answered by then is asked last from then on, whatever the model."""
    max_waiting: int = 64
    """Requests that wait for vocabularies at once: a stream answers 256 requests at a time, and
    those of other models need room there."""
    retry_s: float = 5.0
    """A vocabulary that could not be loaded is tried again when it is asked for after so long."""


class VocabularyKey(NamedTuple):
    """One load of a model's vocabularies: the current one, and those that the model had before."""

    model: str
    number: int
    """Every load has another one."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load these, and report `loaded` or `failed`."""

    key: VocabularyKey


@dataclass(frozen=True, slots=True)
class Unload:
    """Release vocabularies that are no longer used."""

    key: VocabularyKey


@dataclass(frozen=True, slots=True)
class Grant(Generic[WaiterT]):
    """This request uses the vocabulary of that digest until `release`."""

    waiter: WaiterT
    key: VocabularyKey
    digest: bytes


@dataclass(frozen=True, slots=True)
class Refuse(Generic[WaiterT]):
    """This request gets none."""

    waiter: WaiterT
    error: OutriderError


TableAction: TypeAlias = Load | Unload | Grant[WaiterT] | Refuse[WaiterT]


@dataclass(slots=True)
class _Place:
    """Vocabularies that are loaded, or being loaded."""

    digests: tuple[bytes, ...] = ()
    """The current one first; none while they are being loaded."""
    num_users: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether it may be unloaded: a thread that loads cannot be stopped."""
        return bool(self.digests) and not self.num_users


@dataclass(frozen=True, slots=True)
class _Wait:
    key: VocabularyKey
    digest: bytes
    until: float


@dataclass(frozen=True, slots=True)
class _HoldOff:
    """Why a model could not be loaded, and until when that is not tried again."""

    reason: str
    until: float


class VocabularyTable(Generic[WaiterT]):
    """The vocabularies of one tokenizer."""

    def __init__(self, models: Iterable[str], limits: VocabularyLimits) -> None:
        """`models`: at least one, the first is the default."""
        assert limits.max_loaded > 0
        self._limits = limits
        self._models = tuple(dict.fromkeys(models))
        self._places: OrderedDict[VocabularyKey, _Place] = OrderedDict()
        """The least recently used first."""
        self._current: dict[str, VocabularyKey] = {}
        """Vocabularies for new requests, by model. Places that are not here are replaced."""
        self._waiting: OrderedDict[WaiterT, _Wait] = OrderedDict()
        """All wait equally long, so the first one's time ends first."""
        self._held_off: dict[str, _HoldOff] = {}
        self._num_loads = 0

    def define(self, models: Iterable[str], changed: Collection[str]) -> list[TableAction[WaiterT]]:
        """Replace the models. Those of `changed` are loaded anew, new ones if there is room."""
        before, self._models = set(self._models), tuple(dict.fromkeys(models))
        self._held_off.clear()
        actions: list[TableAction[WaiterT]] = []
        for model in list(self._current):
            if model not in self._models or model in changed:
                key = self._current.pop(model)
                if self._places[key].is_idle:
                    actions.append(self._unload(key))
        for model in self._models:
            is_new = model not in before or model in changed
            if is_new and model not in self._current and not self._is_full():
                actions.append(self._load(model))
        return actions

    def preload(self) -> list[Load]:
        """Load as many as fit, the default first."""
        absent = [model for model in self._models if model not in self._current]
        room = self._limits.max_loaded - len(self._current)
        return [self._load(model) for model in absent[:room]]

    def ask(
        self, model: str, digest: bytes, waiter: WaiterT, now: float
    ) -> list[TableAction[WaiterT]]:
        """A request for a model, the default for "", with the vocabulary of that digest if one is
        given."""
        model = model or next(iter(self._models), "")
        replaced = self._replaced(model, digest)
        if replaced is not None:
            return [self._grant(waiter, replaced, digest)]
        if model not in self._models:
            return [Refuse(waiter, _unknown(model, self._models))]
        actions: list[TableAction[WaiterT]] = []
        key = self._current.get(model)
        if key is None:
            hold_off = self._held_off.get(model)
            if hold_off is not None and now < hold_off.until:
                return [Refuse(waiter, _unavailable(model, hold_off.reason, hold_off.until - now))]
            evicted = self._make_room()
            if evicted is None:
                return [Refuse(waiter, _full(self._limits.max_loaded))]
            load = self._load(model)
            key, actions = load.key, [*evicted, load]
        elif self._places[key].digests:
            return [self._answer(waiter, key, digest)]
        self._places.move_to_end(key)
        if len(self._waiting) >= self._limits.max_waiting:
            return [*actions, Refuse(waiter, _not_yet(model))]
        self._waiting[waiter] = _Wait(key, digest, now + self._limits.max_wait_s)
        return actions

    def release(self, key: VocabularyKey) -> list[TableAction[WaiterT]]:
        """A request that was granted these has ended."""
        place = self._places[key]
        assert place.num_users > 0
        place.num_users -= 1
        self._places.move_to_end(key)
        return self._unload_if_replaced(key)

    def leave(self, waiter: WaiterT) -> None:
        """A request stops waiting. A load that it caused continues."""
        self._waiting.pop(waiter, None)

    def loaded(self, key: VocabularyKey, digests: tuple[bytes, ...]) -> list[TableAction[WaiterT]]:
        """A load has succeeded; `digests`: at least one, of the current vocabulary first."""
        place = self._places[key]
        assert digests and not place.digests
        place.digests = digests
        actions: list[TableAction[WaiterT]] = [
            self._answer(waiter, key, digest) for waiter, digest in self._take_waiting(key)
        ]
        return actions + self._unload_if_replaced(key)

    def failed(self, key: VocabularyKey, reason: str, now: float) -> list[TableAction[WaiterT]]:
        """A load has failed; `reason` is for callers."""
        assert not self._places[key].digests
        del self._places[key]
        retry_s = self._limits.retry_s
        if self._is_current(key):
            del self._current[key.model]
            self._held_off[key.model] = _HoldOff(reason, now + retry_s)
        return [
            Refuse(waiter, _unavailable(key.model, reason, retry_s))
            for waiter, _ in self._take_waiting(key)
        ]

    def next_deadline(self) -> float | None:
        """When to call `tick`."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.until

    def tick(self, now: float) -> list[TableAction[WaiterT]]:
        """Time has passed."""
        late = [(waiter, wait) for waiter, wait in self._waiting.items() if wait.until <= now]
        for waiter, _ in late:
            del self._waiting[waiter]
        return [Refuse(waiter, _not_yet(wait.key.model)) for waiter, wait in late]

    def check_invariants(self) -> None:
        """Assert that the bounds hold and that the indexes agree."""
        limits = self._limits
        assert len(self._current) <= limits.max_loaded
        assert len(self._places) <= 2 * limits.max_loaded
        assert len(self._waiting) <= limits.max_waiting
        assert set(self._current) <= set(self._models)
        assert set(self._held_off) <= set(self._models) - set(self._current)
        for model, key in self._current.items():
            assert key.model == model and key in self._places
        for wait in self._waiting.values():
            assert not self._places[wait.key].digests, "it ought to be answered"
        for key, place in self._places.items():
            assert place.digests or not place.num_users
            assert not place.is_idle or self._is_current(key), "it ought to be unloaded"

    def _is_current(self, key: VocabularyKey) -> bool:
        return self._current.get(key.model) == key

    def _is_full(self) -> bool:
        has_no_place = len(self._current) >= self._limits.max_loaded
        return has_no_place or len(self._places) >= 2 * self._limits.max_loaded

    def _replaced(self, model: str, digest: bytes) -> VocabularyKey | None:
        """Replaced vocabularies that have this digest, unless the current ones have it too: a
        worker asks for what its part of a long text was begun with."""
        current = self._current.get(model)
        if not digest or (current is not None and digest in self._places[current].digests):
            return None
        for key, place in self._places.items():
            if key.model == model and key != current and digest in place.digests:
                return key
        return None

    def _make_room(self) -> list[TableAction[WaiterT]] | None:
        """Actions that free a place for another one; None if all are in use."""
        if not self._is_full():
            return []
        if len(self._current) < self._limits.max_loaded:
            return None  # replaced ones take the rest
        # A place that is replaced is never idle.
        idle = (key for key, place in self._places.items() if place.is_idle)
        if (oldest := next(idle, None)) is None:
            return None
        del self._current[oldest.model]
        return [self._unload(oldest)]

    def _load(self, model: str) -> Load:
        self._num_loads += 1
        key = self._current[model] = VocabularyKey(model, self._num_loads)
        self._places[key] = _Place()
        self._held_off.pop(model, None)
        return Load(key)

    def _unload(self, key: VocabularyKey) -> Unload:
        del self._places[key]
        return Unload(key)

    def _unload_if_replaced(self, key: VocabularyKey) -> list[TableAction[WaiterT]]:
        if self._is_current(key) or not self._places[key].is_idle:
            return []
        return [self._unload(key)]

    def _take_waiting(self, key: VocabularyKey) -> list[tuple[WaiterT, bytes]]:
        """Requests that waited for this load, with the digests that they asked for."""
        found = [(it, wait.digest) for it, wait in self._waiting.items() if wait.key == key]
        for waiter, _ in found:
            del self._waiting[waiter]
        return found

    def _answer(
        self, waiter: WaiterT, key: VocabularyKey, digest: bytes
    ) -> Grant[WaiterT] | Refuse[WaiterT]:
        """By loaded vocabularies."""
        digests = self._places[key].digests
        if digest and digest not in digests:
            return Refuse(waiter, _mismatch(key.model, ours=digests[0], theirs=digest))
        return self._grant(waiter, key, digest or digests[0])

    def _grant(self, waiter: WaiterT, key: VocabularyKey, digest: bytes) -> Grant[WaiterT]:
        self._places[key].num_users += 1
        self._places.move_to_end(key)
        return Grant(waiter, key, digest)


def _unknown(model: str, models: tuple[str, ...]) -> OutriderError:
    return UnknownModelError(
        f"no vocabulary of model {model[:100]!r} here; use {', '.join(models)}"
    )


def _unavailable(model: str, reason: str, wait_s: float) -> OutriderError:
    return VocabularyUnavailableError(
        f"the vocabulary of model {model} cannot be loaded here: {reason}",
        retry_delay_ms=max(1, round(wait_s * 1000)),
    )


def _not_yet(model: str) -> OutriderError:
    return VocabularyUnavailableError(
        f"the vocabulary of model {model} is being loaded here; try again in a moment",
        retry_delay_ms=_LOADING_RETRY_MS,
    )


def _full(max_loaded: int) -> OutriderError:
    return OverloadedError(
        f"all {max_loaded} vocabularies that may be loaded are in use; try again in a moment, or "
        "raise max_loaded_vocabularies",
        retry_delay_ms=_BUSY_RETRY_MS,
    )


def _mismatch(model: str, *, ours: bytes, theirs: bytes) -> OutriderError:
    return VocabularyMismatchError(
        f"vocabulary {theirs.hex()} of model {model} is not served here, {ours.hex()} is; use the "
        "model's own, or ask a tokenizer that has yours",
        metadata={"ours": ours.hex(), "theirs": theirs.hex()},
    )
