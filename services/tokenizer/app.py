"""The tokenizer service as a whole: loads vocabularies, listens, drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from outrider.config_following import ConfigSource, Update, following
from outrider.fair_work.calls import FairThreads
from outrider.mirrors.opening import open_mirrors
from outrider.models.catalog import ModelCatalog, current
from outrider.models.store import ModelStore, default_root
from outrider.process import Ports
from outrider.rpc import add_health, bind, make_server
from outrider.rpc.certificate_expiry import CertificateExpiry
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging, log_start
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import Role, Tls
from outrider.tokenization.pool.metrics import ModelEncoder, TokenizationMetrics
from outrider.tokenization.pool.pool import THE_TOKENIZER
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import CachePolicy
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.long_texts.listener import worker_listeners
from services.tokenizer.long_texts.texts import LongDetokenizer, LongTexts
from services.tokenizer.requests import RequestHandler
from services.tokenizer.served_models import ServedModels, StoreLoader, tokenized
from services.tokenizer.service import RequestMetrics, TokenizerService
from services.tokenizer.shared_cache import shared_cache
from services.tokenizer.vocabularies import CacheSettings, MakeSharedCache, ServedVocabulary

SERVICE: Final = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name

_LAST_ANSWERS_S: Final = 0.2
"""Time for answers that are being sent when the service stops. Callers keep their streams open
indefinitely, so waiting longer is of no use."""

LIVE_KEYS: Final = frozenset({"models"})
"""Settings that are followed while the service runs."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of a service that end after the listeners."""

    config: TokenizerConfig
    tls: Tls
    metrics: Metrics
    threads: FairThreads
    loader: StoreLoader
    models: ServedModels
    tokenization: TokenizationMetrics
    long_texts: LongTexts


async def serve(
    config: TokenizerConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    vocabularies: Iterable[ServedVocabulary] | None = None,
    source: ConfigSource[TokenizerConfig] | None = None,
) -> None:
    """Run a tokenizer service until `stop` is set; `ready` is called with the bound ports.

    `vocabularies` are loaded from the model store unless given; the file of `source` is followed.
    Raises ConfigError when a port is taken or a model is not defined, and what loading the default
    model's vocabulary raises.
    """
    configure_logging("tokenizer", config.log_level)
    log_start(config)
    catalog = current()
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.TOKENIZER)
    async with (
        _parts(config, catalog, tls, vocabularies) as parts,
        _listening(parts, source) as ports,
        following(
            source, config, catalog, live_keys=LIVE_KEYS, apply=lambda update: _apply(parts, update)
        ),
    ):
        _log.info("tokenizer_ready", port=ports.main, admin_port=ports.admin)
        if ready:
            ready(ports)
        await (stop or asyncio.Event()).wait()


@asynccontextmanager
async def _parts(
    config: TokenizerConfig,
    catalog: ModelCatalog,
    tls: Tls,
    vocabularies: Iterable[ServedVocabulary] | None,
) -> AsyncIterator[_Parts]:
    async with AsyncExitStack() as stack:
        configure_tracing("tokenizer")
        stack.callback(shutdown_tracing)
        metrics = Metrics("tokenizer")
        stack.callback(metrics.close)
        make_shared = stack.enter_context(shared_cache(config, metrics.registry))
        threads = FairThreads(
            *(config.threads, config.max_pending, config.max_pending_bytes),
            name="tokenize",
            what=THE_TOKENIZER,
        )
        stack.callback(threads.close)
        loader = _loader(config, catalog, tls, make_shared)
        if vocabularies is None:
            tokenizing = tokenized(config.models, catalog)
            models = ServedModels(loader, tokenizing, config.max_loaded_vocabularies)
            stack.push_async_callback(models.close)
            await models.preload()
        else:
            models = ServedModels.of(vocabularies)
        tokenization = TokenizationMetrics(
            metrics.registry,
            lambda: [ModelEncoder(served.model, served.encoder) for served in models.loaded()],
        )
        models.on_unload = tokenization.retire
        long_texts = await stack.enter_async_context(LongTexts.opened(config, models, metrics))
        yield _Parts(config, tls, metrics, threads, loader, models, tokenization, long_texts)


def _loader(
    config: TokenizerConfig, catalog: ModelCatalog, tls: Tls, make_shared: MakeSharedCache | None
) -> StoreLoader:
    previous = (entry.partition("=") for entry in config.previous_vocabularies)
    return StoreLoader(
        catalog,
        ModelStore(config.model_store or default_root(), mirrors=open_mirrors(config.mirrors, tls)),
        backend=config.backend,
        caches=CacheSettings(CachePolicy(max_bytes=config.cache_bytes), make_shared),
        previous=tuple((model, Path(folder)) for model, _, folder in previous),
    )


async def _apply(parts: _Parts, update: Update[TokenizerConfig]) -> None:
    """The configuration file has changed. Raises ConfigError for a model that is not defined."""
    served = tokenized(update.config.models, update.catalog)
    loader = replace(parts.loader, catalog=update.catalog)
    parts.models.configure(loader, served, update.changed_models)


def _service(parts: _Parts) -> TokenizerService:
    config = parts.config
    handler = RequestHandler(
        config.max_text_bytes,
        config.max_decode_ids,
        rewriter=Rewriter(config.rewriting),
        shortened=parts.tokenization.shortened,
    )
    return TokenizerService(
        parts.models,
        handler,
        parts.threads,
        parts.long_texts,
        LongDetokenizer(parts.models, parts.threads, config.max_decode_ids),
        RequestMetrics(parts.metrics, parts.tokenization),
        max_in_flight=config.max_in_flight,
        vocabulary_timeout_s=config.vocabulary_timeout_s,
    )


@asynccontextmanager
async def _listening(
    parts: _Parts, source: ConfigSource[TokenizerConfig] | None
) -> AsyncIterator[Ports]:
    """The ports, served until the context is left; then threads and workers drain."""
    config = parts.config
    server = make_server(parts.tls, max_message_bytes=config.max_message_bytes)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(_service(parts), server)
    health = add_health(server, SERVICE)
    port = bind(server, config.host, config.port, parts.tls)
    parts.metrics.registry.register(CertificateExpiry(parts.tls))
    admin = AdminServer(
        config.admin,
        ready=lambda: (health.serving, "serving" if health.serving else "stopping"),
        registry=parts.metrics.registry,
        cause=parts.tokenization.cause,
        file=source,
    )
    admin_port = await admin.start()
    await server.start()
    health.set_serving(True)
    workers = worker_listeners(config, parts.long_texts, parts.models, parts.tls)
    try:
        async with parts.tls.watched(), workers:
            yield Ports(port, admin_port)
            health.close()
            await asyncio.gather(
                parts.threads.drain(config.drain_s),
                parts.long_texts.workers.drain(config.drain_s),
            )
    finally:
        await server.stop(grace=_LAST_ANSWERS_S)
        await admin.stop()
