"""A replica as a whole: loads the model, wires the parts together, runs and drains them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import structlog

from outrider.config_following import ConfigSource, following
from outrider.engines.config import TURN_ENGINES, EngineName
from outrider.engines.guarantees import held
from outrider.errors import EngineError, UnavailableError
from outrider.models.catalog import current, lookup
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.process import Ports
from outrider.rpc import add_health, bind, make_server
from outrider.rpc.certificate_expiry import CertificateExpiry
from outrider.speculation.learnt import binding_of
from outrider.speculation.learnt_files import LearntKeeper
from outrider.speculation.shipped import shipped_prior
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging, log_start
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import inference_pb2, inference_pb2_grpc, kv_pb2_grpc
from services.inference.call_record import CallRecord, Preparations
from services.inference.config import InferenceConfig
from services.inference.kv_peers.fetching import KvPeers
from services.inference.kv_peers.service import KvTransferService
from services.inference.kv_tiers.blocks import BlockLoader, KvIdentity, kv_identity
from services.inference.kv_tiers.tiers import KvTier, KvTiers
from services.inference.loading import LoadProgress, LoadStoppedError
from services.inference.model import LoadedModel, load_model, load_turn_model
from services.inference.model_thread import ModelThread, ModelTick
from services.inference.prefix_store.opening import open_prefix_store
from services.inference.runner import ModelRunner
from services.inference.scheduler.limits import context_limit
from services.inference.scheduler.prefill_budget import LEAST_CHUNK, LEAST_STRETCH
from services.inference.scheduler.scheduler import Scheduler
from services.inference.service import SERVICE, InferenceService
from services.inference.static_prefixes.prefixes import StaticPrefixes
from services.inference.static_prefixes.warming import StaticPrefixTier
from services.inference.streaming.block_feed import BlockFeed
from services.inference.streaming.sessions import SessionTable
from services.inference.streaming.wire import Contract

if TYPE_CHECKING:
    from services.inference.embedding.app import EmbeddingReplica
    from services.inference.grammars.service import Grammars
    from services.inference.grammars.token_table import TokenTable
    from services.inference.turn_replica import TurnReplica

AnyReplica: TypeAlias = "Replica | EmbeddingReplica | TurnReplica"

_log = structlog.get_logger()


class Replica:
    """One replica's parts, wired together around a loaded model."""

    def __init__(
        self,
        config: InferenceConfig,
        model: LoadedModel,
        metrics: Metrics,
        tls: Tls = PLAINTEXT,
        record: CallRecord | None = None,
    ) -> None:
        """`record` has what the engine works on. Raises ConfigError if the limits cannot serve this
        engine or the port is taken."""
        self.config = config
        self._record = record or CallRecord(None, config.replica)
        self._awake_clock = StallFreeClock()
        self._keeper = _keeper(config, model)
        self._saving: asyncio.Task[None] | None = None
        self._is_warm = False
        self.broken = asyncio.Event()
        """Set when the engine cannot serve any more: the process has to be restarted."""

        # What decides, and what computes.
        kv = kv_identity(model.engine.info, model.vocabulary_digest)
        self.scheduler = _scheduler(config, model, kv, self._keeper)
        self.runner = ModelRunner(
            model.engine, self.scheduler, self._on_tick, work=self._record.part()
        )
        self._grammars = _grammars(model.token_table)

        # KV from elsewhere, and for others.
        self.static = _static_prefixes(config, model)
        self.tiers = _open_tiers(config, model, kv, self.static, self.runner, metrics, tls)
        self.kv_service = _kv_service(config, model, kv, self.runner, metrics)

        # Sessions, and what routers hear of them.
        self.table = SessionTable(
            _contract(config, model),
            self.runner,
            self.tiers,
            metrics,
            max_sessions=config.scheduler.max_sessions,
            grammars=self._grammars,
            preparations=Preparations(self._record.part()),
        )
        self.blocks = BlockFeed(model.engine.info.block_tokens)
        self.service = InferenceService(
            self.table,
            self.blocks,
            self._record,
            awake_clock=self._awake_clock,
            max_frames=config.max_outbox_frames,
            max_sessions=config.max_stream_sessions,
        )
        self._server = make_server(tls, max_message_bytes=config.max_message_bytes)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.service, self._server)
        if self.kv_service is not None:
            kv_pb2_grpc.add_KvTransferServiceServicer_to_server(self.kv_service, self._server)
        self._health = add_health(self._server, SERVICE)
        self.port = bind(self._server, config.host, config.port, tls)

    @property
    def problem(self) -> str:
        """Why the model broke down."""
        return self.runner.problem

    def readiness(self) -> tuple[bool, str]:
        """For the admin port."""
        if self.table.is_stopping:
            return False, "shutting down"
        problem = self.runner.problem
        if not problem and not self._is_warm:
            problem = "computing the static prefixes"
        return not problem, problem or f"serving {self.config.replica}"

    async def start(self) -> None:
        """Load learnt statistics, pin the static prefixes and begin to serve; stop() has to follow.
        Raises EngineError if a prefix cannot be computed."""
        self._awake_clock.start()
        await asyncio.to_thread(self._keeper.load)
        self.runner.start()
        await self.tiers.start()
        self._is_warm = True
        if self.config.learnt.keep:
            interval_s = self.config.learnt.save_interval_s
            saving = self._keeper.run(self.runner.take_learnt, interval_s)
            self._saving = asyncio.create_task(saving, name="learnt")
        await self._server.start()
        self._health.set_serving(True)

    async def stop(self) -> None:
        """Take no new sessions, let the running ones finish within `drain_s`, end the rest."""
        self._health.set_serving(False)
        await self.table.drain(self.config.drain_s)
        num_left = len(self.table)
        self.table.fail_all(
            UnavailableError("this replica shut down; open the session on another one")
        )
        if num_left and self.kv_service is not None:
            await self.kv_service.linger(self.config.kv_peers.linger_s)
        if self._grammars is not None:
            await asyncio.to_thread(self._grammars.close)
        await self.tiers.close()
        self._health.close()
        await self.service.close()
        await self._server.stop(grace=0.5)
        if self.kv_service is not None:
            self.kv_service.close()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._keeper.save_now(self.runner.take_learnt)
        await self.runner.stop()
        self._awake_clock.stop()

    def _on_tick(self, tick: ModelTick) -> None:
        if not self._is_warm:
            self.tiers.on_tick(tick)
        self.table.on_tick(tick)
        self.blocks.take(tick.blocks)
        if tick.problem:
            self.broken.set()
        serving = self.readiness()[0]
        if serving != self._health.serving:
            self._health.set_serving(serving)


