"""A tokenizer worker as a whole: finds tokenizer services, works for all of them, drains."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import structlog

from outrider.backoff import Backoff
from outrider.config_following import ConfigSource, following
from outrider.models.catalog import SHIPPED
from outrider.peers.discovery import Discovery
from outrider.peers.membership import parse_target
from outrider.process import Ports
from outrider.rpc import LOSSES, loss_text
from outrider.rpc.certificate_expiry import CertificateExpiry
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.families import Family
from outrider.telemetry.logs import configure_logging, log_start
from outrider.telemetry.metrics import Metrics
from outrider.tls import Role, Tls
from outrider.v1 import common_pb2
from services.tokenizer.long_texts.worker import PartWorker
from services.tokenizer_worker.config import TokenizerWorkerConfig

SERVICES: Final = Family(
    "outrider_tokenizer_worker_services",
    "Tokenizer services that have let this worker in.",
)
PARTS: Final = Family(
    "outrider_tokenizer_worker_parts", "Parts of long texts that this worker tokenized."
)
TOKENS: Final = Family(
    "outrider_tokenizer_worker_tokens", "Token ids that this worker made of them."
)

_FIRST_BACKOFF_S: Final = 0.1
_STOP_S: Final = 1.0
"""For streams to end once the time to drain is over."""

_log = structlog.get_logger()


async def serve(
    config: TokenizerWorkerConfig,
    *,
    ready: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
    source: ConfigSource[TokenizerWorkerConfig] | None = None,
) -> None:
    """Work for tokenizer services until `stop` is set; `ready` is called with the admin port, at
    once: services may come later. Raises ConfigError."""
    configure_logging("tokenizer-worker", config.log_level)
    log_start(config)
    tls = await asyncio.to_thread(Tls.open, config.tls, Role.TOKENIZER_WORKER)
    metrics = Metrics("tokenizer-worker")
    metrics.registry.register(CertificateExpiry(tls))
    try:
        async with _working(config, tls, metrics) as services:
            admin = AdminServer(
                config.admin, ready=services.ready, registry=metrics.registry, file=source
            )
            admin_port = await admin.start()
            try:
                async with tls.watched(), following(source, config, SHIPPED):
                    _log.info("tokenizer_worker_ready", admin_port=admin_port)
                    if ready:
                        ready(Ports(main=0, admin=admin_port))
                    await (stop or asyncio.Event()).wait()
                    await services.drain()
            finally:
                await admin.stop()
    finally:
        metrics.close()


@asynccontextmanager
async def _working(
    config: TokenizerWorkerConfig, tls: Tls, metrics: Metrics
) -> AsyncIterator[JoinedServices]:
    def count(ids: common_pb2.TokenBlock) -> None:
        metrics.counter(PARTS).add(1)
        metrics.counter(TOKENS).add(ids.count)

    name = config.name or f"{socket.gethostname()}-{os.getpid()}"
    worker = PartWorker(name, config.threads, tls=tls, on_part=count)
    services = JoinedServices(config, worker, metrics)
    running = asyncio.create_task(services.run())
    try:
        yield services
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        worker.close()


@dataclass(slots=True)
class _Joined:
    """A service that was found."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_connected: bool = False


class JoinedServices:
    """The tokenizer services that one worker works for, as they are found and lost."""

    def __init__(self, config: TokenizerWorkerConfig, worker: PartWorker, metrics: Metrics) -> None:
        self._config = config
        self._worker = worker
        self._metrics = metrics
        self._rng = Random()
        self._found: dict[str, _Joined] = {}
        """By address."""
        self._is_draining = False
        self._discovery = Discovery(
            [parse_target(text, "each of services") for text in config.services],
            self,
            policy=config.discovery,
            clock=time.monotonic,
            rng=self._rng,
        )

    async def run(self) -> None:
        """Look for services and work for them, until cancelled."""
        try:
            await self._discovery.run()
        finally:
            tasks = [it.task for it in self._found.values() if it.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def ready(self) -> tuple[bool, str]:
        """Whether any service has let it in, and why not."""
        if self._is_draining:
            return False, "the worker is stopping"
        is_joined = any(it.is_connected for it in self._found.values())
        return is_joined, "working" if is_joined else "no tokenizer service has let it in"

    async def drain(self) -> None:
        """Get no further part, and return once the services have the results of all others, or
        `drain_s` is over."""
        self._is_draining = True
        for service in self._found.values():
            service.stopping.set()
        tasks = [it.task for it in self._found.values() if it.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self._config.drain_s + _STOP_S)

    def joined(self, address: str, source: str) -> None:
        """A service was found."""
        service = self._found[address] = _Joined()
        if self._is_draining:
            service.stopping.set()
        service.task = asyncio.create_task(self._work(address, service))

    def returned(self, address: str) -> None:
        """One that was to leave is found again: it joins anew once it was left."""

    def is_lost(self, address: str) -> bool:
        """Whether it cannot be reached."""
        return not self._found[address].is_connected

    def left(self, address: str) -> None:
        """One is not found any more."""
        self._found[address].stopping.set()

    async def _work(self, address: str, service: _Joined) -> None:
        """Work for one service, again after each loss, until it is `stopping`."""
        backoff = Backoff(_FIRST_BACKOFF_S, self._config.max_reconnect_s)

        def let_in() -> None:
            service.is_connected = True
            backoff.reset()
            self._report()
            _log.info("service_joined", address=address)

        while not service.stopping.is_set():
            why = "it ended the stream"
            try:
                await self._worker.work(
                    address, service.stopping, joined=let_in, drain_s=self._config.drain_s
                )
            except LOSSES as loss:
                why = loss_text(loss)
            except Exception:
                # A defect costs this stream alone.
                why = "by a defect"
                _log.exception("service_failed", address=address)
            service.is_connected = False
            self._report()
            if not service.stopping.is_set():
                _log.warning("service_lost", address=address, why=why)
                await self._pause(backoff.next_s(), service.stopping)
        del self._found[address]
        self._discovery.forget(address)

    async def _pause(self, longest_s: float, stopping: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s * self._rng.uniform(0.5, 1.0)):
                await stopping.wait()

    def _report(self) -> None:
        num_joined = sum(service.is_connected for service in self._found.values())
        self._metrics.gauge(SERVICES).set(num_joined)
