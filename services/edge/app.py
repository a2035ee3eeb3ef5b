"""An edge, from its settings to a clean stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import structlog

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.process import Ports
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.speculation.learnt import KeptGroups, binding_of
from outrider.speculation.learnt_files import Copies, LearntKeeper
from outrider.speculation.shipped import shipped_calibrations, shipped_prior
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import load_backend, select_backend
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.metrics import TokenizationMetrics
from outrider.tokenization.pool.pool import PoolPolicy, TokenizationPool
from outrider.tokenization.pool.processes import ProcessPool
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import CachePolicy
from services.edge.config import EdgeConfig
from services.edge.context import EdgeContext
from services.edge.drafter.link import DrafterLink
from services.edge.drafter.metrics import DrafterMetrics
from services.edge.quic import certificate
from services.edge.quic.listener import Listener
from services.edge.resumption.chats import ResumableChats
from services.edge.session.learning import EdgeLearning
from services.edge.session.machine import SessionPolicy
from services.edge.session.reopening import ReopenPolicy
from services.edge.session.reply import ReplyTools
from services.edge.telemetry import EdgeTelemetry
from services.edge.time_slicing import TimeSlicer
from services.edge.upstream.metrics import RouterMetrics
from services.edge.upstream.pool import RouterPool
from services.edge.wire.client import Offer

log = structlog.get_logger()

_DRAFTER_START_S: Final = 10.0
"""An edge whose drafter still loads its model is not ready for so long after its start: without
drafts, replies are shown only once a region has decided. After that it serves without them."""


async def serve(
    config: EdgeConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run an edge until `stop` is set. `ready` is called once clients can connect and a router
    has answered. Raises ConfigError, UnknownModelError, ModelStoreError."""
    _configure_logging(config.log_level)
    configure_tracing("edge")
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.EDGE)
    spec = await asyncio.to_thread(lookup, config.model)
    config = config.for_model(spec)
    store = ModelStore(config.model_store or default_root())
    vocabulary = await asyncio.to_thread(load_vocabulary, spec, store)
    backend = await asyncio.to_thread(
        load_backend, spec, store, vocabulary, config.tokenization.backend
    )
    metrics = Metrics("edge")
    weights = spec.sha256 or store.recorded(spec.source)
    edge = Edge(config, spec.name, vocabulary, metrics, backend, tls, weights)
    try:
        async with tls.watched():
            ports = await edge.start()
            stopping = stop or asyncio.Event()
            await _first(edge.upstream.wait_connected(), stopping.wait())
            if ready is not None and not stopping.is_set():
                ready(ports)
            await stopping.wait()
    finally:
        await edge.stop()
        metrics.close()
        shutdown_tracing()


def _configure_logging(level: str) -> None:
    configure_logging("edge", level)
    # aioquic logs every reset stream and closed connection, and warns of every peer that breaks the
    # protocol; here these are ordinary, and counted in metrics.
    logging.getLogger("quic").setLevel(logging.ERROR)


