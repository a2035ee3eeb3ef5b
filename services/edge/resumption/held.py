"""Chats that a client may come back to: by idempotency key, or by the token it was given, and
either only where it is who began the chat (services.edge.identity: the owner).

    ATTACHED --lost--> DETACHED --joined--> ATTACHED --done--> FINISHED --expired--> GONE

A chat whose client vanished goes on for `window_s`, and one that ended well is remembered for as
long: the same request with the same key gets the same reply and never runs twice. Both within
bounds, on their number and bytes; past them chats are given up as if nothing had been kept: the
oldest of whoever holds most (holders.py), of his finished ones first where bytes are short.

A token serves once: with each return there is another. The answer that brings it may be lost, so
the one before it holds until the new one is used, or acknowledged.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from typing import Generic, TypeVar

from outrider.errors import KeyReusedError
from services.edge.resumption.holders import Holder, Holders
from services.edge.resumption.journal import Journal

ChatT = TypeVar("ChatT")


class State(Enum):
    """Where a held chat stands."""

    ATTACHED = auto()
    DETACHED = auto()
    """It goes on, and nobody listens."""
    FINISHED = auto()
    """It ended well; its journal is kept."""
    GONE = auto()


class Input(Enum):
    """What happens to a held chat."""

    JOINED = auto()
    LOST = auto()
    DONE = auto()
    FAILED = auto()
    """It failed or was cancelled: the same request may run anew."""
    EXPIRED = auto()
    """Its time is over, or its room is needed."""


_A, _D, _F, _G = State.ATTACHED, State.DETACHED, State.FINISHED, State.GONE
TRANSITIONS: dict[tuple[State, Input], State] = {
    (_A, Input.JOINED): _A,
    (_A, Input.LOST): _D,
    (_A, Input.DONE): _F,
    (_A, Input.FAILED): _G,
    (_A, Input.EXPIRED): _A,
    (_D, Input.JOINED): _A,
    (_D, Input.LOST): _D,
    (_D, Input.DONE): _F,
    (_D, Input.FAILED): _G,
    (_D, Input.EXPIRED): _G,
    (_F, Input.JOINED): _F,
    (_F, Input.LOST): _F,
    (_F, Input.DONE): _F,
    (_F, Input.FAILED): _F,
    (_F, Input.EXPIRED): _G,
    **{(_G, event): _G for event in Input},
}
"""Every (state, input) has an entry."""


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """What is kept for clients that may come back."""

    window_s: float = 30.0
    """How long a chat goes on without its client, and how long it is remembered after its end."""
    max_detached: int = 256
    """Chats without their clients."""
    max_detached_each: int = 64
    """The same of one tenant, or of one client that belongs to none."""
    max_bytes: int = 16 << 20
    """Of the journals of detached and finished chats together."""


@dataclass(frozen=True, slots=True)
class Key:
    """What names a chat among all of an edge: nobody's key is another owner's."""

    owner: bytes
    request_id: str


@dataclass(slots=True, eq=False)
class Held(Generic[ChatT]):
    """One chat. Changed by the table alone."""

    key: Key
    holder: Holder
    """Among whose detached chats and bytes it counts."""
    digest: bytes
    """Of the request, without what may differ when it is sent again."""
    token: str = field(repr=False)
    """The latest."""
    journal: Journal
    chat: ChatT | None
    """None once it has ended."""
    state: State = State.ATTACHED
    expires_at: float = float("inf")
    num_bytes: int = 0
    """As last counted against the limits."""
    earlier: bytes | None = None
    """Name of the token before, while the client may not have the latest."""


@dataclass(slots=True)
class _Kept(Generic[ChatT]):
    """Of one holder, each from the oldest on."""

    finished: OrderedDict[Key, Held[ChatT]] = field(default_factory=OrderedDict)
    detached: OrderedDict[Key, Held[ChatT]] = field(default_factory=OrderedDict)


class HeldChats(Generic[ChatT]):
    """The table. Its verbs take `now` in seconds; those that may end chats return them, for the
    caller to cancel."""

    def __init__(self, limits: ResumeLimits) -> None:
        self._limits = limits
        self._by_key: dict[Key, Held[ChatT]] = {}
        # By a hash of the token: how long a look takes tells nothing of a token.
        self._by_token: dict[bytes, Held[ChatT]] = {}
        # Detached and finished ones, the next to expire first: all wait for the same time.
        self._waiting: OrderedDict[Key, Held[ChatT]] = OrderedDict()
        self._kept: dict[Holder, _Kept[ChatT]] = {}
        self._detached, self._bytes = Holders(), Holders()
        self._detached_each: Counter[str] = Counter()
        """By share, wherever its chats come from."""

    @property
    def num_detached(self) -> int:
        """Chats that go on without their clients."""
        return self._detached.total

    @property
    def num_bytes(self) -> int:
        """Of the journals of detached and finished chats."""
        return self._bytes.total

    @property
    def next_expiry(self) -> float | None:
        """When to call `expire`."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.expires_at

    def enter(
        self, key: Key, holder: Holder, digest: bytes, token: str, journal: Journal, chat: ChatT
    ) -> Held[ChatT]:
        """A chat begins. Its key must be free, as `find` told, and its token nobody's."""
        name = _name(token)
        assert key not in self._by_key and name not in self._by_token
        held = Held(key, holder, digest, token, journal, chat)
        self._by_key[key] = held
        self._by_token[name] = held
        return held

    def find(self, key: Key, digest: bytes) -> Held[ChatT] | None:
        """The chat that this request is about, if it is here. Raises KeyReusedError when its key
        was used for another request."""
        held = self._by_key.get(key)
        if held is not None and held.digest != digest:
            raise KeyReusedError(
                "this idempotency key was used for another request; take a new key for every "
                "request"
            )
        return held

    def by_token(self, token: str, owner: bytes, digest: bytes | None) -> Held[ChatT] | None:
        """The owner's chat that a resume token names, if it is still here. `digest`: of the
        request that came with it; None: none did. Raises KeyReusedError for another request."""
        held = self._by_token.get(_name(token))
        if held is None or held.key.owner != owner:
            return None
        if digest not in (None, held.digest):
            raise KeyReusedError("this resume token is another request's; send that, or a new chat")
        return held

    def renew(self, held: Held[ChatT], used: str, token: str) -> None:
        """Its client is back, by the token `used` or without one: from now on it has `token`."""
        latest, used_name = _name(held.token), _name(used)
        is_kept = used_name == held.earlier  # the latest never arrived
        kept = held.earlier if is_kept else latest
        for name in {latest, held.earlier} - {kept, None}:
            assert name is not None
            del self._by_token[name]
        held.earlier, held.token = kept, token
        self._by_token[_name(token)] = held

    def acknowledge(self, held: Held[ChatT]) -> None:
        """The latest token has arrived: the one before is void."""
        if held.earlier is not None and held.state is not State.GONE:
            del self._by_token[held.earlier]
        held.earlier = None

    def advance(self, held: Held[ChatT], event: Input, now: float) -> list[ChatT]:
        """Apply one input; the chats to cancel for want of room, perhaps this one."""
        after = TRANSITIONS[held.state, event]
        if after is held.state:
            return []
        self._leave(held)
        held.state = after
        if after is State.GONE:
            self._forget(held)
        elif after is not State.ATTACHED:
            self._wait(held, now)
        return self._make_room(held)

    def grew(self, held: Held[ChatT]) -> list[ChatT]:
        """A detached chat goes on: the chats to cancel for want of room."""
        if held.state is not State.DETACHED:
            return []
        self._count(held)
        return self._make_room(held)

    def expire(self, now: float) -> list[ChatT]:
        """Give up what has waited long enough: the chats to cancel."""
        late = []
        while (at := self.next_expiry) is not None and at <= now:
            late += self._end(next(iter(self._waiting.values())))
        return late

    def close(self) -> list[ChatT]:
        """Nobody can come back any more: the chats to cancel."""
        return [chat for held in list(self._waiting.values()) for chat in self._end(held)]

    def check_invariants(self) -> None:
        """Assert that the indexes and the counts agree, and that the limits hold."""
        held, limits = self._by_key.values(), self._limits
        names = {_name(h.token): h for h in held} | {h.earlier: h for h in held if h.earlier}
        assert names == self._by_token
        waiting = {h.key for h in held if h.state is not State.ATTACHED}
        assert waiting == set(self._waiting)
        detached = [h for h in held if h.state is State.DETACHED]
        each = Counter(h.holder.share for h in detached)
        assert each == self._detached_each
        assert self.num_detached == len(detached) <= limits.max_detached
        assert max(each.values(), default=0) <= limits.max_detached_each
        assert self.num_bytes == sum(h.num_bytes for h in self._waiting.values())
        assert self.num_bytes <= limits.max_bytes
        assert all(kept.finished or kept.detached for kept in self._kept.values())
        for of_one in ({h.key for h in k.finished.values()} for k in self._kept.values()):
            waiting -= of_one
        assert waiting == {h.key for h in detached}
        orders = [self._waiting, *(k.finished for k in self._kept.values())]
        for order in (*orders, *(k.detached for k in self._kept.values())):
            times = [h.expires_at for h in order.values()]
            assert times == sorted(times)

    def _wait(self, held: Held[ChatT], now: float) -> None:
        """It is detached or finished from now on."""
        kept = self._kept.setdefault(held.holder, _Kept())
        if held.state is State.FINISHED:
            held.chat = None
            kept.finished[held.key] = held
        else:
            kept.detached[held.key] = held
            self._detached.add(held.holder, 1)
            self._detached_each[held.holder.share] += 1
        held.expires_at = now + self._limits.window_s
        self._waiting[held.key] = held
        self._count(held)

    def _leave(self, held: Held[ChatT]) -> None:
        """It is no longer what it was."""
        if self._waiting.pop(held.key, None) is None:
            return
        kept, share = self._kept[held.holder], held.holder.share
        if kept.finished.pop(held.key, None) is None:
            del kept.detached[held.key]
            self._detached.add(held.holder, -1)
            self._detached_each[share] -= 1
            if not self._detached_each[share]:
                del self._detached_each[share]
        if not kept.finished and not kept.detached:
            del self._kept[held.holder]
        self._bytes.add(held.holder, -held.num_bytes)
        held.num_bytes = 0

    def _count(self, held: Held[ChatT]) -> None:
        self._bytes.add(held.holder, held.journal.num_bytes - held.num_bytes)
        held.num_bytes = held.journal.num_bytes

    def _make_room(self, newest: Held[ChatT]) -> list[ChatT]:
        limits, ended = self._limits, list[ChatT]()
        if self._detached_each[newest.holder.share] > limits.max_detached_each:
            ended += self._end(_oldest(self._kept[newest.holder].detached))
        while self.num_detached > limits.max_detached:
            ended += self._end(_oldest(self._kept[self._detached.first].detached))
        while self.num_bytes > limits.max_bytes:
            kept = self._kept[self._bytes.first]
            ended += self._end(_oldest(kept.finished or kept.detached))
        return ended

    def _end(self, held: Held[ChatT]) -> list[ChatT]:
        """Forget it whatever its state; what runs is to be cancelled."""
        self._leave(held)
        held.state = State.GONE
        self._forget(held)
        return [] if held.chat is None else [held.chat]

    def _forget(self, held: Held[ChatT]) -> None:
        del self._by_key[held.key]
        del self._by_token[_name(held.token)]
        if held.earlier is not None:
            del self._by_token[held.earlier]


def _oldest(chats: OrderedDict[Key, Held[ChatT]]) -> Held[ChatT]:
    return next(iter(chats.values()))


def _name(token: str) -> bytes:
    return blake2b(token.encode(), digest_size=16).digest()
