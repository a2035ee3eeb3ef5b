"""Which peers exist, by settings and the answers of lookups. Pure.

Targets as written in settings:

host:port            one peer; the name is resolved anew at every attempt to connect
host:port-port       one peer at each of these ports: the processes of one service
dns:host:port        every address that the name has (A, AAAA): a Kubernetes headless service; with
                     port-port each of the ports there
srv:_grpc._tcp.host  every host and port of the name's SRV records (RFC 2782)

Answers of DNS are sometimes incomplete: a name server that restarts answers with an error or with
nothing, and one record may be missing. An established stream is better evidence. So a lookup that
fails changes nothing; an address that is missing from the answers leaves only after `grace_s`, and
then drains rather than being cut off. An answer without any address removes only peers that cannot
be reached either.

An address belongs to the target that it joined by, from which a router has its region. Names may be
swapped, or an address given to another service: once one that cannot be reached is found by other
targets alone, it leaves at once, and joins anew by one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from outrider.bounds import NonNegativeFloat, PositiveFloat
from outrider.config import check_address
from outrider.errors import ConfigError


class Lookup(Enum):
    """How a target becomes addresses."""

    NONE = ""
    ADDRESSES = "dns"
    SERVICES = "srv"


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of a list of peers."""

    text: str
    """The target as written in settings; names it in logs and tables."""
    lookup: Lookup
    host: str
    port: int
    """0 if SRV records give the port."""
    num_ports: int = 1
    """Number of ports from `port` on."""


MAX_PORTS: Final = 64
"""Most ports of one target."""


def parse_target(text: str, where: str) -> Target:
    """Read a target. Raises ConfigError, naming the key `where`."""
    kind, _, rest = text.partition(":")
    if kind == Lookup.SERVICES.value and ":" not in rest:
        if not rest:
            raise ConfigError(f"{where} must be srv:NAME, not {text!r}")
        return Target(text, Lookup.SERVICES, rest, 0)
    lookup = Lookup.NONE
    if kind == Lookup.ADDRESSES.value and ":" in rest:
        lookup = Lookup.ADDRESSES
    else:
        rest = text
    first, dash, last = rest.rpartition("-")
    if not (dash and last.isdecimal()):
        first, last = rest, ""
    check_address(first, where)
    host, _, port = first.rpartition(":")
    num_ports = int(last) - int(port) + 1 if last else 1
    if not 1 <= num_ports <= MAX_PORTS:
        raise ConfigError(f"{where} has 1 to {MAX_PORTS} ports, the lowest first: not {text!r}")
    check_address(f"{host}:{last or port}", where)
    return Target(text, lookup, host, int(port), num_ports)


def join_host_port(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


MAX_MEMBERS: Final = 4096
"""Addresses kept of one target: an answer is no way to exhaust this process."""


@dataclass(frozen=True, slots=True)
class DiscoveryPolicy:
    """How peers are looked up: table `[edge.discovery]` or `[router.discovery]` of the settings."""

    nameservers: tuple[str, ...] = ()
    """DNS servers, as IP:PORT; empty: this machine's."""
    interval_s: PositiveFloat = 5.0
    """Time between two lookups of one target, jittered."""
    grace_s: NonNegativeFloat = 15.0
    """A peer that lookups have not found for this time gets no new sessions; running ones
    continue."""


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Addresses that joined, returned or left."""

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
    source: str
    """The target that it joined by."""
    targets: set[str]
    """Targets whose last nonempty answer contained it."""
    empty: set[str] = field(default_factory=set)
    """Targets in `targets` whose answers have been empty since."""
    missing_since: float | None = None
    is_leaving: bool = False
    has_moved: bool = False
    """It leaves because it belongs to another target now."""

    @property
    def is_of_others(self) -> bool:
        """Whether other targets have it, and not the one that it joined by."""
        return bool(self.targets) and self.source not in self.targets


class Membership:
    """The addresses of all targets of one kind of peer."""

    def __init__(self, grace_s: float) -> None:
        """An address that is missing for `grace_s` leaves."""
        self._grace_s = grace_s
        self._members: dict[str, _Member] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._members

    def answered(self, target: str, addresses: Iterable[str], now: float) -> MembershipChange:
        """A lookup of `target` was answered, with these addresses."""
        found = sorted(set(addresses))[:MAX_MEMBERS]
        joined, returned = [], []
        for address in found:
            member = self._members.get(address)
            if member is None:
                self._members[address] = _Member(target, {target})
                joined.append(address)
                continue
            member.targets.add(target)
            member.empty.discard(target)
            member.missing_since = None
            if member.is_leaving and not member.has_moved:
                member.is_leaving = False
                returned.append(address)
        self._miss(target, frozenset(found), now)
        return MembershipChange(tuple(joined), tuple(returned))

    def expire(self, now: float, is_lost: Callable[[str], bool]) -> MembershipChange:
        """Remove addresses that have been missing for `grace_s`, and lost ones that belong to other
        targets now; `is_lost` returns whether an address cannot be reached."""
        left = []
        for address, member in self._members.items():
            if member.is_leaving:
                continue
            if member.missing_since is not None:
                is_due = now - member.missing_since >= self._grace_s
                member.is_leaving = is_due and (not member.targets or is_lost(address))
            elif member.is_of_others:
                member.is_leaving = member.has_moved = is_lost(address)
            if member.is_leaving:
                left.append(address)
        return MembershipChange(left=tuple(left))

    def forget(self, address: str) -> None:
        """Drop an address that has left; if it is found again, it joins as a new one."""
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