async def serve(
    config: InferenceConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    source: ConfigSource[InferenceConfig] | None = None,
) -> None:
    """Run a replica until `stop` is set; `ready` is called with the bound ports once the model is
    loaded. If `stop` comes first, fetching ends, and loading before its next stage. The admin port
    answers from the start, and shows what is being done. Raises what `load_model` raises,
    ConfigError when a port is taken, and EngineError, after draining, when the model broke down:
    the process's supervisor starts another. Changes of `source`'s file are logged: a replica needs
    a restart for all of them."""
    configure_logging("inference", config.log_level)
    log_start(config)
    configure_tracing("inference")
    metrics = Metrics("inference")
    stop = stop or asyncio.Event()
    loaded: list[AnyReplica] = []
    progress = LoadProgress()
    admin = _admin_server(config, loaded, progress, metrics)
    try:
        admin_port = await admin.start()
        tls = await asyncio.to_thread(Tls.open, config.tls, Role.INFERENCE, config.region)
        metrics.registry.register(CertificateExpiry(tls))
        with CallRecord(config.state_dir / "calls", config.replica) as record:
            replica = await _load_replica(config, metrics, stop, tls, progress, record)
            if replica is not None:
                loaded.append(replica)
                fixed = (lookup(config.model).name,)
                async with tls.watched(), following(source, config, current(), fixed_models=fixed):
                    await _run(replica, admin_port, ready, stop)
    finally:
        await admin.stop()
        metrics.close()
        shutdown_tracing()


