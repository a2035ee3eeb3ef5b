"""One replica, kept connected: its session stream, its load reports, its health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from random import Random
from typing import Final, NoReturn, TypeAlias

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.engine_calls import (
    MAX_CALL_REQUESTS,
    MAX_CRASHES,
    MAX_PROCESS_BYTES,
    Crash,
    EngineCall,
)
from outrider.errors import OverloadedError, UnavailableError
from outrider.model_identity import check_model_identity
from outrider.peers.health import Signal
from outrider.peers.jobs import until_one_fails
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import (
    LOSSES,
    Outbox,
    Reconnector,
    end_call,
    loss_reason,
    loss_text,
    make_channel,
    outgoing,
    received,
    until_distrusted,
)
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import inference_pb2, inference_pb2_grpc
from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.fleet.replica import (
    ClassLoad,
    KvCounts,
    PrefillLimits,
    Replica,
    ReplicaIdentity,
    ReplicaLoad,
    ServedModel,
    StaticPrefix,
)
from services.router.relay.frames import Up
from services.router.relay.switch import Switch
from services.router.upstream.kv_events import KvEventSubscriber

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_MAX_COST_MS: Final = 1e6
"""No engine is that slow. Infinity would make a sum of predicted waits no number."""
_FRAMES_PER_TURN: Final = 128
"""Most frames handled in one turn of the loop. Nearly all are commits, of some 10 us each; those of
a turn leave as one message."""
_MAX_PREFIXES: Final = 64
_MAX_GUARANTEES: Final = 32
_MAX_TENANTS: Final = 256
"""Most tenants of a static prefix; replicas accept as many in their settings."""
_MAX_NAME_CHARS: Final = 128
_GenerateCall: TypeAlias = grpc.aio.StreamStreamCall[
    inference_pb2.GenerateRequest, inference_pb2.GenerateResponse
]


class ReplicaLink:
    """The shell of one replica. `run` until cancelled."""

    def __init__(
        self,
        replica: Replica,
        config: RouterConfig,
        registry: Registry,
        switch: Switch,
        kv_events: KvEventSubscriber,
        *,
        clock: StallFreeClock,
        rng: Random,
        tls: Tls = PLAINTEXT,
    ) -> None:
        self._replica = replica
        self._config = config
        self._registry = registry
        self._switch = switch
        self._kv_events = kv_events
        self._clock = clock
        self._reconnector = Reconnector(max_backoff_s=config.max_backoff_s, rng=rng)
        self._tls = tls
        self._is_replaced = False
        """Another process answers at its address than the one that reported its model."""

    @property
    def _name(self) -> str:
        """Current name: that of a discovered replica changes when it reports its own."""
        return self._replica.name

    async def run(self) -> None:
        """Connect, serve, and reconnect with jittered exponential backoff, for ever."""
        await self._reconnector.run(self._connect, self._lose)

    async def _connect(self) -> NoReturn:
        """One connection, from greeting to loss. Raises the reason of the loss."""
        async with self._channel() as channel:
            with ExitStack() as ending:
                async with self._clock.timeout(self._config.connect_timeout_s):
                    stub: inference_pb2_grpc.InferenceServiceAsyncStub
                    stub = inference_pb2_grpc.InferenceServiceStub(channel)
                    call = stub.Generate()
                    # Closing the channel does not end every call (grpc/grpc issue 42125).
                    ending.callback(end_call, call)
                    await call.wait_for_connection()
                    # After the stream: if another process took the replica's place meanwhile, its
                    # answer is worth nothing, and the stream has broken.
                    said = await self._greet(channel)
                    rtt_ms, is_serving = await probe(channel)
                self._registry.identify(self._name, said)
                now = self._clock()
                self._switch.replica_connected(self._name, said.process, said.crashes, now)
                self._registry.connected(self._name, said.model, now)
                self._registry.probed(self._name, rtt_ms, is_serving, now)
                self._reconnector.reset()
                await self._serve(channel, call, said.model)

    async def _serve(
        self,
        channel: grpc.aio.Channel,
        call: _GenerateCall,
        model: ServedModel,
    ) -> NoReturn:
        outbox: Outbox[Up] = Outbox(self._config.replica_buffer_frames, self._config.max_sessions)
        stream = self._switch.attach_replica(self._name, outbox)
        is_own = self._is_replaced = False
        try:
            await until_one_fails(
                self._write(call, outbox),
                self._read(call, stream),
                self._watch_load(channel),
                self._watch_health(channel),
                self._kv_events.run(channel, self._name, model),
                self._probe(channel),
                self._distrust(),
            )
        except LOSSES as error:
            is_own = self._lose(error)  # before its sessions are placed anew
            raise
        except asyncio.CancelledError:
            is_own = True  # this router ends the link
            raise
        finally:
            self._registry.lost(self._name, "", self._clock(), is_own=is_own)
            # No session made the replica another one.
            self._switch.detach_replica(
                self._name, stream, self._clock(), is_own=is_own or self._is_replaced
            )

    def _channel(self) -> grpc.aio.Channel:
        return make_channel(
            self._replica.address,
            tls=self._tls,
            role=Role.INFERENCE,
            # The handshake fails unless the replica's certificate is of that region.
            region=self._replica.region,
            max_message_bytes=self._config.max_message_bytes,
        )

    async def _distrust(self) -> NoReturn:
        """Give it up when its certificate is good no more."""
        await until_distrusted(
            self._replica.address,
            tls=self._tls,
            role=Role.INFERENCE,
            region=self._replica.region,
        )

    async def _greet(self, channel: grpc.aio.Channel) -> ReplicaIdentity:
        """Ask the replica for its name, region and model. Raises MalformedFrameError."""
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        said = await stub.GetModel(inference_pb2.GetModelRequest())
        model = ServedModel(
            name=said.model,
            vocabulary_digest=said.vocabulary_digest,
            max_context_tokens=said.max_context_tokens,
            codecs=tuple(said.codecs),
            block_tokens=said.block_tokens,
            prefill_limits=read_prefill_limits(said),
            identity=check_model_identity(said.model_identity),
            tokens_digest=said.tokens_digest,
            static_prefixes=tuple(map(_static_prefix, said.static_prefixes[:_MAX_PREFIXES])),
            dimensions=said.embedding_dimensions,
            engine=said.engine[:_MAX_NAME_CHARS],
            guarantees=tuple(it[:_MAX_NAME_CHARS] for it in said.guarantees[:_MAX_GUARANTEES]),
        )
        crashes = tuple(map(_crash, said.crashes[:MAX_CRASHES]))
        process = said.process[:MAX_PROCESS_BYTES]
        return ReplicaIdentity(said.replica, said.region, model, process, crashes)

    async def _write(self, call: _GenerateCall, outbox: Outbox[Up]) -> NoReturn:
        async for request in outgoing(outbox, inference_pb2.GenerateRequest.FromString):
            try:
                await call.write(request)
            except asyncio.InvalidStateError as error:  # grpc.aio's word for an ended call
                raise UnavailableError("it ended its stream") from error
        raise UnavailableError("it does not read its stream")

    async def _read(self, call: _GenerateCall, stream: int) -> NoReturn:
        async for frames in received(call, _FRAMES_PER_TURN):
            if not self._switch.from_replica(stream, frames, self._clock()):
                self._is_replaced = True
                raise UnavailableError(
                    "it opened a session as of another model identity than it reported; it is "
                    "asked anew what it serves"
                )
        raise UnavailableError("it ended its stream")

    async def _watch_load(self, channel: grpc.aio.Channel) -> None:
        async for load in watch_load(
            channel,
            min_interval_ms=self._config.load_interval_ms,
            max_interval_ms=self._config.heartbeat_ms,
        ):
            self._registry.report(self._name, load, self._clock())
            self._switch.reported(self._clock())

    async def _watch_health(self, channel: grpc.aio.Channel) -> None:
        async for is_serving in watch_health(channel):
            signal = Signal.SERVING if is_serving else Signal.NOT_SERVING
            self._registry.signal(self._name, signal, self._clock())
        # It is stopping; what it still has to say of its sessions comes on their stream.
        self._registry.signal(self._name, Signal.NOT_SERVING, self._clock())

    async def _probe(self, channel: grpc.aio.Channel) -> NoReturn:
        """Measure the round trip; give the replica up once the registry has."""
        while self._registry.is_up(self._name):
            await asyncio.sleep(self._config.probe_interval_s)
            try:
                async with self._clock.timeout(self._config.probe_timeout_s):
                    rtt_ms, serving = await probe(channel)
            except TimeoutError:
                self._registry.unanswered(self._name, self._clock())
            else:
                self._registry.probed(self._name, rtt_ms, serving, self._clock())
        raise UnavailableError(f"it was silent for {self._config.suspect_s} s")

    def _lose(self, error: Exception) -> bool:
        """Record the loss of the replica; returns whether this router caused it, by being so late
        that the replica gave it up or by not reading what the replica sent."""
        is_own = self._clock.stalled_recently or isinstance(loss_reason(error), OverloadedError)
        self._registry.lost(self._name, loss_text(error), self._clock(), is_own=is_own)
        return is_own


async def probe(channel: grpc.aio.Channel) -> tuple[float, bool]:
    """Round trip in milliseconds and whether the replica serves. Raises AioRpcError."""
    stub = health_pb2_grpc.HealthStub(channel)
    sent_s = time.monotonic()
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return (time.monotonic() - sent_s) * 1000.0, answer.status == _SERVING


async def watch_health(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether the replica serves, now and after each change."""
    stub = health_pb2_grpc.HealthStub(channel)
    async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
        yield answer.status == _SERVING


