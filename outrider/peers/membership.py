"""Which peers there should be, by what lookups answer, and which are to leave. Pure.

DNS blinks: a name server that restarts answers with an error or with nothing, and one record may
be missing from an answer. An established stream is better evidence than that. So a lookup that
fails changes nothing; an address that is missing from an answer leaves only when it has been
missing for a while, and then it drains, it is not cut off. An answer without any address is
doubtful: it takes away only what cannot be reached either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

MAX_MEMBERS: Final = 4096
"""Addresses kept of one target: an answer is no way to exhaust this process."""


@dataclass(frozen=True, slots=True)
class DiscoveryPolicy:
    """What the operator decides."""

    nameservers: tuple[str, ...] = ()
    """IP addresses with ports; empty: those of this machine."""
    interval_s: float = 5.0
    """Time between two lookups of one target, jittered."""
    grace_s: float = 15.0
    """A peer that is missing from the answers for so long is to leave."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What is to be done, in addresses."""

    joined: tuple[str, ...] = ()
    """New: connect to them."""
    returned: tuple[str, ...] = ()
    """They were to leave, and are found again before they were gone."""
    left: tuple[str, ...] = ()
    """No new sessions; `forget` them once they have none."""

    def __bool__(self) -> bool:
        return bool(self.joined or self.returned or self.left)


@dataclass(slots=True)
class _Member:
    targets: set[str]
    """That it was found by, at the last answer of each that found anything."""
    empty: set[str] = field(default_factory=set)
    """Those of them that found nothing at all since."""
    missing_since: float | None = None
    is_leaving: bool = False


class Membership:
    """The addresses of all targets of one kind of peer."""

    def __init__(self, grace_s: float) -> None:
        """An address that is missing for `grace_s` leaves."""
        self._grace_s = grace_s
        self._members: dict[str, _Member] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._members

    def answered(self, target: str, addresses: Iterable[str], now: float) -> Moves:
        """A lookup of `target` was answered, with these addresses."""
        found = sorted(set(addresses))[:MAX_MEMBERS]
        joined, returned = [], []
        for address in found:
            member = self._members.get(address)
            if member is None:
                self._members[address] = _Member({target})
                joined.append(address)
                continue
            member.targets.add(target)
            member.empty.discard(target)
            member.missing_since = None
            if member.is_leaving:
                member.is_leaving = False
                returned.append(address)
        self._miss(target, frozenset(found), now)
        return Moves(tuple(joined), tuple(returned))

    def expire(self, now: float, is_lost: Callable[[str], bool]) -> Moves:
        """What has been missing for long enough leaves now; `is_lost` tells of an address whether
        it cannot be reached."""
        left = [
            address
            for address, member in self._members.items()
            if member.missing_since is not None
            and not member.is_leaving
            and now - member.missing_since >= self._grace_s
            and (not member.targets or is_lost(address))
        ]
        for address in left:
            self._members[address].is_leaving = True
        return Moves(left=tuple(left))

    def forget(self, address: str) -> None:
        """It is gone; if it is found again it joins as a new one."""
        del self._members[address]

    def _miss(self, target: str, found: frozenset[str], now: float) -> None:
        for address, member in self._members.items():
            if address in found or target not in member.targets:
                continue
            if found:
                member.targets.discard(target)
                member.empty.discard(target)
            else:
                member.empty.add(target)
            if member.missing_since is None and member.targets == member.empty:
                member.missing_since = now
