"""The router as a whole: builds the parts, runs them, drains them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Final

import structlog

from outrider.config_following import ConfigSource, Update, following
from outrider.models.catalog import SHIPPED
from outrider.peers.health import PeerState
from outrider.peers.membership import parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.process import Ports
from outrider.rpc import HealthControl, add_health, bind, make_server
from outrider.rpc.certificate_expiry import CertificateExpiry
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging, log_start
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import embedding_pb2_grpc, router_pb2, router_pb2_grpc
from outrider.workers.worker import this_worker
from services.router.autoscale.advisor import FleetKey
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.router.embedding.machine import EmbeddingFleet
from services.router.embedding.placement import EmbeddingPlacement
from services.router.embedding.relay import EmbeddingRelay, EmbeddingRouterService
from services.router.explain import Explainer
from services.router.metrics import (
    AdmissionMetrics,
    AutoscaleMetrics,
    EmbeddingMetrics,
    ReplicaMetrics,
)
from services.router.processes.share import share_of
from services.router.service import RouterService
from services.router.upstream.draining import drain_replica
from services.router.upstream.kv_events import KvEventSubscriber
from services.router.upstream.replica_pool import ReplicaPool
from services.router.upstream.tokenizers import PromptTokenization, TokenizerPool, longest_wait_s

SERVICE: Final = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
LIVE_KEYS: Final = frozenset({"default_model", "replicas"})
"""Settings that are followed while the router runs."""
_HOUSEKEEPING_S: Final = 0.5
"""Seconds between two rounds of periodic work: removing peers that have left, advice on
replicas."""
_EXPORT_S: Final = 1.0
"""Longest time between two updates of the metrics of sessions whose stream is not being read."""
_MAX_SWEPT_ROWS: Final = 512
"""Rows of the prefix tree looked at in one tick: on a slow CPU some 3 ms if all are freed."""

_log = structlog.get_logger()


class Router:
    """One router's parts, wired together."""

    def __init__(self, config: RouterConfig, tls: Tls = PLAINTEXT) -> None:
        self.config = config
        self.tls = tls
        self.clock = StallFreeClock()
        self.metrics = Metrics("router")
        self.rng = Random(config.seed or None)
        self.retry_scheduled = asyncio.Event()
        """Set when sessions that wait should try again before the next tick."""
        self.settled = asyncio.Event()
        """Set once every replica was reached, or tried in vain."""
        self.idle = asyncio.Event()
        """Set by the next tick that finds no session."""

        self.core = core = RouterCore(
            config,
            self.metrics,
            self.rng,
            self.clock(),
            timer=time.perf_counter,
            default_model=lambda: self.config.default_model,
            tokenize=lambda session: self.tokenization.start(core.switch, session),
            tokenize_s=longest_wait_s(config.tokenize_timeout_s),
            schedule_retry=self.retry_scheduled.set,
        )
        self.tokenizers = _tokenizer_pool(config, self.clock, self.rng, tls)
        self.tokenization = PromptTokenization(self.tokenizers, core.registry, clock=self.clock)
        self.replicas = _replica_pool(config, core, self.clock, self.rng, tls)
        self.embeddings = _embedding_relay(config, core, self.clock, self.rng, tls)

        self._housekeeping_at = 0.0
        self._export_at = 0.0
        self.replica_metrics = ReplicaMetrics(self.metrics)
        self.embedding_metrics = EmbeddingMetrics(self.metrics, self.embeddings.fleet)
        self.admission_metrics = AdmissionMetrics(self.metrics, core.admission, core.registry)
        self.autoscale_metrics = AutoscaleMetrics(
            self.metrics,
            core.registry,
            core.intake,
            core.failover,
            core.fleet_view,
            core.autoscale,
            config.autoscale.slo_ttft_ms,
            [FleetKey(config.region, model) for model in config.wake_up.models],
        )

    def readiness(self) -> tuple[bool, str]:
        """For the admin port: ready while one replica is, or chats may wait for one to start."""
        counts = self.core.registry.count()
        text = ", ".join(f"{count} {state.name}" for state, count in counts.items() if count)
        is_ready = counts[PeerState.READY] > 0 or bool(self.config.wake_up.models)
        return is_ready, f"replicas: {text or 'none configured'}"

    def tick(self) -> None:
        """Do the work that only depends on time: expiries, metrics of replicas, advice."""
        now = self.clock()
        if self.clock.stalled_recently:
            self.core.registry.was_late()
        self.core.registry.expire(now)
        self.replica_metrics.tick(self.core.registry, now)
        self.core.prefix_index.sweep(now, _MAX_SWEPT_ROWS)
        self.core.switch.expire(now)
        self.core.kv_ahead.tick(now)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + _HOUSEKEEPING_S
            self.replicas.tick()
            self.tokenizers.tick()
            self.autoscale_metrics.tick(now)
        if not self.settled.is_set() and self.replicas.is_settled and self.tokenizers.is_settled:
            self.settled.set()
        if not len(self.core.table) and not self.embeddings.num_requests:
            self.idle.set()
        if now >= self._export_at:
            self.export()

    def export(self) -> None:
        """Bring metrics up to date: OpenTelemetry takes longer for them than a tick for all else,
        so that is done when they are read, and now and then."""
        self._export_at = self.clock() + _EXPORT_S
        self.admission_metrics.tick()
        self.embedding_metrics.tick()
        self.core.telemetry.flush(len(self.core.table), self.core.registry.count())

    async def apply(self, update: Update[RouterConfig]) -> None:
        """The configuration file has changed."""
        self.config = update.config
        if "replicas" in update.changed_keys:
            self.replicas.configure(update.config.replicas)

    async def drain(self) -> None:
        """Take no new sessions, wait for the running ones within the limit, end the streams."""
        self.core.switch.drain()
        self.idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_s):
                await self.idle.wait()
        self.core.switch.close_edges()

    async def ticking(self) -> None:
        """Tick for ever."""
        while True:
            self.tick()
            await self.clock.next_tick()

    async def retrying(self) -> None:
        """Retry sessions that wait for a replica as soon as something changed, before the next
        tick."""
        while True:
            await self.retry_scheduled.wait()
            self.retry_scheduled.clear()
            self.core.switch.retry(self.clock())
            await asyncio.sleep(0)  # other tasks run in between