async def watch_load(
    channel: grpc.aio.Channel, *, min_interval_ms: int, max_interval_ms: int
) -> AsyncIterator[ReplicaLoad]:
    """The replica's load, now, after each change, and at least every `max_interval_ms`."""
    stub: inference_pb2_grpc.InferenceServiceAsyncStub
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = inference_pb2.WatchLoadRequest(
        min_interval_ms=min_interval_ms, max_interval_ms=max_interval_ms
    )
    async for report in stub.WatchLoad(request):
        yield ReplicaLoad(
            running_sessions=report.running_sessions,
            queued_sessions=report.queued_sessions,
            queued_prompt_tokens=report.queued_prompt_tokens,
            fixed_ms=_cost_ms(report.fixed_ms),
            row_ms=_cost_ms(report.row_ms),
            is_cost_guessed=report.is_cost_guessed,
            max_sessions=report.max_sessions,
            max_queue=report.max_queued_sessions
            if report.HasField("max_queued_sessions")
            else None,
            draining=report.draining,
            is_restarting=report.restarting,
            overload_level=report.overload_level,
            low=_class_load(report.low),
            medium=_class_load(report.medium),
            service_ms=_cost_ms(report.service_ms),
            queues_low=report.queues_low,
            refuses_sessions=report.refuses_sessions,
            kv_blocks_total=report.kv_blocks_total,
            kv_blocks_free=report.kv_blocks_free,
            kv_blocks_owed=report.kv_blocks_owed,
            reply_tokens=report.reply_tokens,
            kv=KvCounts(
                report.kv.prompt_tokens,
                report.kv.pool_tokens,
                report.kv.store_tokens,
                report.kv.sync_bytes,
                report.kv.store_failures,
                report.kv.peer_tokens,
                report.kv.peer_bytes,
                report.kv.peer_failures,
            ),
            peer_block_ms=_cost_ms(report.peer_block_ms),
            peer_first_ms=_cost_ms(report.peer_first_ms),
            running_call=_call(report.running_call),
        )


