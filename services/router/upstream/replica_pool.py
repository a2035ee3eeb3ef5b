"""The links to all replicas: those that are configured, and those that lookups find.

Both may come and go while the router runs. One that is removed gets no new sessions; its link ends
when its last session has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

import structlog

from outrider.peers.discovery import Discovery
from outrider.peers.membership import parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.tls import PLAINTEXT, Tls
from services.router.config import RouterConfig
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica
from services.router.relay.switch import Switch
from services.router.upstream.kv_events import KvEventSubscriber
from services.router.upstream.replica_link import ReplicaLink

log = structlog.get_logger()


class _Configured(NamedTuple):
    """A replica of [[router.replicas]]."""

    config: ReplicaConfig
    link: asyncio.Task[None]


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
        """The registry has the replicas of `config` already. Raises ConfigError."""
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
        self._wanted: dict[str, ReplicaConfig] = {}
        """The configured replicas as they should be, by name; none before `run`."""
        self._configured: dict[str, _Configured] = {}
        """Configured replicas that have a link, by name, including those that are to leave."""
        self._ending_names: set[str] = set()
        """Configured replicas whose link is ending."""
        self._replace_by: dict[str, float] = {}
        """Deadlines by name of replicas that are being replaced: then their last sessions have to
        move."""
        self._retry_at: dict[str, float] = {}
        """Times of the next attempt by name of replicas whose name was taken or whose link failed
        by a defect."""
        self._found: dict[str, Replica] = {}
        self._links: dict[str, asyncio.Task[None]] = {}
        """By address, of replicas that were found."""
        self._ending: set[str] = set()
        """Addresses of found replicas whose link is ending."""

    @property
    def is_settled(self) -> bool:
        """Whether every replica was looked up, and reached or tried in vain, once."""
        return self._discovery.is_settled and self._registry.is_settled()

    async def run(self) -> None:
        """Keep the links up for ever."""
        for config in self._config.replicas:
            self._wanted[config.name] = config
            self._link(config)
        try:
            await self._discovery.run()
        finally:
            self.stop()
            await asyncio.gather(*self._tasks(), return_exceptions=True)

    def stop(self) -> None:
        """End every link now, so that replicas receive nothing of the sessions that end with this
        router."""
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*(it.link for it in self._configured.values()), *self._links.values()]

    def tick(self) -> None:
        """End the links of replicas that leave, and connect configured ones that are new."""
        self._tick_configured()
        for address, replica in self._found.items():
            is_over = not replica.sessions or not replica.health.is_up
            if replica.is_leaving and is_over and address not in self._ending:
                self._ending.add(address)
                self._links[address].cancel()

    # --- what the configuration names ---

    def configure(self, replicas: Iterable[ReplicaConfig]) -> None:
        """Replace the list of configured replicas.

        A replica that is no longer listed leaves when its sessions have ended. If another one is
        listed under its name, it leaves within `drain_s`; then its remaining sessions move.
        """
        now = self._clock()
        self._wanted = {replica.name: replica for replica in replicas}
        self._retry_at.clear()
        for name, (config, _) in self._configured.items():
            wanted = self._wanted.get(name)
            if wanted == config:
                if self._registry[name].is_leaving and name not in self._ending_names:
                    self._replace_by.pop(name, None)
                    self._registry.stay(name, now)
                continue
            self._registry.leave(name, now, "it is not configured any more")
            if wanted is None:
                self._replace_by.pop(name, None)
            else:
                self._replace_by.setdefault(name, now + self._config.drain_s)
        self._tick_configured()

    def _tick_configured(self) -> None:
        """End links of replicas that have left, and connect those that are new."""
        now = self._clock()
        for name, (_, link) in self._configured.items():
            replica = self._registry[name]
            is_over = not replica.sessions or not replica.health.is_up
            is_late = now >= self._replace_by.get(name, now + 1.0)
            if replica.is_leaving and (is_over or is_late) and name not in self._ending_names:
                self._ending_names.add(name)
                link.cancel()
        for name, config in self._wanted.items():
            if name not in self._configured and now >= self._retry_at.get(name, now):
                self._connect(config, now)

    def _connect(self, config: ReplicaConfig, now: float) -> None:
        if (other := self._registry.find(config.name)) is not None:
            # A lookup found a replica that calls itself so. It keeps the name until it leaves.
            self._retry_at[config.name] = now + self._config.max_backoff_s
            log.warning(
                "replica_name_taken",
                replica=config.name,
                address=config.address,
                taken_by=other.address,
                source=other.source,
            )
            return
        self._registry.add(config, now)
        self._link(config)

    def _link(self, config: ReplicaConfig) -> None:
        """Connect a replica that the registry has."""
        link = self._start(self._registry[config.name])
        self._configured[config.name] = _Configured(config, link)
        link.add_done_callback(lambda ended: self._unlinked(config, ended))

    def _unlinked(self, config: ReplicaConfig, link: asyncio.Task[None]) -> None:
        if not link.cancelled() and (defect := link.exception()):
            # A defect costs this replica alone, and not for ever.
            log.error("replica_link_failed", address=config.address, exc_info=defect)
            self._retry_at[config.name] = self._clock() + self._config.max_backoff_s
        self._ending_names.discard(config.name)
        self._replace_by.pop(config.name, None)
        del self._configured[config.name]
        self._registry.remove(config.name)

    # --- what lookups find ---

    def joined(self, address: str, source: str) -> None:
        """A new replica."""
        replica = self._registry.discover(address, source, self._regions[source], self._clock())
        link = self._start(replica)
        self._found[address] = replica
        self._links[address] = link
        link.add_done_callback(lambda ended: self._gone(address, ended))

    def returned(self, address: str) -> None:
        """Keep a replica that was to leave and was found again. If its link is already ending, it
        joins again at the next lookup."""
        if address not in self._ending:
            self._registry.stay(self._found[address].name, self._clock())

    def is_lost(self, address: str) -> bool:
        """Whether its stream is down."""
        return not self._found[address].health.is_up

    def left(self, address: str) -> None:
        """One is not found any more."""
        self._registry.leave(self._found[address].name, self._clock(), "it is not found any more")

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
