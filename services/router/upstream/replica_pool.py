"""The links to all replicas: those that are configured, and those that lookups find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import structlog

from outrider.peers.discovery import Discovery
from outrider.peers.membership import parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.tls import PLAINTEXT, Tls
from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica
from services.router.relay.switch import Switch
from services.router.upstream.kv_events import KvEventSubscriber
from services.router.upstream.replica_link import ReplicaLink

log = structlog.get_logger()


class ReplicaPool:
    """Starts a link for every replica there should be, and ends it when the replica has left and
    has no sessions of this router any more."""

    def __init__(
        self,
        config: RouterConfig,
        registry: Registry,
        switch: Switch,
        subscribe: Callable[[], KvEventSubscriber],
        *,
        clock: StallFreeClock,
        rng: Random,
        tls: Tls = PLAINTEXT,
    ) -> None:
        """The registry has the configured replicas already. Raises ConfigError."""
        self._subscribe = subscribe
        self._config = config
        self._registry = registry
        self._switch = switch
        self._clock = clock
        self._rng = rng
        self._tls = tls
        targets = [
            parse_target(it.target, "each of replica_targets") for it in config.replica_targets
        ]
        self._regions = {it.target: it.region for it in config.replica_targets}
        self._discovery = Discovery(targets, self, policy=config.discovery, clock=clock, rng=rng)
        self._found: dict[str, Replica] = {}
        self._links: dict[str, asyncio.Task[None]] = {}
        """By address, of replicas that were found."""
        self._ending: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether every replica was looked up, and reached or tried in vain, once."""
        return self._discovery.is_settled and self._registry.is_settled()

    async def run(self) -> None:
        """Keep the links up for ever."""
        jobs = [self._start(replica) for replica in self._registry if not replica.source]
        jobs.append(asyncio.create_task(self._discovery.run()))
        try:
            await asyncio.gather(*jobs)
        finally:
            jobs += self._links.values()
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def tick(self) -> None:
        """What passes with time alone."""
        self._discovery.tick()
        for address, replica in self._found.items():
            is_over = not replica.sessions or not replica.health.is_up
            if replica.is_leaving and is_over and address not in self._ending:
                self._ending.add(address)
                self._links[address].cancel()

    # --- what lookups find ---

    def joined(self, address: str, source: str) -> None:
        """A new replica."""
        replica = self._registry.discover(address, source, self._regions[source], self._clock())
        link = self._start(replica)
        self._found[address] = replica
        self._links[address] = link
        link.add_done_callback(lambda ended: self._gone(address, ended))

    def returned(self, address: str) -> None:
        """One that was to leave is found again. One whose link is ending already joins again with
        the next lookup."""
        if address not in self._ending:
            self._registry.stay(self._found[address].name, self._clock())

    def is_lost(self, address: str) -> bool:
        """Whether its stream is down."""
        return not self._found[address].health.is_up

    def left(self, address: str) -> None:
        """One is not found any more."""
        self._registry.leave(self._found[address].name, self._clock())

    def _start(self, replica: Replica) -> asyncio.Task[None]:
        link = ReplicaLink(
            replica,
            self._config,
            self._registry,
            self._switch,
            self._subscribe(),
            clock=self._clock,
            rng=self._rng,
            tls=self._tls,
        )
        return asyncio.create_task(link.run())

    def _gone(self, address: str, link: asyncio.Task[None]) -> None:
        if not link.cancelled() and (defect := link.exception()):
            # A defect costs this replica alone, until the next lookup finds it.
            log.error("replica_link_failed", address=address, exc_info=defect)
        self._ending.discard(address)
        del self._links[address]
        self._registry.remove(self._found.pop(address).name)
        self._discovery.forget(address)
