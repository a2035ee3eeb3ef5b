"""Prompts known to both ends of a stream, which can be named instead of sent again.

A returning chat's prompt is its last one, its reply, and a little more. A `PromptMemory` keeps
recent prompts by name, so that a sender can send "the first n ids of that one, then these". Both
ends derive the same names from the prompts sent over the stream. The receiver may have dropped a
prompt; it then answers so, and is sent the whole.

A name is a keyed BLAKE2b (RFC 7693) of the ids as little-endian u32. Its key, the *scope*, combines
the trust group's salt and the vocabulary, so that no group can name another group's prompts.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

NAME_BYTES: Final = 16
MIN_PREFIX_TOKENS: Final = 64
"""Shorter beginnings are sent in full: a name and its fields take some 20 bytes. Also the distance
between the places at which the beginnings of prompts are compared."""
_ID_BYTES: Final = 4
_STEP_BYTES: Final = MIN_PREFIX_TOKENS * _ID_BYTES
_MAX_NAMES: Final = 16
"""Most names of one prompt that grew turn by turn; the oldest are dropped."""
_ENTRY_BYTES: Final = 600
_NAME_COST_BYTES: Final = 250
_PLACE_COST_BYTES: Final = 200
"""Bytes of Python objects besides the ids, for each prompt, name and place, rounded up."""
_SCOPE_PART: Final = 4
"""One trust group has at most this part of the room, a fourth, while others want it."""

Unpack = Callable[[bytes], bytes]
"""Reads a reply that was kept as it came: its ids as little-endian u32; b"" if that cannot be."""


def as_bytes(ids: Sequence[int]) -> bytes:
    """Ids as little-endian u32."""
    return struct.pack(f"<{len(ids)}I", *ids)


def prompt_scope(cache_salt: bytes, vocabulary_digest: bytes) -> bytes:
    """The key of a trust group's names. A group without a salt has none: nothing is remembered of
    it, and b"" is returned."""
    if not cache_salt:
        return b""
    digest = blake2b(len(cache_salt).to_bytes(4, "little"), digest_size=32)
    digest.update(cache_salt + vocabulary_digest)
    return digest.digest()


def prompt_name(scope: bytes, ids: bytes) -> bytes:
    """The name of a prompt."""
    return blake2b(ids, key=scope, digest_size=NAME_BYTES).digest()


def reply_name(scope: bytes, prompt: bytes, num_tokens: int, checksum: int) -> bytes:
    """The name of the prompt of this name with its reply behind it, of so many tokens and with this
    checksum (SessionDone): a router need not read a reply to name it."""
    about = prompt + struct.pack("<II", num_tokens, checksum)
    return blake2b(about, key=scope, digest_size=NAME_BYTES, person=b"reply").digest()


class KnownPrefix(NamedTuple):
    """A beginning that the other end is believed to have."""

    name: bytes
    num_tokens: int


@dataclass(slots=True, eq=False)
class _Prompt:
    """One prompt, and those before it that it extends."""

    number: int
    ids: bytes = b""
    names: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    """Tokens that each name stands for, all of them beginnings of `ids`, and of the reply."""
    unread: tuple[bytes, bytes] | None = None
    """A name, and the reply behind `ids` that belongs to it, as it came."""
    places: set[bytes] = field(default_factory=set)
    charged_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the prompt, in bytes."""
        unread = len(self.unread[1]) if self.unread else 0
        names, places = len(self.names) * _NAME_COST_BYTES, len(self.places) * _PLACE_COST_BYTES
        return _ENTRY_BYTES + len(self.ids) + unread + names + places


@dataclass(slots=True, eq=False)
class _Scope:
    """Prompts of one trust group, the least recently used first."""

    prompts: OrderedDict[int, _Prompt] = field(default_factory=OrderedDict)
    by_name: dict[bytes, _Prompt] = field(default_factory=dict)
    by_place: dict[bytes, _Prompt] = field(default_factory=dict)
    """Digest of a beginning, every MIN_PREFIX_TOKENS -> the latest prompt that begins so."""
    num_bytes: int = 0


