"""Chats that a client may come back to (pure). They are found by idempotency key, or by the resume
token the client was given, and either only by the chat's owner (services.edge.access.identity).

    ATTACHED --lost--> DETACHED --joined--> ATTACHED --done--> FINISHED --expired--> GONE

A chat whose client was lost runs for up to `window_s`, and one that ended well is remembered for as
long: the same request with the same key gets the same reply and never runs twice. Number and bytes
of these chats are bounded. Beyond the bounds, the oldest chat of whoever holds most (eviction.py)
is given up as if it had never been kept; if bytes are short, a finished one first.

A token serves once: each return brings another one. The answer that carries it may be lost, so the
token before it stays valid until the new one is used or acknowledged.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from outrider.bounds import NonNegativeFloat, NonNegativeInt
from outrider.errors import KeyReusedError
from services.edge.chat.eviction import EvictionKey, UsageRanking
from services.edge.chat.replay import ReplayLog

ChatT = TypeVar("ChatT")


class ResumableState(Enum):
    """State of a chat that a client may come back to."""

    ATTACHED = auto()
    DETACHED = auto()
    """It runs without its client."""
    FINISHED = auto()
    """It ended well; its log is kept."""
    GONE = auto()


class ResumableInput(Enum):
    """Events that change the state of such a chat."""

    JOINED = auto()
    LOST = auto()
    DONE = auto()
    FAILED = auto()
    """It failed or was cancelled: the same request may run anew."""
    EXPIRED = auto()
    """Its time is over, or its room is needed."""


TRANSITIONS: Final[dict[ResumableState, dict[ResumableInput, ResumableState]]] = {
    ResumableState.ATTACHED: {
        ResumableInput.JOINED: ResumableState.ATTACHED,
        ResumableInput.LOST: ResumableState.DETACHED,
        ResumableInput.DONE: ResumableState.FINISHED,
        ResumableInput.FAILED: ResumableState.GONE,
        ResumableInput.EXPIRED: ResumableState.ATTACHED,
    },
    ResumableState.DETACHED: {
        ResumableInput.JOINED: ResumableState.ATTACHED,
        ResumableInput.LOST: ResumableState.DETACHED,
        ResumableInput.DONE: ResumableState.FINISHED,
        ResumableInput.FAILED: ResumableState.GONE,
        ResumableInput.EXPIRED: ResumableState.GONE,
    },
    ResumableState.FINISHED: {
        ResumableInput.JOINED: ResumableState.FINISHED,
        ResumableInput.LOST: ResumableState.FINISHED,
        ResumableInput.DONE: ResumableState.FINISHED,
        ResumableInput.FAILED: ResumableState.FINISHED,
        ResumableInput.EXPIRED: ResumableState.GONE,
    },
    ResumableState.GONE: dict.fromkeys(ResumableInput, ResumableState.GONE),
}


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """How long and how much is kept for clients that may come back: table `[edge.resumption]`."""

    window_s: NonNegativeFloat = 30.0
    """How long a chat runs after its client's connection was lost, and is remembered after its end;
    0: it is cancelled at once, and not remembered."""
    max_detached: NonNegativeInt = 256
    """Most chats that run without their clients; those beyond are cancelled."""
    max_detached_each: NonNegativeInt = 64
    """The same of one tenant, or of one client that belongs to none."""
    max_bytes: NonNegativeInt = 16 << 20
    """Memory for texts and ids of detached and finished chats together."""


@dataclass(frozen=True, slots=True)
class ChatKey:
    """Names a chat within an edge; two owners may use the same request id."""

    owner: bytes
    request_id: str


@dataclass(slots=True, eq=False)
class ResumableChat(Generic[ChatT]):
    """One chat. Only the table changes it."""

    key: ChatKey
    eviction_key: EvictionKey
    """Under which its place and its bytes count while it waits for its client."""
    digest: bytes
    """Digest of the request, without fields that may differ when it is repeated."""
    token: str = field(repr=False)
    """The latest resume token."""
    log: ReplayLog
    chat: ChatT | None
    """None: it has ended."""
    state: ResumableState = ResumableState.ATTACHED
    expires_at: float = float("inf")
    num_bytes: int = 0
    """Bytes of its log, as last counted against the limits."""
    earlier: bytes | None = None
    """Hash of the token before, while the client may not have the latest."""
    model: str = ""
    """The name of the model that it is with; the digest leaves it out."""


@dataclass(slots=True)
class _WaitingChats(Generic[ChatT]):
    """Waiting chats of one eviction key, each kind in order of expiry."""

    finished: OrderedDict[ChatKey, ResumableChat[ChatT]] = field(default_factory=OrderedDict)
    detached: OrderedDict[ChatKey, ResumableChat[ChatT]] = field(default_factory=OrderedDict)


class ChatTable(Generic[ChatT]):
    """The table. Its verbs take `now` in seconds; those that may end chats return them, for the
    caller to cancel."""

    def __init__(self, limits: ResumeLimits) -> None:
        self._limits = limits
        self._by_key: dict[ChatKey, ResumableChat[ChatT]] = {}
        # By a hash of the token: the time of a lookup tells nothing of a token.
        self._by_token: dict[bytes, ResumableChat[ChatT]] = {}
        # Detached and finished ones, the next to expire first: all wait equally long.
        self._waiting: OrderedDict[ChatKey, ResumableChat[ChatT]] = OrderedDict()
        self._kept: dict[EvictionKey, _WaitingChats[ChatT]] = {}
        self._detached = UsageRanking()
        self._bytes = UsageRanking()
        self._detached_each: Counter[str] = Counter()
        """Detached chats by share, whatever their origins."""

    @property
    def num_detached(self) -> int:
        """Number of chats that run without their clients."""
        return self._detached.total

    @property
    def num_bytes(self) -> int:
        """Bytes of the logs of detached and finished chats."""
        return self._bytes.total

    @property
    def next_expiry(self) -> float | None:
        """When to call `expire`."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.expires_at

    def add(
        self,
        key: ChatKey,
        eviction_key: EvictionKey,
        digest: bytes,
        token: str,
        log: ReplayLog,
        chat: ChatT,
        model: str = "",
    ) -> ResumableChat[ChatT]:
        """Add a chat that begins. Its key must be free, as `find` reported, and its token
        unused."""
        name = _name(token)
        assert key not in self._by_key and name not in self._by_token
        entry = ResumableChat(key, eviction_key, digest, token, log, chat, model=model)
        self._by_key[key] = entry
        self._by_token[name] = entry
        return entry

    def find(self, key: ChatKey, digest: bytes) -> ResumableChat[ChatT] | None:
        """The chat that this request is about, if it is here. Raises KeyReusedError when its key
        was used for another request."""
        entry = self._by_key.get(key)
        if entry is not None and entry.digest != digest:
            raise KeyReusedError(
                "this idempotency key was used for another request; take a new key for every "
                "request"
            )
        return entry

    def by_key(self, key: ChatKey) -> ResumableChat[ChatT] | None:
        """The owner's chat with this request id, whatever its request says."""
        return self._by_key.get(key)

    def by_token(
        self, token: str, owner: bytes, digest: bytes | None
    ) -> ResumableChat[ChatT] | None:
        """The owner's chat that a resume token names, if it is still here. `digest`: of the
        request that came with it; None: none did. Raises KeyReusedError for another request."""
        entry = self._by_token.get(_name(token))
        if entry is None or entry.key.owner != owner:
            return None
        if digest not in (None, entry.digest):
            raise KeyReusedError("this resume token is another request's; send that, or a new chat")
        return entry

    def renew(self, entry: ResumableChat[ChatT], used: str, token: str) -> None:
        """Its client is back, by the token `used` or without one: from now on it has `token`."""
        latest = _name(entry.token)
        if entry.earlier is not None and _name(used) == entry.earlier:
            del self._by_token[latest]  # it never arrived: the earlier one stays valid
        else:
            if entry.earlier is not None:
                del self._by_token[entry.earlier]
            entry.earlier = latest
        entry.token = token
        self._by_token[_name(token)] = entry

    def acknowledge(self, entry: ResumableChat[ChatT]) -> None:
        """The latest token has arrived: the one before is void."""
        if entry.earlier is not None and entry.state is not ResumableState.GONE:
            del self._by_token[entry.earlier]
        entry.earlier = None

    def advance(
        self, entry: ResumableChat[ChatT], event: ResumableInput, now: float
    ) -> list[ChatT]:
        """Apply one input; returns the chats to cancel for want of room, which may include this
        one."""
        after = TRANSITIONS[entry.state][event]
        if after is entry.state:
            return []
        self._leave(entry)
        entry.state = after
        if after is ResumableState.GONE:
            self._forget(entry)
        elif after is not ResumableState.ATTACHED:
            self._wait(entry, now)
        return self._make_room(entry)

    def grew(self, entry: ResumableChat[ChatT]) -> list[ChatT]:
        """A detached chat committed something; returns the chats to cancel for want of room."""
        if entry.state is not ResumableState.DETACHED:
            return []
        self._count(entry)
        return self._make_room(entry)

    def expire(self, now: float) -> list[ChatT]:
        """Give up chats whose time is over; those to cancel."""
        late = []
        while (at := self.next_expiry) is not None and at <= now:
            late += self._end(next(iter(self._waiting.values())))
        return late

    def close(self) -> list[ChatT]:
        """Nobody can come back any more: the chats to cancel."""
        return [chat for entry in list(self._waiting.values()) for chat in self._end(entry)]

    def check_invariants(self) -> None:
        """Assert that the indexes and the counts agree, and that the limits hold."""
        limits = self._limits
        entries = self._by_key.values()
        names = {_name(entry.token): entry for entry in entries} | {
            entry.earlier: entry for entry in entries if entry.earlier
        }
        assert names == self._by_token
        waiting = {entry.key for entry in entries if entry.state is not ResumableState.ATTACHED}
        assert waiting == set(self._waiting)
        detached = [entry for entry in entries if entry.state is ResumableState.DETACHED]
        each = Counter(entry.eviction_key.share for entry in detached)
        assert each == self._detached_each
        assert self.num_detached == len(detached) <= limits.max_detached
        assert max(each.values(), default=0) <= limits.max_detached_each
        assert self.num_bytes == sum(entry.num_bytes for entry in self._waiting.values())
        assert self.num_bytes <= limits.max_bytes
        assert all(kept.finished or kept.detached for kept in self._kept.values())
        for of_one in ({entry.key for entry in k.finished.values()} for k in self._kept.values()):
            waiting -= of_one
        assert waiting == {entry.key for entry in detached}
        orders = [self._waiting, *(k.finished for k in self._kept.values())]
        for order in (*orders, *(k.detached for k in self._kept.values())):
            times = [entry.expires_at for entry in order.values()]
            assert times == sorted(times)

    def _wait(self, entry: ResumableChat[ChatT], now: float) -> None:
        """It is detached or finished from now on."""
        kept = self._kept.setdefault(entry.eviction_key, _WaitingChats())
        if entry.state is ResumableState.FINISHED:
            entry.chat = None
            kept.finished[entry.key] = entry
        else:
            kept.detached[entry.key] = entry
            self._detached.add(entry.eviction_key, 1)
            self._detached_each[entry.eviction_key.share] += 1
        entry.expires_at = now + self._limits.window_s
        self._waiting[entry.key] = entry
        self._count(entry)

    def _leave(self, entry: ResumableChat[ChatT]) -> None:
        """Take a chat out of the counts and order of its present state, which it is leaving."""
        if self._waiting.pop(entry.key, None) is None:
            return
        kept, share = self._kept[entry.eviction_key], entry.eviction_key.share
        if kept.finished.pop(entry.key, None) is None:
            del kept.detached[entry.key]
            self._detached.add(entry.eviction_key, -1)
            self._detached_each[share] -= 1
            if not self._detached_each[share]:
                del self._detached_each[share]
        if not kept.finished and not kept.detached:
            del self._kept[entry.eviction_key]
        self._bytes.add(entry.eviction_key, -entry.num_bytes)
        entry.num_bytes = 0

    def _count(self, entry: ResumableChat[ChatT]) -> None:
        self._bytes.add(entry.eviction_key, entry.log.num_bytes - entry.num_bytes)
        entry.num_bytes = entry.log.num_bytes

    def _make_room(self, newest: ResumableChat[ChatT]) -> list[ChatT]:
        limits = self._limits
        ended: list[ChatT] = []
        if self._detached_each[newest.eviction_key.share] > limits.max_detached_each:
            ended += self._end(_oldest(self._kept[newest.eviction_key].detached))
        while self.num_detached > limits.max_detached:
            ended += self._end(_oldest(self._kept[self._detached.largest].detached))
        while self.num_bytes > limits.max_bytes:
            kept = self._kept[self._bytes.largest]
            ended += self._end(_oldest(kept.finished or kept.detached))
        return ended

    def _end(self, entry: ResumableChat[ChatT]) -> list[ChatT]:
        """Forget a chat, whatever its state; returns the chat to cancel if it still runs."""
        self._leave(entry)
        entry.state = ResumableState.GONE
        self._forget(entry)
        return [] if entry.chat is None else [entry.chat]

    def _forget(self, entry: ResumableChat[ChatT]) -> None:
        del self._by_key[entry.key]
        del self._by_token[_name(entry.token)]
        if entry.earlier is not None:
            del self._by_token[entry.earlier]


def _oldest(chats: OrderedDict[ChatKey, ResumableChat[ChatT]]) -> ResumableChat[ChatT]:
    return next(iter(chats.values()))


def _name(token: str) -> bytes:
    return blake2b(token.encode(), digest_size=16).digest()