async def serve(
    config: RouterConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    source: ConfigSource[RouterConfig] | None = None,
) -> None:
    """Run a router until `stop` is set, or one of its processes; `ready` hears of the bound ports
    once the replicas were tried. The file of `source` is followed. Raises ConfigError when a port
    is taken."""
    worker = this_worker()
    if worker is not None:
        structlog.contextvars.bind_contextvars(worker=worker.index)
    configure_logging("router", config.log_level)
    log_start(config)
    configure_tracing("router")
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.ROUTER)
    own = config if worker is None else share_of(config, worker.index, worker.port)
    router = Router(own, tls)
    try:
        async with (
            tls.watched(),
            _listening(router, source) as (ports, health),
            _working(router) as jobs,
        ):
            await router.settled.wait()
            health.set_serving(True)
            _log.info("router_ready", port=ports.main, admin_port=ports.admin)
            if ready:
                ready(ports)
            async with following(source, config, SHIPPED, live_keys=LIVE_KEYS, apply=router.apply):
                await _stopped(stop or asyncio.Event(), jobs)
            health.close()
            await router.drain()
    finally:
        await router.embeddings.close()
        await router.tokenization.close()
        router.metrics.close()
        shutdown_tracing()


@asynccontextmanager
async def _listening(
    router: Router, source: ConfigSource[RouterConfig] | None
) -> AsyncIterator[tuple[Ports, HealthControl]]:
    config = router.config
    server = make_server(
        router.tls,
        max_message_bytes=config.max_message_bytes,
        shares_port=this_worker() is not None,
    )
    health = add_health(server, SERVICE)
    router_pb2_grpc.add_RouterServiceServicer_to_server(_service(router, health), server)
    embedding_pb2_grpc.add_EmbeddingRouterServiceServicer_to_server(
        EmbeddingRouterService(router.embeddings, serving=lambda: health.serving), server
    )
    port = bind(server, config.host, config.port, router.tls)
    router.metrics.registry.register(CertificateExpiry(router.tls))
    admin = AdminServer(
        config.admin,
        ready=router.readiness,
        registry=router.metrics.registry,
        file=source,
        refresh=router.export,
    )
    admin_port = await admin.start()
    await server.start()
    try:
        yield Ports(port, admin_port), health
    finally:
        await server.stop(grace=0.5)
        await admin.stop()


def _service(router: Router, health: HealthControl) -> RouterService:
    explainer = Explainer(
        router.core.placement,
        router.core.history,
        router.core.prompt_cache,
        router.tokenization.tokenize,
        default_model=lambda: router.config.default_model,
        clock=router.clock,
        timer=time.perf_counter,
    )
    return RouterService(
        router.core,
        router.config,
        explainer,
        lambda: router.autoscale_metrics.advice,
        partial(drain_replica, tls=router.tls),
        default_model=lambda: router.config.default_model,
        clock=router.clock,
        serving=lambda: health.serving,
    )


@asynccontextmanager
async def _working(router: Router) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The endless jobs beside the listener."""
    router.clock.start()
    endless = [
        *(router.ticking(), router.retrying()),
        *(router.replicas.run(), router.tokenizers.run()),
    ]
    jobs = [asyncio.create_task(job) for job in endless]
    try:
        yield jobs
    finally:
        router.clock.stop()
        router.replicas.stop()
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


def _tokenizer_pool(
    config: RouterConfig, clock: StallFreeClock, rng: Random, tls: Tls
) -> TokenizerPool:
    return TokenizerPool(
        [parse_target(text, "each of tokenizers") for text in config.tokenizers],
        policy=config.discovery,
        clock=clock,
        rng=rng,
        timeout_s=config.tokenize_timeout_s,
        max_waiting=config.max_tokenizing,
        # An edge's largest open has to fit into the request made of it.
        max_message_bytes=config.max_message_bytes + (1 << 16),
        tls=tls,
    )


def _replica_pool(
    config: RouterConfig, core: RouterCore, clock: StallFreeClock, rng: Random, tls: Tls
) -> ReplicaPool:
    return ReplicaPool(
        config,
        core.registry,
        core.switch,
        lambda: KvEventSubscriber(core.prefix_index, core.token_ids, core.placement.owner),
        clock=clock,
        rng=rng,
        tls=tls,
    )


def _embedding_relay(
    config: RouterConfig, core: RouterCore, clock: StallFreeClock, rng: Random, tls: Tls
) -> EmbeddingRelay:
    fleet = EmbeddingFleet(
        core.registry,
        EmbeddingPlacement(rng),
        config.embedding,
        core.autoscale,
        config.return_s,
    )
    return EmbeddingRelay(
        fleet,
        core.admission,
        config.price_table(),
        clock=clock,
        max_message_bytes=config.max_message_bytes,
        tls=tls,
    )
