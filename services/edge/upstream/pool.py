"""The routers of the regions, and a link to each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

import structlog

from outrider.errors import UnavailableError
from outrider.peers.discovery import Discovery
from outrider.peers.health import HealthPolicy
from outrider.peers.membership import DiscoveryPolicy, Target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.tls import PLAINTEXT, Tls
from services.edge.upstream.link import LinkPolicy, RouterLink
from services.edge.upstream.table import RouterTable, RouterTransition

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RouterPoolPolicy:
    """Which routers an edge uses, and how it judges them."""

    targets: tuple[Target, ...]
    link: LinkPolicy
    health: HealthPolicy
    discovery: DiscoveryPolicy
    return_s: float = 20.0
    """Chats wait for a router that was lost less than this ago: it may be back soon."""


class RouterPool:
    """The routers of this edge. `pick` chooses the one for the next session."""

    def __init__(
        self,
        policy: RouterPoolPolicy,
        *,
        clock: StallFreeClock,
        rng: Random,
        on_tick: Callable[[RouterTable, list[RouterTransition]], None],
        tls: Tls = PLAINTEXT,
    ) -> None:
        """`on_tick` is called with every tick of the clock, with the transitions since its last
        call. Raises ConfigError if targets cannot be looked up."""
        self.table = RouterTable(policy.health, rng)
        self._ranks = {target.text: rank for rank, target in enumerate(policy.targets)}
        self._discovery = Discovery(
            policy.targets, self, policy=policy.discovery, clock=clock, rng=rng
        )
        self._link_policy = policy.link
        self._return_s = policy.return_s
        self.clock = clock
        """Time while this process runs: it stops while the process is suspended."""
        self._rng = rng
        self._tls = tls
        self._on_tick = on_tick
        self._connected = asyncio.Event()
        self._links: dict[str, RouterLink] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        """The task of each link, by address."""
        self._own_jobs: list[asyncio.Task[None]] = []

    @property
    def links(self) -> tuple[RouterLink, ...]:
        """A link for every router that is known."""
        return tuple(self._links.values())

    @property
    def ready(self) -> bool:
        """Whether any router takes sessions."""
        return any(router.health.takes_sessions for router in self.table)

    @property
    def round_trip_s(self) -> float | None:
        """The round trip to the nearest router, in seconds; None: none was measured."""
        measured = [it.rtt.smoothed_ms for it in self.table if it.rtt.is_measured]
        return min(measured) / 1e3 if measured else None

    @property
    def may_return(self) -> bool:
        """Whether a router was lost a moment ago: one that can take sessions may be back soon."""
        return self.table.may_return(self._return_s, self.clock())

    async def wait_connected(self) -> None:
        """Return once a router has been reached for the first time."""
        await self._connected.wait()

    def pick(self, avoid: Collection[str] = ()) -> RouterLink:
        """The link for the next session, by RouterTable.pick. Raises UnavailableError if none is
        available, and has all links connect without further delay."""
        router = self.table.pick(avoid)
        if router is not None:
            return self._links[router.address]
        for link in self._links.values():
            link.hasten()
        stand = ", ".join(f"{router.address} {router.state.name}" for router in self.table)
        raise UnavailableError(
            f"no router can be reached ({stand or 'none was found'}); check that one runs",
            retry_delay_ms=1000,
        )

    def start(self) -> None:
        """Begin to look routers up and to connect."""
        self.clock.start()
        self._own_jobs = [
            asyncio.create_task(self._discovery.run()),
            asyncio.create_task(self._ticking()),
        ]

    async def stop(self) -> None:
        """Break every stream; open sessions get an error."""
        jobs = [*self._own_jobs, *self._jobs.values()]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        self._own_jobs = []
        self.clock.stop()

    # --- as the discovery's members ---

    def joined(self, address: str, source: str) -> None:
        """A new router."""
        self.table.add(address, source, self._ranks[source], self.clock())
        link = RouterLink(
            address,
            self.table,
            self._link_policy,
            clock=self.clock,
            rng=self._rng,
            on_connected=self._connected.set,
            tls=self._tls,
        )
        job = asyncio.create_task(link.run(), name=address)
        self._links[address], self._jobs[address] = link, job
        job.add_done_callback(lambda ended: self._gone(address, ended))

    def returned(self, address: str) -> None:
        """A router that was leaving is found again."""
        self.table.stay(address, self.clock())

    def is_lost(self, address: str) -> bool:
        """Whether its stream is down."""
        return not self.table[address].health.is_up

    def left(self, address: str) -> None:
        """A router is not found any more."""
        self.table.leave(address, self.clock())

    def _gone(self, address: str, job: asyncio.Task[None]) -> None:
        if not job.cancelled() and (defect := job.exception()):
            # A defect costs this router alone, until the next lookup finds it.
            log.error("router_link_failed", router=address, exc_info=defect)
        del self._links[address], self._jobs[address]
        self.table.remove(address)
        self._discovery.forget(address)

    async def _ticking(self) -> None:
        while True:
            self.table.expire(self.clock())
            for router in self.table:
                if router.is_leaving and not (router.num_sessions and router.health.is_up):
                    self._jobs[router.address].cancel()
            self._on_tick(self.table, self.table.take_transitions())
            await self.clock.next_tick()