class PromptMemory:
    """Recent prompts, the least recently used forgotten first. Pure; not thread-safe."""

    def __init__(self, max_bytes: int, *, is_searched: bool = False) -> None:
        """`max_bytes`: 0 remembers nothing. `is_searched`: `longest` is asked of it."""
        self.max_bytes = max_bytes
        self._is_searched = is_searched
        self._scopes: OrderedDict[bytes, _Scope] = OrderedDict()
        self._next_number = 0
        self.num_bytes = 0
        """Approximate memory of everything kept, in bytes."""

    def __len__(self) -> int:
        return sum(len(scope.prompts) for scope in self._scopes.values())

    def remember(self, scope: bytes, name: bytes, ids: bytes, base: bytes = b"") -> None:
        """Keep a prompt under `name`. `base` names one that it may extend, which then takes no room
        of its own any more."""
        if not scope or len(ids) < _STEP_BYTES:
            return
        group = self._scopes.setdefault(scope, _Scope())
        prompt = group.by_name.get(name) or self._extended(group, base, ids)
        if prompt is None:
            self._next_number += 1
            prompt = group.prompts[self._next_number] = _Prompt(self._next_number)
        if len(ids) > len(prompt.ids):
            prompt.ids = ids
        _name(group, prompt, name, len(ids) // _ID_BYTES)
        if self._is_searched:
            self._add_places(group, prompt)
        self._use(scope, group, prompt)
        self._make_room(scope, group)

    def replied(
        self, scope: bytes, prompt_name: bytes, name: bytes, num_tokens: int, packed: bytes
    ) -> None:
        """The reply to the prompt of that name is over: both together are `name`. It is kept as it
        came, `packed`, and read when somebody wants it."""
        group = self._scopes.get(scope)
        prompt = group.by_name.get(prompt_name) if group else None
        if group is None or prompt is None or name in group.by_name:
            return
        length = prompt.names[prompt_name]
        if length * _ID_BYTES != len(prompt.ids):
            return  # another chat went on from there meanwhile
        _drop_unread(group, prompt)  # the reply of another run
        prompt.unread = name, packed
        _name(group, prompt, name, length + num_tokens)
        self._use(scope, group, prompt)
        self._make_room(scope, group)

    def prefix(self, scope: bytes, name: bytes, num_tokens: int, unpack: Unpack) -> bytes | None:
        """The first ids of the prompt of that name, as u32; None if it is not known, or not so
        long."""
        group = self._scopes.get(scope)
        prompt = group.by_name.get(name) if group else None
        if group is None or prompt is None or num_tokens > prompt.names[name]:
            return None
        if prompt.unread and prompt.unread[0] == name and num_tokens * _ID_BYTES > len(prompt.ids):
            reply = unpack(prompt.unread[1])
            if len(prompt.ids) + len(reply) == prompt.names[name] * _ID_BYTES:
                prompt.ids += reply
                prompt.unread = None
            else:
                _drop_unread(group, prompt)
        found = prompt.ids[: num_tokens * _ID_BYTES]
        self._use(scope, group, prompt)
        self._make_room(scope, group)
        return found if len(found) == num_tokens * _ID_BYTES else None

    def longest(self, scope: bytes, ids: bytes) -> KnownPrefix | None:
        """The longest beginning of `ids` that something remembered has too, in `is_searched`."""
        group = self._scopes.get(scope)
        if group is None:
            return None
        prompt, at = None, 0
        for end, place in _places(ids):
            if (found := group.by_place.get(place)) is None:
                break
            prompt, at = found, end
        if prompt is None:
            return None
        num_tokens = (at + _common_bytes(prompt.ids[at:], ids[at:])) // _ID_BYTES
        # The shortest that will do: of a reply the receiver may not know the end yet.
        names = [it for it in prompt.names.items() if it[1] >= num_tokens]
        return KnownPrefix(min(names, key=lambda it: it[1])[0], num_tokens) if names else None

    def forget(self, scope: bytes, name: bytes) -> None:
        """Drop a prompt that the peer does not know by this name."""
        group = self._scopes.get(scope)
        prompt = group.by_name.get(name) if group else None
        if group is not None and prompt is not None:
            self._drop(scope, group, prompt)

    def check_invariants(self) -> None:
        """Assert that the indexes and the counts agree, and keep to the bound."""
        assert self.num_bytes == sum(it.num_bytes for it in self._scopes.values())
        assert self.num_bytes <= self.max_bytes
        for group in self._scopes.values():
            prompts = group.prompts.values()
            assert prompts
            assert group.num_bytes == sum(it.num_bytes for it in prompts)
            assert all(it.charged_bytes == it.num_bytes for it in prompts)
            assert group.by_name == {name: it for it in prompts for name in it.names}
            assert group.by_place == {place: it for it in prompts for place in it.places}
            assert all(0 < len(it.names) <= _MAX_NAMES for it in prompts)

    def _extended(self, group: _Scope, base: bytes, ids: bytes) -> _Prompt | None:
        prompt = group.by_name.get(base)
        if prompt is None or not ids.startswith(prompt.ids):
            return None
        _drop_unread(group, prompt)  # the chat went on without it
        return prompt

    def _add_places(self, group: _Scope, prompt: _Prompt) -> None:
        for _, place in _places(prompt.ids):
            owner = group.by_place.get(place)
            if owner is prompt:
                continue
            if owner is not None:
                owner.places.remove(place)
                self._charge(group, owner)
            group.by_place[place] = prompt
            prompt.places.add(place)

    def _use(self, scope: bytes, group: _Scope, prompt: _Prompt) -> None:
        self._scopes.move_to_end(scope)
        group.prompts.move_to_end(prompt.number)
        self._charge(group, prompt)

    def _make_room(self, scope: bytes, group: _Scope) -> None:
        """Drop prompts until the limit holds: of this group if it has much, else of the least
        recently used group."""
        while self.num_bytes > self.max_bytes:
            is_greedy = group.num_bytes > self.max_bytes // _SCOPE_PART
            oldest = scope if is_greedy else next(iter(self._scopes))
            prompts = self._scopes[oldest].prompts
            self._drop(oldest, self._scopes[oldest], next(iter(prompts.values())))

    def _drop(self, scope: bytes, group: _Scope, prompt: _Prompt) -> None:
        del group.prompts[prompt.number]
        for name in prompt.names:
            del group.by_name[name]
        for place in prompt.places:
            del group.by_place[place]
        group.num_bytes -= prompt.charged_bytes
        self.num_bytes -= prompt.charged_bytes
        if not group.prompts:
            del self._scopes[scope]

    def _charge(self, group: _Scope, prompt: _Prompt) -> None:
        num_bytes = prompt.num_bytes
        grown = num_bytes - prompt.charged_bytes
        prompt.charged_bytes = num_bytes
        group.num_bytes += grown
        self.num_bytes += grown


def _name(group: _Scope, prompt: _Prompt, name: bytes, num_tokens: int) -> None:
    prompt.names[name] = num_tokens
    prompt.names.move_to_end(name)
    group.by_name[name] = prompt
    if len(prompt.names) > _MAX_NAMES:
        oldest, _ = prompt.names.popitem(last=False)
        del group.by_name[oldest]


def _drop_unread(group: _Scope, prompt: _Prompt) -> None:
    if prompt.unread is not None:
        name, _ = prompt.unread
        prompt.unread = None
        if prompt.names.pop(name, None) is not None:
            del group.by_name[name]


def _places(ids: bytes) -> Iterator[tuple[int, bytes]]:
    """End of each beginning that is compared, in bytes, and its digest."""
    place = b""
    for end in range(_STEP_BYTES, len(ids) + 1, _STEP_BYTES):
        place = blake2b(place + ids[end - _STEP_BYTES : end], digest_size=NAME_BYTES).digest()
        yield end, place


def _common_bytes(a: bytes, b: bytes) -> int:
    """Bytes of the ids that both begin with."""
    num_bytes = min(len(a), len(b))
    if a[:num_bytes] == b[:num_bytes]:
        return num_bytes
    ours = np.frombuffer(a, dtype="<u4", count=num_bytes // _ID_BYTES)
    theirs = np.frombuffer(b, dtype="<u4", count=num_bytes // _ID_BYTES)
    return int(np.argmax(ours != theirs)) * _ID_BYTES
