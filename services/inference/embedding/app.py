"""A replica of a model that embeds: loads it, wires the parts together, runs and drains them."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Final

import structlog

from outrider.engines.embedding import Embedder
from outrider.errors import ConfigError, EngineError, UnavailableError
from outrider.mirrors.opening import open_mirrors
from outrider.model_identity import model_identity, short_form
from outrider.models.definitions import ModelSpec
from outrider.models.disk.fetch import ReportProgress, ignore_progress
from outrider.models.embedding_folder import EmbeddingFolder, TextTokenizer
from outrider.models.store import ModelStore, default_root
from outrider.rpc import add_health, bind, make_server
from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.tls import PLAINTEXT, Tls
from outrider.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from services.inference.config import InferenceConfig
from services.inference.embedding.pipeline import EmbeddingCounts, EmbeddingPipeline
from services.inference.embedding.service import EmbeddingContract, EmbeddingReplicaService

SERVICES: Final = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    embedding_pb2.DESCRIPTOR.services_by_name["EmbeddingService"].full_name,
)
_TICK_S: Final = 0.5
"""Between two times that metrics are written."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """A model as a replica serves it."""

    contract: EmbeddingContract
    tokenizer: TextTokenizer
    engines: tuple[Embedder, ...]
    """All alike, of one thread each."""
    wide: Embedder | None = None
    """One of as many threads as they have together, where that is more than one."""


def load_embedder(
    config: InferenceConfig,
    spec: ModelSpec,
    tls: Tls = PLAINTEXT,
    report: ReportProgress = ignore_progress,
) -> LoadedEmbedder:
    """Blocks for seconds, longer if the model has to be fetched; `tls` is what mirrors of the mesh
    are shown. Raises ModelStoreError, EngineError, ConfigError, and what `report` raises."""
    if config.engine != "openvino":
        raise ConfigError(
            f"the engine {config.engine!r} makes no vectors; serve {spec.name} with engine openvino"
        )
    # Imported here: replicas of other models do without.
    from outrider.engines.openvino.embedder import open_embedders

    mirrors = open_mirrors(config.mirrors, tls)
    store = ModelStore(config.model_store or default_root(), mirrors=mirrors)
    artifact = store.ensure(spec.source, progress=report, sha256=spec.sha256)
    folder = EmbeddingFolder(artifact, store)
    if spec.max_context_tokens:
        most = min(folder.facts.max_tokens, spec.max_context_tokens)
        folder.facts = replace(folder.facts, max_tokens=most)
    tokenizer = folder.tokenizer()
    precision = config.engine_config(spec=spec).precision
    engines = open_embedders(folder, count=config.threads, precision=precision)
    wide: tuple[Embedder, ...] = ()
    if config.threads > 1:
        wide = open_embedders(folder, threads=config.threads, precision=precision)
    infos = [engine.info for engine in (*engines, *wide)]
    if any(info.fingerprint != infos[0].fingerprint for info in infos):
        raise EngineError("the engines of this replica compute different numbers")
    info, digest = infos[0], hashlib.sha256(tokenizer.definition.encode()).digest()
    identity = model_identity(
        weights_sha256=artifact.sha256,
        vocabulary_digest=digest,
        engine=info.name,
        precision=info.precision,
        exact=True,
        fingerprint=info.fingerprint,
    )
    _log.info("model_identity", identity=short_form(identity), weights=artifact.sha256)
    contract = EmbeddingContract(
        model=spec.name,
        replica=config.replica,
        region=config.region,
        vocabulary_digest=digest,
        vocabulary_size=info.vocabulary_size,
        model_identity=identity,
        engine=info.name,
        dimensions=info.dimensions,
        max_tokens=info.max_tokens,
        normalizes=folder.facts.normalizes,
    )
    return LoadedEmbedder(contract, tokenizer, engines, *wide)


class EmbeddingReplica:
    """One replica's parts."""

    def __init__(
        self,
        config: InferenceConfig,
        model: LoadedEmbedder,
        metrics: Metrics,
        tls: Tls = PLAINTEXT,
    ) -> None:
        """Raises ConfigError if the port is taken."""
        self._config = config
        self.metrics = metrics
        self.pipeline = EmbeddingPipeline(
            config.embedding,
            model.tokenizer,
            model.engines,
            wide=model.wide,
            on_change=self._changed,
        )
        self.service = EmbeddingReplicaService(model.contract, self.pipeline)
        self._server = make_server(tls, max_message_bytes=config.max_message_bytes)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.service, self._server)
        embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(self.service, self._server)
        self._health = add_health(self._server, *SERVICES)
        self.port = bind(self._server, config.host, config.port, tls)
        self.broken = asyncio.Event()
        """Set when the engine cannot compute any more: the process has to be restarted."""
        self._is_stopping = False
        self._measuring: asyncio.Task[None] | None = None
        self._recorded = EmbeddingCounts()

    @property
    def problem(self) -> str:
        """Why it is broken."""
        return self.pipeline.problem

    def readiness(self) -> tuple[bool, str]:
        """For the admin port."""
        if self._is_stopping:
            return False, "shutting down"
        return not self.problem, self.problem or f"serving {self._config.replica}"

    async def start(self) -> None:
        """Begin to serve; stop() has to follow."""
        self.pipeline.start()
        self._measuring = asyncio.create_task(self._measure())
        await self._server.start()
        self._health.set_serving(True)

    async def stop(self) -> None:
        """Take nothing new, let requests finish within `drain_s`, end the rest."""
        self._is_stopping = True
        self._health.set_serving(False)
        self.service.set_drained(drained=True)
        await self.service.idle(self._config.drain_s)
        await self.pipeline.stop(UnavailableError("this replica shut down; ask another"))
        self._health.close()
        self.service.close()
        await self._server.stop(grace=0.5)
        if self._measuring is not None:
            self._measuring.cancel()
        self.record()

    def record(self) -> None:
        """Write what was counted since the last time into the metrics."""
        now, before = replace(self.pipeline.counts), self._recorded
        self._recorded = now
        self.metrics.record_engine_time(now.busy_s - before.busy_s, now.waited_s - before.waited_s)
        tokens = self.metrics.counter(names.EMBEDDING_TOKENS)
        tokens.add(now.tokens - before.tokens, {"kind": "text"})
        tokens.add(now.padding - before.padding, {"kind": "padding"})
        inputs = self.metrics.counter(names.EMBEDDING_INPUTS)
        inputs.add(now.vectors - before.vectors, {"outcome": "vector"})
        inputs.add(now.failed - before.failed, {"outcome": "error"})
        self.metrics.gauge(names.EMBEDDING_WAITING).set(self.pipeline.load.num_inputs)

    def _changed(self) -> None:
        self.service.changed()
        if self.pipeline.problem:
            self._health.set_serving(False)
            self.broken.set()

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.record()