def _admin_server(
    config: InferenceConfig,
    loaded: Sequence[AnyReplica],
    progress: LoadProgress,
    metrics: Metrics,
) -> AdminServer:
    return AdminServer(
        config.admin,
        ready=lambda: loaded[0].readiness() if loaded else (False, str(progress)),
        registry=metrics.registry,
    )


async def _load_replica(
    config: InferenceConfig,
    metrics: Metrics,
    stop: asyncio.Event,
    tls: Tls,
    progress: LoadProgress,
    record: CallRecord,
) -> AnyReplica | None:
    """None if `stop` was set while the model was fetched or loaded."""

    async def pass_on() -> None:
        await stop.wait()
        progress.stop()

    passing_on = asyncio.create_task(pass_on())
    try:
        if (spec := lookup(config.model)).embeds:
            # Imported here, as below: what other replicas are made of lengthens this one's start.
            from services.inference.embedding import app as embedding

            embedder = await asyncio.to_thread(embedding.load_embedder, config, spec, tls, progress)
            if stop.is_set():
                return None
            return embedding.EmbeddingReplica(config, embedder, metrics, tls)
        if config.engine in TURN_ENGINES:
            return await _load_turn_replica(config, metrics, stop, tls, progress, record)
        model = await asyncio.to_thread(load_model, config, tls, progress, progress.enter)
    except LoadStoppedError:
        return None
    finally:
        passing_on.cancel()
    replica: Replica | None = None
    try:
        if not stop.is_set():
            replica = Replica(config, model, metrics, tls, record)
        return replica
    finally:
        if replica is None:
            await asyncio.to_thread(model.engine.close)


async def _load_turn_replica(
    config: InferenceConfig,
    metrics: Metrics,
    stop: asyncio.Event,
    tls: Tls,
    progress: LoadProgress,
    record: CallRecord,
) -> TurnReplica | None:
    """None if `stop` was set before the engine was there."""
    from services.inference.turn_replica import TurnReplica

    loading = asyncio.create_task(load_turn_model(config, tls, progress, progress.enter))
    try:
        await _first_of(asyncio.shield(loading), stop.wait())
    finally:
        if not loading.done():
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
    if loading.cancelled():
        return None
    model = loading.result()
    replica: TurnReplica | None = None
    try:
        if not stop.is_set():
            replica = TurnReplica(config, model, metrics, tls, record)
        return replica
    finally:
        if replica is None:
            await model.engine.close()


async def _run(
    replica: AnyReplica,
    admin_port: int,
    ready: Callable[[Ports], None] | None,
    stop: asyncio.Event,
) -> None:
    try:
        if not await _started(replica, stop):
            return
        _log.info("replica_ready", port=replica.port, admin_port=admin_port)
        if ready:
            ready(Ports(replica.port, admin_port))
        await _first_of(stop.wait(), replica.broken.wait())
        if not stop.is_set():
            raise EngineError(replica.problem)
    finally:
        await replica.stop()


async def _started(replica: AnyReplica, stop: asyncio.Event) -> bool:
    """Start the replica; False if `stop` came while the static prefixes were computed. Raises the
    errors of start()."""
    starting = asyncio.ensure_future(replica.start())
    try:
        await _first_of(asyncio.shield(starting), stop.wait())
    finally:
        if is_late := not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    if not is_late:
        await starting
    return not is_late


