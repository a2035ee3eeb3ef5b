"""Service discovery: looks targets up at intervals and keeps the set of peers current."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import structlog

from outrider.errors import UnavailableError
from outrider.peers.membership import DiscoveryPolicy, Lookup, Membership, MembershipChange, Target

log = structlog.get_logger()


class Resolver(Protocol):
    """Looks targets up."""

    async def addresses(self, target: Target) -> list[str]:
        """host:port of every peer that the target stands for. Raises UnavailableError if the
        question was not answered; an answer may be empty."""
        ...


class Follower(Protocol):
    """Receives the changes."""

    def joined(self, address: str, source: str) -> None:
        """A new peer at host:port, found by the target `source`."""
        ...

    def returned(self, address: str) -> None:
        """A peer that was to leave is found again."""
        ...

    def is_lost(self, address: str) -> bool:
        """Whether a peer cannot be reached."""
        ...

    def left(self, address: str) -> None:
        """A peer is not found any more: no new sessions, then `Discovery.forget`."""
        ...


class Discovery:
    """The lookups of one kind of peer, from `run` on."""

    def __init__(
        self,
        targets: Sequence[Target],
        follower: Follower,
        *,
        policy: DiscoveryPolicy,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        """Targets without a lookup join at `run`, once and for all. Raises ConfigError if there
        are others, and no name servers."""
        self._targets = targets
        self._follower = follower
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._resolver = _resolver(targets, policy)
        self._membership = Membership(policy.grace_s)
        self._unasked = {target.text for target in targets}
        self._silent: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether every target was looked up once, successfully or not."""
        return not self._unasked

    def forget(self, address: str) -> None:
        """A peer that left has no more sessions: drop it."""
        self._membership.forget(address)

    async def run(self) -> None:
        """Look up at intervals until cancelled. Each lookup also removes the peers whose `grace_s`
        is over."""
        loops: list[asyncio.Task[object]] = [asyncio.create_task(asyncio.Event().wait())]
        loops += [asyncio.create_task(self._follow(target)) for target in self._targets]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _follow(self, target: Target) -> None:
        while True:
            try:
                found = await self._look_up(target)
            except UnavailableError as error:
                self._complain(target, error.message)
            else:
                self._answered(target, found)
            self._apply(self._membership.expire(self._clock(), self._follower.is_lost), "")
            self._unasked.discard(target.text)
            if target.lookup is Lookup.NONE:
                return
            await asyncio.sleep(self._policy.interval_s * self._rng.uniform(0.8, 1.0))

    async def _look_up(self, target: Target) -> list[str]:
        if target.num_ports == 1 and target.lookup is Lookup.NONE:
            return [target.text]
        if self._resolver is None or target.lookup is Lookup.NONE:
            return _on_every_port([f"{target.host}:{target.port}"], target)
        return _on_every_port(await self._resolver.addresses(target), target)

    def _answered(self, target: Target, found: list[str]) -> None:
        if not found:
            self._complain(target, "no address was found")
        elif target.text in self._silent:
            log.info("peers_found", target=target.text, addresses=len(found))
            self._silent.discard(target.text)
        self._apply(self._membership.answered(target.text, found, self._clock()), target.text)

    def _apply(self, moves: MembershipChange, source: str) -> None:
        for address in moves.joined:
            self._follower.joined(address, source)
        for address in moves.returned:
            self._follower.returned(address)
        for address in moves.left:
            self._follower.left(address)

    def _complain(self, target: Target, why: str) -> None:
        """Log a failed lookup once until it succeeds again; known peers stay."""
        if target.text not in self._silent:
            self._silent.add(target.text)
            log.warning("peers_not_found", target=target.text, why=why)


def _on_every_port(found: Sequence[str], target: Target) -> list[str]:
    """The addresses, each at all ports of the target."""
    hosts = [address.rpartition(":") for address in found]
    return [
        f"{host}:{int(port) + more}" for host, _, port in hosts for more in range(target.num_ports)
    ]


def _resolver(targets: Sequence[Target], policy: DiscoveryPolicy) -> Resolver | None:
    """A resolver; None if no target needs DNS: most services do without the DNS library."""
    if all(target.lookup is Lookup.NONE for target in targets):
        return None
    from outrider.peers.resolver import DnsResolver

    return DnsResolver(policy.nameservers)
