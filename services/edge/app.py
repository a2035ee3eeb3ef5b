"""An edge, from its settings to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import structlog

from outrider import __version__
from outrider.access.api_keys import KeyTable
from outrider.config_following import ConfigSource, Update, following
from outrider.fair_work.calls import FairThreads
from outrider.fair_work.places import FairPlaces
from outrider.models.catalog import current
from outrider.models.definitions import ModelCatalog
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.process import Ports
from outrider.rpc.certificate_expiry import CertificateExpiry, not_after
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging, log_start
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenizer_client import LONG_TEXTS, TokenizerClient
from outrider.workers.worker import Worker, this_worker
from services.edge.access.following import IssuerKeys, keys_followed
from services.edge.access.identity import Tenants
from services.edge.access.limiter import Limiter, LimitSharing
from services.edge.chat.context import Description, EdgeContext
from services.edge.chat.edge_list import StoredList, list_followed
from services.edge.chat.resumption import ResumableChats
from services.edge.chat.revocation import KeyedChats
from services.edge.chat.shared_replies import open_shared_replies
from services.edge.chat.time_slicing import TimeSlicer
from services.edge.chat.timers import SharedTimer
from services.edge.config import EdgeConfig
from services.edge.http3.application import Application
from services.edge.http3.limits import alt_svc
from services.edge.http3.server import Http3Service
from services.edge.limits.listener import ListenerQuotas
from services.edge.models.served import LoadVocabulary, vocabularies_of
from services.edge.models.serving import EdgeModels
from services.edge.processes.process import EdgeProcess
from services.edge.quic import certificate
from services.edge.quic.listener import Listener
from services.edge.telemetry.edge import EdgeTelemetry
from services.edge.upstream.embedding import MAX_ASKING, MAX_CALLS, MAX_CALLS_IN_ALL
from services.edge.upstream.metrics import RouterMetrics
from services.edge.upstream.pool import RouterPool

if TYPE_CHECKING:
    from services.edge.http.frontend import HttpFrontend
    from services.edge.http.listener import HttpListener

_NUM_THREADS: Final = 2
_MAX_PENDING: Final = 1024
_MAX_PENDING_BYTES: Final = 64 << 20
"""Requests, and their bytes, that wait for the threads for other work than tokenizing, or have
one."""

log = structlog.get_logger()

LIVE_KEYS: Final = frozenset({"models", "anonymous_models", "tenants"})
"""Settings that are applied while an edge runs."""


async def serve(
    config: EdgeConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    source: ConfigSource[EdgeConfig] | None = None,
    catalog: ModelCatalog | None = None,
) -> None:
    """Run an edge until `stop` is set, or one of its processes. `ready` is called once clients can
    connect and a router has answered. The file of `source` is followed; `catalog` defines the
    models, None: this process's. Raises ConfigError, UnknownModelError, ModelStoreError."""
    worker = this_worker()
    if worker is not None:
        structlog.contextvars.bind_contextvars(worker=worker.index)
    _configure_logging(config.log_level)
    log_start(config)
    configure_tracing("edge")
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.EDGE)
    if catalog is None:
        catalog = await asyncio.to_thread(current)
    metrics = Metrics("edge")
    try:
        edge = Edge(config, catalog, metrics, tls=tls, source=source, worker=worker)
    except BaseException:
        metrics.close()
        raise
    try:
        async with tls.watched():
            ports = await edge.start()
            stopping = stop or asyncio.Event()
            async with following(source, config, catalog, live_keys=LIVE_KEYS, apply=edge.apply):
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
    """A running edge. Tests start it with vocabularies of their own."""

    def __init__(
        self,
        config: EdgeConfig,
        catalog: ModelCatalog,
        metrics: Metrics,
        *,
        load: LoadVocabulary | None = None,
        tls: Tls = PLAINTEXT,
        application: Application | None = None,
        source: ConfigSource[EdgeConfig] | None = None,
        worker: Worker | None = None,
    ) -> None:
        """`catalog` defines the models, `load` loads their vocabularies; None: from the model
        store. `application` is served over HTTP/3 in place of the edge's own. `worker`: which of
        the edge's processes this is, None: the only one. Raises UnknownModelError."""
        self._process = EdgeProcess(config, worker)
        self._config = config = self._process.config
        self.telemetry = EdgeTelemetry(metrics)
        self._expiry = CertificateExpiry(tls)
        self._registry = metrics.registry
        self._threads = FairThreads(_NUM_THREADS, _MAX_PENDING, _MAX_PENDING_BYTES)
        self._long_texts = TokenizerClient(
            config.long_texts,
            tls=tls,
            record=lambda who: metrics.counter(LONG_TEXTS).add(1, {"tokenized_by": who}),
        )
        self.upstream = _router_pool(config, metrics, tls)
        self.models = _models(config, catalog, load, metrics, self.telemetry, tls)

        # Who may do what, and how much of it.
        self._issuer = IssuerKeys(config.jwt) if config.jwt.issuer else None
        self._identities = config.identities(
            self._issuer.verifier if self._issuer else None, self._process.trust_key
        )
        self._limiter = Limiter(time.monotonic)
        self._shared_limits: LimitSharing | None = None
        slicer = TimeSlicer()
        self._keyed_chats = KeyedChats(self._identities, slicer, self.telemetry)
        self._following = contextlib.AsyncExitStack()
        """Holds the tasks that follow changes of the files of API keys and of edges."""

        # What chats find, and the doors that they come through.
        self._shared_replies = open_shared_replies(
            config.shared_replies, config.resumption.window_s
        )
        resumable = ResumableChats(
            config.resume_limits(), self.telemetry, self._process.named, self._shared_replies
        )
        self._description = Description(
            config.name, config.region, self._identities, self.models, resumable.window_s
        )
        context = EdgeContext(
            name=config.name,
            region=config.region,
            request_timeout_s=config.request_timeout_s,
            added_distance=config.added_distance,
            identities=self._identities,
            limiter=self._limiter,
            keyed_chats=self._keyed_chats,
            models=self.models,
            upstream=self.upstream,
            ahead=config.ahead,
            embedding_calls=FairPlaces(MAX_CALLS, MAX_CALLS_IN_ALL, MAX_ASKING),
            threads=self._threads,
            long_texts=self._long_texts,
            telemetry=self.telemetry,
            resumable=resumable,
            shared_replies=self._shared_replies,
            time_slicer=slicer,
            timer=SharedTimer(),
            rewriter=Rewriter(config.rewriting),
            description=self._description,
        )
        quotas = self._process.quotas(config.listener_limits())
        self.listener = Listener(context, quotas, self._process.ids)
        self.http = _http_listener(config, context, quotas)
        """None: HTTP is not served."""
        if self.http is not None:
            application = application or self.http.app
        if application is not None and config.http3.enabled:
            frontend = None if self.http is None else self.http.frontend
            self.listener.offer(_http3_service(config, application, frontend))

        self._renewal: asyncio.Task[None] | None = None
        self._drafter_deadline = 0.0
        """Loop time until which the edge is not ready while its first drafter starts; 0: it need
        not start any more."""
        self._admin = AdminServer(
            config.admin,
            ready=self._ready,
            registry=metrics.registry,
            cause=self.models.tokenizing.cause,
            file=source,
        )

    def set_models(self, config: EdgeConfig, catalog: ModelCatalog) -> None:
        """Serve the models of `config`, as `catalog` defines them, to the clients that it allows;
        all its other settings are ignored. Running chats continue to their ends. Raises
        UnknownModelError, and then changes nothing."""
        served = {key: getattr(config, key) for key in LIVE_KEYS}
        changed = replace(self._config, **served)
        models, embedders = changed.edge_models(catalog), changed.embedders(catalog)
        self._identities.set_tenants(Tenants(config.tenants), config.anonymous_models)
        self.models.set_models(models, embedders)

    def _set_keys(self, keys: KeyTable, revision: int) -> None:
        self._identities.set_keys(keys)
        self._keyed_chats.check()
        self.telemetry.keys(len(keys), revision)

    def _set_edge_list(self, stored: StoredList) -> None:
        self._description.set_edge_list(stored.text)
        self.telemetry.edge_list(stored.edges.valid_until)

    async def apply(self, update: Update[EdgeConfig]) -> None:
        """Apply the changed configuration file. Raises UnknownModelError."""
        self.set_models(update.config, update.catalog)

    async def start(self) -> Ports:
        """Load the first model, listen, and begin to connect to the routers. Raises ConfigError,
        ModelStoreError."""
        config = self._config
        chain, key = await asyncio.to_thread(self._locate)
        await self._following.enter_async_context(keys_followed(config.keys_file, self._set_keys))
        if config.edge_list is not None:
            await self._following.enter_async_context(
                list_followed(config.edge_list, self._set_edge_list)
            )
        if self._issuer is not None:
            self._issuer.start()
        self._shared_limits = self._process.limit_sharing()
        self._limiter.share(self._shared_limits)
        await self.models.start()
        self._registry.register(self._expiry)
        await self._note_expiry(chain)
        admin_port = await self._admin.start()
        self.upstream.start()
        self._long_texts.start()
        self._drafter_deadline = asyncio.get_running_loop().time() + config.drafter.ready_wait_s
        port = await self.listener.start(
            config.host, config.port, chain, key, opened=self._process.opened("datagrams")
        )
        http_port = await self._start_http(chain, key, port)
        self._tell_pages(port, http_port)
        self._renewal = asyncio.create_task(
            certificate.follow(self._locate, (chain, key), self._renew)
        )
        log.info(
            "edge_ready",
            host=config.host,
            port=port,
            admin_port=admin_port,
            http_host=config.http.host,
            http_port=http_port,
        )
        return Ports(main=port, admin=admin_port, http=http_port)

    async def _start_http(self, chain: Path, key: Path, quic_port: int) -> int:
        http, http3 = self._config.http, self._config.http3
        if self.http is None or http.port is None:
            return 0
        elsewhere = alt_svc(quic_port, http3.alt_svc_max_age_s) if http3.enabled else b""
        return await self.http.start(
            http.host,
            http.port,
            chain,
            key,
            alt_svc=elsewhere.decode(),
            opened=self._process.opened("connections"),
        )

    async def _renew(self, chain: Path, key: Path) -> None:
        """Use this certificate from now on. Raises ConfigError."""
        await self.listener.renew(chain, key)
        if self.http is not None:
            await self.http.renew(chain, key)
        await self._note_expiry(chain)

    async def _note_expiry(self, chain: Path) -> None:
        # A file that is no certificate is the listener's to refuse.
        with contextlib.suppress(OSError, ValueError):
            ends_at = await asyncio.to_thread(lambda: not_after(chain.read_bytes()))
            self._expiry.shown_to_clients(chain, ends_at)

    def _locate(self) -> tuple[Path, Path]:
        """Certificate and key; pages learn the hashes of all that may be used now or soon."""
        chain, key = _certificate(self._config)
        if self.http is not None:
            told = certificate.pinned(chain, certificate.utc_now())
            self.http.frontend.sessions.certificates = told
        return chain, key

    def _tell_pages(self, quic_port: int, http_port: int) -> None:
        """Let pages know where WebTransport sessions are opened."""
        http3 = self._config.http3
        if self.http is not None and http3.enabled and http3.webtransport:
            offer = self.http.frontend.sessions
            offer.quic_port, offer.http_port = quic_port, http_port
            offer.scheme = "https" if self._config.http.is_encrypted else "http"

    async def stop(self) -> None:
        """Drain and end. May be called after a failed start."""
        drain_s = self._config.drain_s
        draining = [self.listener.stop(drain_s)]
        if self.http is not None:
            draining.append(self.http.stop(drain_s))
        await asyncio.gather(*draining)
        if self._renewal is not None:
            self._renewal.cancel()
        await self.upstream.stop()
        await self._long_texts.close()
        await self.models.stop()
        await asyncio.to_thread(self._threads.close)
        await self._admin.stop()
        with contextlib.suppress(KeyError):  # it was never started
            self._registry.unregister(self._expiry)
        if self._shared_limits is not None:
            await self._shared_limits.close()
        if self._shared_replies is not None:
            await self._shared_replies.close()
        if self._issuer is not None:
            await self._issuer.stop()
        await self._following.aclose()
        self.telemetry.close()

    def _ready(self) -> tuple[bool, str]:
        if self.listener.is_draining:
            return False, "the edge is stopping"
        if not self.upstream.ready:
            return False, "no router can be reached"
        now = asyncio.get_running_loop().time()
        first = self.models.first
        if first is not None and first.drafter.is_starting and now < self._drafter_deadline:
            return False, "the drafter loads its model"
        self._drafter_deadline = 0.0  # one that ends later is started again beside chats
        return True, "serving"