async def _first_of(*waiting: Awaitable[object]) -> None:
    """Wait for either; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _scheduler(
    config: InferenceConfig, model: LoadedModel, kv: KvIdentity | None, keeper: LearntKeeper
) -> Scheduler:
    has_store = config.prefix_store.url and kv is not None
    return Scheduler(
        model.engine.info,
        config.scheduler,
        model.new_reply,
        shipped_prior(model.tokens_digest),
        keeper.kept,
        num_stored=config.prefix_store.max_tokens if has_store else 0,
    )


def _static_prefixes(config: InferenceConfig, model: LoadedModel) -> StaticPrefixes:
    info = model.engine.info
    return StaticPrefixes(
        model.prefixes, info, max_share=config.prefix_share, context_limit=context_limit(info)
    )


def _kv_service(
    config: InferenceConfig,
    model: LoadedModel,
    kv: KvIdentity | None,
    thread: ModelThread,
    metrics: Metrics,
) -> KvTransferService | None:
    """The service that gives KV to other replicas; None: it is disabled, or the engine cannot
    export KV."""
    if not config.kv_peers.enabled or kv is None:
        return None
    return KvTransferService(config.kv_peers, kv, model.identity, thread, metrics)


def _open_tiers(
    config: InferenceConfig,
    model: LoadedModel,
    kv: KvIdentity | None,
    static: StaticPrefixes,
    thread: ModelThread,
    metrics: Metrics,
    tls: Tls,
) -> KvTiers:
    """The configured KV tiers, the nearest first. `kv` is None if the engine's KV cannot be copied
    out. Raises ConfigError for invalid settings, and if the client of the store is not
    installed."""
    info, has_store = model.engine.info, bool(config.prefix_store.url)
    tiers: list[KvTier] = []
    if static.prefixes:
        tiers.append(StaticPrefixTier(static, thread, info.block_tokens))
    if kv is None:
        if has_store:
            _log.warning("prefix_store_unused", engine=info.name, why="its KV is its own")
        return KvTiers(tiers, info.block_tokens)
    loader = BlockLoader(kv, thread)
    if config.kv_peers.enabled:
        tiers.append(KvPeers(config.kv_peers, model.identity, loader, metrics, tls))
    if has_store:
        tiers.append(open_prefix_store(config.prefix_store, model.identity, loader, metrics))
    return KvTiers(tiers, info.block_tokens)


def _grammars(table: TokenTable | None) -> Grammars | None:
    if table is None:
        return None
    from services.inference.grammars.service import Grammars

    return Grammars(table)


def _keeper(config: InferenceConfig, model: LoadedModel) -> LearntKeeper:
    """Keeps statistics of sessions: each replica learns by itself."""
    parts = (model.vocabulary_digest, model.identity, config.replica.encode())
    binding = binding_of(b"inference", *parts)
    size = model.engine.info.vocabulary_size
    return LearntKeeper(config.state_dir / "learnt", binding, size, config.learnt)


def _contract(config: InferenceConfig, model: LoadedModel) -> Contract:
    info = model.engine.info
    return Contract(
        model=model.name,
        replica=config.replica,
        region=config.region,
        vocabulary_digest=model.vocabulary_digest,
        tokens_digest=model.tokens_digest,
        model_identity=model.identity,
        vocabulary_size=info.vocabulary_size,
        coder=model.coder,
        context_limit=context_limit(info),
        engine=info.name,
        block_tokens=info.block_tokens,
        max_lead=config.scheduler.max_lead,
        max_drafts=config.scheduler.max_draft_tokens,
        static_prefixes=model.prefixes,
        inexact_kv=config.inexact_kv,
        guarantees=held(cast(EngineName, config.engine), exact=info.exact),
        prefill_limits=inference_pb2.PrefillLimits(
            max_chunk_tokens=config.scheduler.prefill_chunk_tokens,
            min_chunk_tokens=LEAST_CHUNK,
            max_call_ms=config.scheduler.max_tick_ms,
            max_reply_calls=config.scheduler.max_tick_calls,
            min_stretch=LEAST_STRETCH,
        ),
    )