class Edge:
    """A running edge. Tests start it with a vocabulary of their own."""

    def __init__(
        self,
        config: EdgeConfig,
        model: str,
        vocabulary: Vocabulary,
        metrics: Metrics,
        backend: FallbackBackend | None = None,
        tls: Tls = PLAINTEXT,
        weights: str = "",
    ) -> None:
        """`backend` tokenizes; None: the reference. `weights`: digest of the model's weights, where
        it is known."""
        self._config = config
        self.upstream = RouterPool(
            config.upstream_policy(),
            clock=StallFreeClock(),
            rng=Random(),
            on_tick=RouterMetrics(metrics).tick,
            tls=tls,
        )
        self.telemetry = EdgeTelemetry(metrics, model)
        encoder = _encoder(config, vocabulary, backend)
        self._tokenizing = TokenizationMetrics(metrics.registry, [encoder])
        self._tokenization = _tokenization_pool(config, vocabulary, encoder, self._tokenizing)
        self.drafter = DrafterLink(
            config.drafter_settings(model), vocabulary.size, DrafterMetrics(metrics)
        )
        binding = binding_of(b"edge", vocabulary.digest, weights.encode() or model.encode())
        self._keeper = LearntKeeper.open(
            config.learnt_folder, binding, vocabulary.size, config.kept_learnt
        )
        self._learning = EdgeLearning(
            config.max_context_tokens,
            shipped_prior(vocabulary.tokens_digest),
            shipped_calibrations(vocabulary.tokens_digest),
            is_drafted_for=lambda: self.drafter.is_usable,
            restore=self._keeper.kept.restore,
        )
        self._saving: asyncio.Task[None] | None = None
        self.listener = Listener(self._context(model, vocabulary), config.listener_limits())
        self._renewal: asyncio.Task[None] | None = None
        self._drafter_deadline = 0.0
        """Loop time until which the edge is not ready while its drafter starts."""
        self._admin = AdminServer(
            config.admin,
            ready=self._ready,
            registry=metrics.registry,
            cause=self._tokenizing.cause,
        )

    def _context(self, model: str, vocabulary: Vocabulary) -> EdgeContext:
        config = self._config
        policy = SessionPolicy(
            vocabulary_digest=vocabulary.digest,
            max_context_tokens=config.max_context_tokens,
            request_timeout_s=config.request_timeout_s,
            reply=config.reply_policy(),
            reopen=ReopenPolicy(give_up_after_s=config.reopen_s),
        )
        return EdgeContext(
            name=config.name,
            region=config.region,
            identities=config.identities(),
            offer=Offer(model, vocabulary.size, config.max_context_tokens),
            policy=policy,
            tools=reply_tools(
                vocabulary,
                config.max_context_tokens,
                self.drafter if config.has_drafter else None,
                self._keeper.kept,
                self._learning,
            ),
            coder=TokenCoder(
                vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest)
            ),
            tokenization=self._tokenization,
            upstream=self.upstream,
            drafter=self.drafter,
            telemetry=self.telemetry,
            resumable=ResumableChats(config.resume_limits(), self.telemetry),
            typeahead=config.typeahead_policy(),
            time_slicer=TimeSlicer(),
            rewriter=Rewriter(config.rewriting),
        )

    async def start(self) -> Ports:
        """Listen, and begin to connect to the routers. Raises ConfigError."""
        config = self._config
        chain, key = await asyncio.to_thread(_certificate, config)
        admin_port = await self._admin.start()
        self.upstream.start()
        if config.has_drafter:
            self.drafter.start()
            self._drafter_deadline = asyncio.get_running_loop().time() + _DRAFTER_START_S
        if config.kept_learnt.keep:
            self._saving = asyncio.create_task(
                self._keeper.run(self._take_learnt, config.learnt.save_interval_s), name="learnt"
            )
        port = await self.listener.start(config.host, config.port, chain, key)
        self._renewal = asyncio.create_task(
            certificate.follow(partial(_certificate, config), (chain, key), self.listener.renew)
        )
        log.info("edge listens", host=config.host, port=port, admin_port=admin_port)
        return Ports(main=port, admin=admin_port)

    async def stop(self) -> None:
        """Drain and end. May be called after a failed start."""
        await self.listener.stop(self._config.drain_s)
        if self._renewal is not None:
            self._renewal.cancel()
        await self.upstream.stop()
        await self.drafter.stop()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
            await self._keeper.save_now(self._take_learnt)
        self._tokenization.close()
        await asyncio.to_thread(self._tokenization.join)
        await self._admin.stop()
        self._tokenizing.close()
        self.telemetry.close()

    async def _take_learnt(self) -> Copies:
        """A group at a time: chats wait meanwhile."""
        return list(islice(self._keeper.kept.changed(self._learning), 1))

    def _ready(self) -> tuple[bool, str]:
        if self.listener.is_draining:
            return False, "the edge is stopping"
        if not self.upstream.ready:
            return False, "no router can be reached"
        now = asyncio.get_running_loop().time()
        if self.drafter.is_starting and now < self._drafter_deadline:
            return False, "the drafter loads its model"
        return True, "serving"


def _encoder(
    config: EdgeConfig, vocabulary: Vocabulary, backend: FallbackBackend | None
) -> CachingEncoder:
    return CachingEncoder(
        vocabulary,
        backend or select_backend(vocabulary, REFERENCE),
        CachePolicy(max_bytes=config.tokenization.cache_bytes),
    )


def _tokenization_pool(
    config: EdgeConfig,
    vocabulary: Vocabulary,
    encoder: CachingEncoder,
    counted: TokenizationMetrics,
) -> TokenizationPool:
    policy = PoolPolicy(
        num_workers=config.tokenization.threads,
        max_queued=config.tokenization.max_queued,
        max_tokens=config.max_context_tokens - 1,
    )
    return TokenizationPool(
        encoder,
        policy,
        rewriter=Rewriter(config.rewriting),
        record=counted.record,
        shortened=counted.shortened,
        overflow=_overflow_pool(config, vocabulary, encoder.backend.name),
    )


def _overflow_pool(config: EdgeConfig, vocabulary: Vocabulary, backend: str) -> ProcessPool | None:
    if not config.tokenization.processes:
        return None
    return ProcessPool(
        vocabulary,
        backend,
        num_processes=config.tokenization.processes,
        cache_bytes=config.tokenization.cache_bytes,
    )


def reply_tools(
    vocabulary: Vocabulary,
    max_context_tokens: int,
    drafter: DrafterLink | None = None,
    kept: KeptGroups | None = None,
    learning: EdgeLearning | None = None,
) -> ReplyTools:
    """What replies in `vocabulary` are made with. Chats share what they learn of the region; what
    they learn of texts stays within their trust group: in `learning`, and of groups whose names
    last in `kept`."""
    tokens = vocabulary.tokens_digest
    learning = learning or EdgeLearning(
        max_context_tokens,
        shipped_prior(tokens),
        shipped_calibrations(tokens),
        is_drafted_for=lambda: drafter is not None,
    )
    stop_ids = vocabulary.stop_ids

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, stop_ids, vocabulary.detokenizer())

    return ReplyTools(
        new_reply=new_reply,
        new_drafter=learning.new_drafter,
        token_bytes=vocabulary.text_bytes,
        strips_space=vocabulary.strips_space,
        stop_ids=stop_ids,
        has_drafter=drafter is not None,
        averages=learning.averages,
        admit=kept.admit if kept is not None else lambda group: None,
        first_guess_s=drafter.first_draft_s if drafter is not None else lambda num_tokens: None,
    )


def _certificate(config: EdgeConfig) -> tuple[Path, Path]:
    if config.certificate is not None and config.private_key is not None:
        return config.certificate, config.private_key
    folder = config.state_dir / "tls"
    return certificate.ensure(folder, config.server_names, certificate.utc_now())


async def _first(*waits: Coroutine[None, None, object]) -> None:
    """Return when the first of these is done, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
