"""The router as a whole: builds the parts, runs them, drains them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final

import structlog

from outrider.peers.health import HealthPolicy, PeerState, QuarantinePolicy
from outrider.peers.membership import parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.process import Ports
from outrider.rpc import HealthControl, add_health, bind, make_server
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import router_pb2, router_pb2_grpc
from services.router.admitting import Admitting
from services.router.config import RouterConfig
from services.router.deciding import Deciding
from services.router.explain import Explainer
from services.router.fleet.geography import Geography
from services.router.fleet.registry import FleetPolicy, Registry
from services.router.relay.dispatch import Dispatch
from services.router.relay.journal import Journal
from services.router.relay.sessions import RelayLimits, SessionTable
from services.router.relay.survival.budget import MovePolicy
from services.router.relay.survival.moves import Moves
from services.router.relay.survival.silence import Silence, SilencePolicy
from services.router.relay.survival.watch import Watch
from services.router.relay.switch import Switch, Up
from services.router.service import Intake, RouterService
from services.router.upstream.fleet import Fleet
from services.router.upstream.metrics import FleetMetrics
from services.router.upstream.tokenizers import TokenizerPool

SERVICE: Final = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
_TICK_S: Final = 0.1

_log = structlog.get_logger()


class Router:
    """One router's parts, wired together."""

    def __init__(self, config: RouterConfig, tls: Tls = PLAINTEXT) -> None:
        self.config = config
        self.tls = tls
        self.clock = StallFreeClock()
        self.metrics = Metrics("router")
        self.registry = _registry(config, self.clock())
        self.table: SessionTable[Up] = SessionTable(_limits(config))
        self.rng = Random(config.seed or None)
        self.deciding = Deciding(config, self.registry, self.rng)
        self.journal = Journal(self.metrics, time.perf_counter, self.deciding.history)
        self.tokenizers = _pool(config, self.clock, self.rng, tls)
        self.intake = Intake(self.tokenizers, self.registry, clock=self.clock)
        self.hurry = asyncio.Event()
        """Set when sessions that wait should try again before the next tick."""
        self.switch = self._make_switch()
        self.settled = asyncio.Event()
        """Set once every replica was reached, or tried in vain."""
        self.idle = asyncio.Event()
        """Set by the next tick that finds no session."""
        self.fleet_metrics = FleetMetrics(self.metrics)
        self.fleet = Fleet(
            config,
            self.registry,
            self.switch,
            self.deciding.watch,
            clock=self.clock,
            rng=self.rng,
            tls=tls,
        )

    def _make_switch(self) -> Switch:
        deciding = self.deciding
        dispatch = Dispatch(
            self.table, self.registry, self.journal, deciding.placement, deciding.prompts
        )
        self.admitting = Admitting(self.config, self.table, dispatch, self.registry, self.metrics)
        moves = Moves(self.table, dispatch, self.journal, _move_policy(self.config))
        silence = Silence(_silence_policy(self.config))
        return Switch(
            self.table,
            dispatch,
            self.journal,
            self.admitting.entry,
            Watch(self.table, dispatch, self.registry, moves, silence, self.admitting.admission),
            moves,
            default_model=self.config.default_model,
            tokenize=lambda session: self.intake.start(self.switch, session),
            hurry=self.hurry.set,
        )

    def readiness(self) -> tuple[bool, str]:
        """For the admin port: ready while one replica is."""
        counts = self.registry.count()
        text = ", ".join(f"{count} {state.name}" for state, count in counts.items() if count)
        return counts[PeerState.READY] > 0, f"replicas: {text or 'none configured'}"

    def tick(self) -> None:
        """What passes with time alone."""
        if self.clock.stalled_recently:
            self.registry.was_late()
        self.fleet.tick()
        self.tokenizers.tick()
        self.registry.expire(self.clock())
        self.fleet_metrics.tick(self.registry, self.clock())
        self.deciding.tick(self.clock())
        self.switch.expire(self.clock())
        self.admitting.tick(self.clock())
        if self.fleet.is_settled and self.tokenizers.is_settled:
            self.settled.set()
        if not len(self.table):
            self.idle.set()
        self.journal.flush(len(self.table), self.registry.count())

    async def drain(self) -> None:
        """Take no new sessions, wait for the running ones within the limit, end the streams."""
        self.switch.drain()
        self.idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_s):
                await self.idle.wait()
        self.switch.close_edges()

    async def ticking(self) -> None:
        """Tick for ever."""
        while True:
            self.tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._going_on()

    async def _going_on(self) -> None:
        """What waits for a replica goes on when there is reason to, until the next tick."""
        while True:
            await self.hurry.wait()
            self.hurry.clear()
            self.switch.go_on(self.clock())
            await asyncio.sleep(0)  # all others have their turn in between


