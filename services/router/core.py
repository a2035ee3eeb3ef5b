"""All that decides in a router, built from its settings and wired together.

`app.Router` feeds it from sockets and timers. Tests build the same and feed it by hand, in virtual
time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from outrider.peers.health import HealthPolicy
from outrider.telemetry.metrics import Metrics
from services.router.admission.admission import Admission
from services.router.admission.routing import LiveFleetView
from services.router.autoscale.advisor import AutoscaleAdvisor
from services.router.config import RouterConfig
from services.router.fleet.geography import Geography
from services.router.fleet.registry import FleetPolicy, Registry
from services.router.placement.history import PlacementHistory
from services.router.placement.placement import Placement
from services.router.prefix_index.index import PrefixIndex
from services.router.prefix_index.prompt import TokenIdReader
from services.router.recent_replies import RecentReplies
from services.router.relay.dispatch import Dispatch, PromptCache
from services.router.relay.failover import Failover
from services.router.relay.frames import RelayedSession, Up
from services.router.relay.intake import Intake
from services.router.relay.kv_ahead import KvAhead
from services.router.relay.received_prompts import ReceivedPrompts
from services.router.relay.replica_monitor import ReplicaMonitor
from services.router.relay.sessions import RelayLimits, SessionTable
from services.router.relay.switch import Switch
from services.router.relay.telemetry import SessionTelemetry


class RouterCore:
    """The parts of one router that need no socket. They are given the time with each call."""

    def __init__(
        self,
        config: RouterConfig,
        metrics: Metrics,
        rng: Random,
        now: float,
        *,
        timer: Callable[[], float],
        default_model: Callable[[], str],
        tokenize: Callable[[RelayedSession], Callable[[], object]],
        tokenize_s: float,
        schedule_retry: Callable[[], None],
    ) -> None:
        """`timer`, in seconds, measures how long decisions take; the rest is as in Switch."""
        # Replicas, and what they have cached.
        self.registry = _registry(config, now)
        self.prefix_index = PrefixIndex(config.prefix_index)
        self.token_ids = TokenIdReader()

        # Which replica a session goes to.
        self.placement = Placement(
            self.registry,
            self.prefix_index,
            config.placement,
            rng,
            report_ms=config.load_interval_ms,
        )
        self.history = PlacementHistory(config.history)
        self.prompt_cache = PromptCache(self.prefix_index, self.token_ids)
        self.table: SessionTable[Up] = SessionTable(_relay_limits(config))
        self.telemetry = SessionTelemetry(metrics, timer, self.history)
        self.dispatch = Dispatch(
            self.table, self.registry, self.telemetry, self.placement, self.prompt_cache, timer
        )
        self.fleet_view = LiveFleetView(
            self.dispatch.decide, config.region, config.return_s, config.wake_up
        )

        # Who gets in, and when.
        self.admission = Admission(
            config.admission,
            config.tenants,
            config.lengths,
            config.price_table(),
            config.wake_up,
        )
        self.autoscale = AutoscaleAdvisor(config.autoscale, config.wake_up.models)
        self.recent = RecentReplies()
        self.intake = Intake(
            self.table,
            self.dispatch,
            self.registry,
            self.admission,
            self.fleet_view,
            self.autoscale,
            self.recent,
        )

        # Who moves when a replica fails.
        self.failover = Failover(
            self.table,
            self.dispatch,
            self.fleet_view,
            self.telemetry,
            self.recent,
            config.failover,
        )
        self.monitor = ReplicaMonitor(
            self.table, self.dispatch, self.registry, self.failover, config.hang
        )

        self.kv_ahead = KvAhead(
            self.table, self.dispatch, self.registry, self.token_ids, config.kv_ahead
        )

        # Every frame passes here.
        self.received_prompts = ReceivedPrompts(config.prompt_memory_bytes, self.token_ids)
        self.switch = Switch(
            self.table,
            self.dispatch,
            self.registry,
            self.admission,
            self.telemetry,
            self.intake,
            self.monitor,
            self.failover,
            self.received_prompts,
            default_model=default_model,
            tokenize=tokenize,
            schedule_retry=schedule_retry,
            tokenize_s=tokenize_s,
        )


def _registry(config: RouterConfig, now: float) -> Registry:
    geography = Geography(config.region, config.regions, config.default_rtt_ms)
    health = HealthPolicy(config.connect_timeout_s, config.suspect_s, config.quarantine)
    return Registry(
        config.replicas,
        rtt_ms=geography.rtt_ms,
        policy=FleetPolicy(health, config.silence_s),
        now=now,
    )


def _relay_limits(config: RouterConfig) -> RelayLimits:
    return RelayLimits(
        max_sessions=config.max_sessions,
        max_sessions_per_edge=config.max_sessions_per_stream,
        max_early_frames=config.max_early_frames,
        max_kept_bytes=config.max_kept_bytes,
        cancel_timeout_s=config.cancel_timeout_s,
    )
