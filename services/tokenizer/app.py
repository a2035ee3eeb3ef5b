"""The tokenizer service as a whole: loads vocabularies, listens, drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import structlog

from outrider.models.store import ModelStore, default_root
from outrider.process import Ports
from outrider.rpc import add_health, bind, make_server
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import configure_tracing, shutdown_tracing
from outrider.tls import Role, Tls
from outrider.tokenization.pool.metrics import TokenizationMetrics
from outrider.tokenization.rewriting import Rewriter
from outrider.tokenization.segment_cache import CachePolicy
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.parts.assembly import long_texts
from services.tokenizer.parts.detokenizing import Detokenizing
from services.tokenizer.parts.joining import joining
from services.tokenizer.parts.texts import LongTexts
from services.tokenizer.requests import Answering
from services.tokenizer.service import Counts, TokenizerService
from services.tokenizer.vocabularies import Caches, Share, Vocabularies
from services.tokenizer.vocabularies.sharing import shared_tokens
from services.tokenizer.workers import Workers

SERVICE: Final = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name

_LAST_ANSWERS_S: Final = 0.2

_log = structlog.get_logger()


async def serve(
    config: TokenizerConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    vocabularies: Vocabularies | None = None,
) -> None:
    """Run a tokenizer service until `stop` is set; `ready` hears of the bound ports.

    `vocabularies` are loaded from the model store unless given. Raises ConfigError when a port
    is taken, UnknownModelError and ModelStoreError when a vocabulary cannot be had.
    """
    configure_logging("tokenizer", config.log_level)
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.TOKENIZER)
    with _resources(config) as (metrics, workers, share):
        if vocabularies is None:
            vocabularies = await asyncio.to_thread(_load, config, share)
        counted = TokenizationMetrics(metrics.registry, [served.encoder for served in vocabularies])
        async with (
            long_texts(config, vocabularies, metrics) as texts,
            _listening(config, vocabularies, workers, texts, metrics, counted, tls) as ports,
        ):
            _log.info("tokenizer_ready", port=ports.main, admin_port=ports.admin)
            if ready:
                ready(ports)
            await (stop or asyncio.Event()).wait()


@contextmanager
def _resources(config: TokenizerConfig) -> Iterator[tuple[Metrics, Workers, Share | None]]:
    """What ends after everything else."""
    with ExitStack() as last:
        configure_tracing("tokenizer")
        last.callback(shutdown_tracing)
        metrics = Metrics("tokenizer")
        last.callback(metrics.close)
        share = last.enter_context(shared_tokens(config, metrics.registry))
        workers = Workers(config.threads, config.max_pending)
        last.callback(workers.close)
        yield metrics, workers, share


def _load(config: TokenizerConfig, share: Share | None) -> Vocabularies:
    before = (entry.partition("=") for entry in config.replaced)
    return Vocabularies.load(
        config.models,
        ModelStore(config.model_store or default_root()),
        backend=config.backend,
        caches=Caches(CachePolicy(max_bytes=config.cache_bytes), share),
        replaced=[(model, Path(folder)) for model, _, folder in before],
    )


def _service(
    config: TokenizerConfig,
    vocabularies: Vocabularies,
    workers: Workers,
    texts: LongTexts,
    metrics: Metrics,
    counted: TokenizationMetrics,
) -> TokenizerService:
    answering = Answering(
        *(vocabularies, config.max_text_bytes, config.max_decode_ids),
        rewriter=Rewriter(config.rewriting),
        shortened=counted.shortened,
    )
    detokenizing = Detokenizing(vocabularies, workers, config.max_decode_ids)
    return TokenizerService(
        answering,
        workers,
        texts,
        detokenizing,
        Counts(metrics, counted),
        max_in_flight=config.max_in_flight,
    )


@asynccontextmanager
async def _listening(
    config: TokenizerConfig,
    vocabularies: Vocabularies,
    workers: Workers,
    texts: LongTexts,
    metrics: Metrics,
    counted: TokenizationMetrics,
    tls: Tls,
) -> AsyncIterator[Ports]:
    """The ports, to be answered on until the context is left; then drains the workers."""
    server = make_server(tls, max_message_bytes=config.max_message_bytes)
    service = _service(config, vocabularies, workers, texts, metrics, counted)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(service, server)
    health = add_health(server, SERVICE)
    port = bind(server, config.host, config.port, tls)
    admin = AdminServer(
        *(config.admin_host, config.admin_port),
        ready=lambda: (health.serving, "serving" if health.serving else "stopping"),
        registry=metrics.registry,
        cause=counted.cause,
    )
    admin_port = await admin.start()
    await server.start()
    health.set_serving(True)
    try:
        async with tls.watched(), joining(config, texts, vocabularies, tls):
            yield Ports(port, admin_port)
            health.close()
            await asyncio.gather(workers.drain(config.drain_s), texts.crew.drain(config.drain_s))
    finally:
        # Callers keep their streams open for good: there is no point in waiting for those.
        await server.stop(grace=_LAST_ANSWERS_S)
        await admin.stop()
