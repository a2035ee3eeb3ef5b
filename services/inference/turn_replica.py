"""A replica with a turn engine: to routers the same as any other (services.inference.app)."""

from __future__ import annotations

import asyncio
from typing import cast

import structlog

from outrider.engines.config import EngineName
from outrider.engines.guarantees import held
from outrider.errors import UnavailableError
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import add_health, bind, make_server
from outrider.telemetry.metrics import Metrics
from outrider.tls import PLAINTEXT, Tls
from outrider.v1 import inference_pb2_grpc
from services.inference.call_record import CallRecord
from services.inference.config import InferenceConfig
from services.inference.kv_tiers.tiers import KvTiers
from services.inference.model import TurnModel
from services.inference.model_thread import ModelTick
from services.inference.service import SERVICE, InferenceService
from services.inference.streaming.block_feed import BlockFeed
from services.inference.streaming.sessions import SessionTable
from services.inference.streaming.wire import Contract
from services.inference.turns.prefixes import CachedPrefixes
from services.inference.turns.runner import TurnRunner
from services.inference.turns.sessions import TurnLimits, TurnSessions

_log = structlog.get_logger()


class TurnReplica:
    """One replica's parts, wired together around an engine that writes whole replies."""

    def __init__(
        self,
        config: InferenceConfig,
        model: TurnModel,
        metrics: Metrics,
        tls: Tls = PLAINTEXT,
        record: CallRecord | None = None,
    ) -> None:
        """`record` reports crashes of earlier processes. Raises ConfigError if the port is
        taken."""
        self._config = config
        self._awake_clock = StallFreeClock()
        self.broken = asyncio.Event()
        """Set when the engine is lost: the process has to be restarted."""
        info = model.engine.info
        self.sessions = TurnSessions(
            info,
            TurnLimits(
                info.max_sessions,
                config.scheduler.max_queue,
                info.max_context_tokens,
                model.vocabulary_size,
            ),
            model.new_reply,
            model.end_ids,
        )
        prefixes = CachedPrefixes(info.block_tokens, info.num_blocks)
        self.runner = TurnRunner(model.engine, self.sessions, prefixes, self._on_tick)
        if config.prefix_store.url:
            _log.warning("prefix_store_unused", engine=info.name, why="its KV is its own")
        self.table = SessionTable(
            _contract(config, model),
            self.runner,
            KvTiers((), info.block_tokens),
            metrics,
            max_sessions=info.max_sessions,
            engine_has_grammars=True,
        )
        self.blocks = BlockFeed(info.block_tokens)
        self.service = InferenceService(
            self.table,
            self.blocks,
            record or CallRecord(None, config.replica),
            awake_clock=self._awake_clock,
            max_frames=config.max_outbox_frames,
            max_sessions=config.max_stream_sessions,
        )
        self._server = make_server(tls, max_message_bytes=config.max_message_bytes)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.service, self._server)
        self._health = add_health(self._server, SERVICE)
        self.port = bind(self._server, config.host, config.port, tls)

    @property
    def problem(self) -> str:
        """Why the engine is lost."""
        return self.runner.problem

    def readiness(self) -> tuple[bool, str]:
        """For the admin port."""
        if self.table.is_stopping:
            return False, "shutting down"
        problem = self.runner.problem
        return not problem, problem or f"serving {self._config.replica}"

    async def start(self) -> None:
        """Begin to serve; stop() has to follow."""
        self._awake_clock.start()
        self.runner.start()
        await self._server.start()
        self._health.set_serving(True)

    async def stop(self) -> None:
        """Take no new sessions, let the running ones finish within `drain_s`, end the rest."""
        self._health.set_serving(False)
        await self.table.drain(self._config.drain_s)
        self.table.fail_all(
            UnavailableError("this replica shut down; open the session on another one")
        )
        self._health.close()
        await self.service.close()
        await self._server.stop(grace=0.5)
        await self.runner.stop()
        self._awake_clock.stop()

    def _on_tick(self, tick: ModelTick) -> None:
        self.table.on_tick(tick)
        self.blocks.take(tick.blocks)
        if tick.problem:
            self.broken.set()
        serving = self.readiness()[0]
        if serving != self._health.serving:
            self._health.set_serving(serving)


def _contract(config: InferenceConfig, model: TurnModel) -> Contract:
    info = model.engine.info
    return Contract(
        model=model.name,
        replica=config.replica,
        region=config.region,
        vocabulary_digest=model.vocabulary_digest,
        tokens_digest=model.tokens_digest,
        model_identity=model.identity,
        vocabulary_size=model.vocabulary_size,
        coder=model.coder,
        context_limit=info.max_context_tokens,
        engine=info.name,
        block_tokens=info.block_tokens,
        max_lead=0,
        max_drafts=0,
        verifies_drafts=False,
        guarantees=held(cast(EngineName, config.engine), exact=False),
    )