def _router_pool(config: EdgeConfig, metrics: Metrics, tls: Tls) -> RouterPool:
    return RouterPool(
        config.upstream_policy(),
        clock=StallFreeClock(),
        rng=Random(),
        on_tick=RouterMetrics(metrics).tick,
        tls=tls,
    )


def _models(
    config: EdgeConfig,
    catalog: ModelCatalog,
    load: LoadVocabulary | None,
    metrics: Metrics,
    telemetry: EdgeTelemetry,
    tls: Tls,
) -> EdgeModels:
    settings = config.model_settings()
    return EdgeModels(
        settings,
        config.edge_models(catalog),
        load or vocabularies_of(settings, tls),
        metrics,
        telemetry,
        embedders=config.embedders(catalog),
    )


def _http_listener(
    config: EdgeConfig, context: EdgeContext, shared: ListenerQuotas
) -> HttpListener | None:
    if config.http.port is None:
        return None
    # Imported here: an edge without HTTP does without what it takes.
    from services.edge.http.app import build_app
    from services.edge.http.frontend import HttpFrontend
    from services.edge.http.listener import HttpListener
    from services.edge.http.openapi import document
    from services.edge.http.page import page

    frontend = HttpFrontend(
        context,
        shared,
        config.http,
        needs_key=not config.access.http_anonymous,
        document=document(__version__),
        page=page(__version__),
    )
    return HttpListener(build_app(frontend), frontend)


def _http3_service(
    config: EdgeConfig, application: Application, frontend: HttpFrontend | None
) -> Http3Service:
    if frontend is None:
        return Http3Service(application, config.http3)
    from services.edge.http.http3_refusals import worded
    from services.edge.http.webtransport import session_refusal

    return Http3Service(
        application,
        config.http3,
        word=partial(worded, frontend.origins),
        may_session=partial(session_refusal, frontend),
    )


def _certificate(config: EdgeConfig) -> tuple[Path, Path]:
    if config.certificate is not None and config.private_key is not None:
        return config.certificate, config.private_key
    return certificate.ensure(config.tls_folder, config.server_names, certificate.utc_now())


async def _first(*waits: Coroutine[None, None, object]) -> None:
    """Return when the first of these is done, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