async def serve(
    config: RouterConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run a router until `stop` is set; `ready` hears of the bound ports once the replicas were
    tried. Raises ConfigError when a port is taken."""
    configure_logging("router", config.log_level)
    configure_tracing("router")
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.ROUTER)
    router = Router(config, tls)
    try:
        async with tls.watched(), _listening(router) as (ports, health), _working(router) as jobs:
            await router.settled.wait()
            health.set_serving(True)
            _log.info("router_ready", port=ports.main, admin_port=ports.admin)
            if ready:
                ready(ports)
            await _stopped(stop or asyncio.Event(), jobs)
            health.close()
            await router.drain()
    finally:
        await router.intake.close()
        router.metrics.close()
        shutdown_tracing()


@asynccontextmanager
async def _listening(router: Router) -> AsyncIterator[tuple[Ports, HealthControl]]:
    config = router.config
    server = make_server(router.tls, max_message_bytes=config.max_message_bytes)
    health = add_health(server, SERVICE)
    router_pb2_grpc.add_RouterServiceServicer_to_server(_service(router, health), server)
    port = bind(server, config.host, config.port, router.tls)
    admin = AdminServer(
        config.admin_host,
        config.admin_port,
        ready=router.readiness,
        registry=router.metrics.registry,
    )
    admin_port = await admin.start()
    await server.start()
    try:
        yield Ports(port, admin_port), health
    finally:
        await server.stop(grace=0.5)
        await admin.stop()


def _service(router: Router, health: HealthControl) -> RouterService:
    return RouterService(
        router.switch,
        router.registry,
        _explainer(router),
        router.deciding.placement.standings,
        clock=router.clock,
        buffer_frames=router.config.edge_buffer_frames,
        max_sessions_per_stream=router.config.max_sessions_per_stream,
        region=router.config.region,
        serving=lambda: health.serving,
    )


def _explainer(router: Router) -> Explainer:
    deciding = router.deciding
    return Explainer(
        deciding.placement,
        deciding.history,
        deciding.prompts,
        router.intake.tokenize,
        default_model=router.config.default_model,
        clock=router.clock,
        timer=time.perf_counter,
    )


@asynccontextmanager
async def _working(router: Router) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The endless jobs beside the listener."""
    router.clock.start()
    endless = [router.ticking(), router.fleet.run(), router.tokenizers.run()]
    jobs = [asyncio.create_task(job) for job in endless]
    try:
        yield jobs
    finally:
        router.clock.stop()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _stopped(stop: asyncio.Event, jobs: list[asyncio.Task[None]]) -> None:
    """Until `stop` is set. A job never ends but by a defect, which is raised."""
    waiting = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([waiting, *jobs], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        waiting.cancel()


def _registry(config: RouterConfig, now: float) -> Registry:
    geography = Geography(config.region, config.regions, config.default_rtt_ms)
    quarantine = QuarantinePolicy(
        config.quarantine_failures,
        config.quarantine_window_s,
        config.quarantine_s,
        config.max_quarantine_s,
    )
    health = HealthPolicy(config.connect_timeout_s, config.suspect_s, quarantine)
    return Registry(
        config.replicas,
        rtt_ms=geography.rtt_ms,
        policy=FleetPolicy(health, config.silence_s),
        now=now,
    )


def _move_policy(config: RouterConfig) -> MovePolicy:
    return MovePolicy(
        share=config.move_share,
        least=config.min_moves,
        window_s=config.move_window_s,
        timeout_s=config.move_timeout_s,
        max_lost_replicas=config.max_lost_replicas,
    )


def _silence_policy(config: RouterConfig) -> SilencePolicy:
    return SilencePolicy(config.hang_s, config.hang_calls, config.stall_s)


def _limits(config: RouterConfig) -> RelayLimits:
    return RelayLimits(
        max_sessions=config.max_sessions,
        max_sessions_per_edge=config.max_sessions_per_stream,
        max_early_frames=config.max_early_frames,
        max_kept_bytes=config.max_kept_bytes,
        cancel_timeout_s=config.cancel_timeout_s,
    )


def _pool(config: RouterConfig, clock: StallFreeClock, rng: Random, tls: Tls) -> TokenizerPool:
    return TokenizerPool(
        [parse_target(text, "each of tokenizers") for text in config.tokenizers],
        policy=config.discovery(),
        clock=clock,
        rng=rng,
        timeout_s=config.tokenize_timeout_s,
        max_waiting=config.max_tokenizing,
        # An edge's largest open has to fit into the request made of it.
        max_message_bytes=config.max_message_bytes + (1 << 16),
        tls=tls,
    )