def read_prefill_limits(told: inference_pb2.GetModelResponse) -> PrefillLimits | None:
    """How many prompt tokens a call takes; None if the replica does not report it."""
    if not told.HasField("prefill_limits"):
        return None
    limits = told.prefill_limits
    return PrefillLimits(
        max_chunk_tokens=max(1, limits.max_chunk_tokens),
        min_chunk_tokens=max(1, limits.min_chunk_tokens),
        max_call_ms=_cost_ms(limits.max_call_ms),
        max_reply_calls=_cost_ms(limits.max_reply_calls),
        min_stretch=_cost_ms(limits.min_stretch),
    )


def _static_prefix(told: inference_pb2.StaticPrefix) -> StaticPrefix:
    tenants = tuple(name[:_MAX_NAME_CHARS] for name in told.tenants[:_MAX_TENANTS])
    return StaticPrefix(told.name[:_MAX_NAME_CHARS], told.tokens, tenants)


def _crash(told: inference_pb2.Crash) -> Crash:
    return Crash(told.process[:MAX_PROCESS_BYTES], _call(told.call))


def _call(told: inference_pb2.EngineCall) -> EngineCall:
    requests = frozenset(told.requests[:MAX_CALL_REQUESTS])
    return EngineCall(requests, told.num_sessions, _cost_ms(told.duration_ms))


def _class_load(told: inference_pb2.ClassLoad) -> ClassLoad:
    return ClassLoad(told.sessions, told.queued_prompt_tokens, told.kv_blocks)


def _cost_ms(reported: float) -> float:
    """A reported cost, limited to the range that placement can use; NaN becomes 0."""
    return min(max(0.0, reported), _MAX_COST_MS)
