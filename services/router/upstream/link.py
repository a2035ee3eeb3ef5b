"""One replica, kept connected: its session stream, its load reports, its health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

import grpc.aio
import structlog

from outrider.errors import OutriderError, UnavailableError
from outrider.rpc import from_rpc_error, make_channel
from outrider.v1 import inference_pb2, inference_pb2_grpc, router_pb2
from services.router.config import ReplicaConfig, RouterConfig
from services.router.registry import Model, Registry, Signal, Transition
from services.router.relay.outlet import Outlet
from services.router.relay.switch import Down, Switch, Up
from services.router.upstream import watches

_GENERATE: Final = "/outrider.v1.InferenceService/Generate"
_FIRST_BACKOFF_S: Final = 0.1

_log = structlog.get_logger()


class ReplicaLink:
    """The shell of one replica. `run` until cancelled."""

    def __init__(
        self,
        replica: ReplicaConfig,
        config: RouterConfig,
        registry: Registry,
        switch: Switch,
        *,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        self._name = replica.name
        self._address = replica.address
        self._config = config
        self._registry = registry
        self._switch = switch
        self._clock = clock
        self._rng = rng
        self._backoff_s = _FIRST_BACKOFF_S

    async def run(self) -> None:
        """Connect, serve, and reconnect with jittered exponential backoff, for ever."""
        while True:
            try:
                await self._serve()
            except* (OutriderError, grpc.aio.AioRpcError, TimeoutError) as group:
                _log.info("replica_lost", replica=self._name, why=_reason(group))
            self._note(self._registry.signal(self._name, Signal.LOST, self._clock()))
            await asyncio.sleep(self._backoff_s * self._rng.uniform(0.5, 1.0))
            self._backoff_s = min(2.0 * self._backoff_s, self._config.max_backoff_s)

    async def _serve(self) -> None:
        limit = self._config.max_message_bytes
        async with make_channel(self._address, max_message_bytes=limit) as channel:
            async with asyncio.timeout(self._config.connect_timeout_s):
                model = await self._greet(channel)
                rtt_ms, is_serving = await watches.probe(channel, self._config.connect_timeout_s)
            # GenerateRequest and RouteRequest are the same bytes, as are the responses: the
            # stream carries the edge's own messages, renumbered, never copied.
            generate: grpc.aio.StreamStreamMultiCallable[Up, Down] = channel.stream_stream(
                _GENERATE,
                request_serializer=router_pb2.RouteRequest.SerializeToString,
                response_deserializer=router_pb2.RouteResponse.FromString,
            )
            call = generate()
            await call.wait_for_connection()
            outlet: Outlet[Up] = Outlet(
                self._config.replica_buffer_frames, self._config.max_sessions
            )
            stream = self._switch.attach_replica(self._name, outlet)
            try:
                self._note(self._registry.connected(self._name, model, self._clock()))
                self._note(self._registry.probed(self._name, rtt_ms, is_serving, self._clock()))
                self._backoff_s = _FIRST_BACKOFF_S
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._write(call, outlet))
                    tasks.create_task(self._read(call, stream))
                    tasks.create_task(self._watch_load(channel))
                    tasks.create_task(self._watch_health(channel))
                    tasks.create_task(self._probe(channel))
            finally:
                self._switch.detach_replica(self._name, stream, self._clock())

    async def _greet(self, channel: grpc.aio.Channel) -> Model:
        """What the replica serves."""
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        said = await stub.GetModel(inference_pb2.GetModelRequest())
        return Model(
            name=said.model,
            vocabulary_digest=said.vocabulary_digest,
            max_context_tokens=said.max_context_tokens,
            codecs=tuple(said.codecs),
        )

    async def _write(self, call: grpc.aio.StreamStreamCall[Up, Down], outlet: Outlet[Up]) -> None:
        while (request := await outlet.take()) is not None:
            try:
                await call.write(request)
            except asyncio.InvalidStateError as error:  # grpc.aio's word for an ended call
                raise UnavailableError("it ended its stream") from error
        raise UnavailableError("it does not read its stream")

    async def _read(self, call: grpc.aio.StreamStreamCall[Up, Down], stream: int) -> None:
        async for response in call:
            self._switch.from_replica(stream, response, self._clock())
        raise UnavailableError("it ended its stream")

    async def _watch_load(self, channel: grpc.aio.Channel) -> None:
        async for load in watches.loads(channel, self._config.load_interval_ms):
            self._note(self._registry.report(self._name, load, self._clock()))
        raise UnavailableError("it ended its load reports")

    async def _watch_health(self, channel: grpc.aio.Channel) -> None:
        async for is_serving in watches.health(channel):
            signal = Signal.SERVING if is_serving else Signal.NOT_SERVING
            self._note(self._registry.signal(self._name, signal, self._clock()))
        raise UnavailableError("it ended its health reports")

    async def _probe(self, channel: grpc.aio.Channel) -> None:
        """Measure the round trip; give the replica up once the registry has."""
        while self._registry.is_up(self._name):
            await asyncio.sleep(self._config.probe_interval_s)
            try:
                rtt_ms, serving = await watches.probe(channel, self._config.probe_timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                self._note(self._registry.signal(self._name, Signal.UNREACHED, self._clock()))
            else:
                self._note(self._registry.probed(self._name, rtt_ms, serving, self._clock()))
        raise UnavailableError(f"it was silent for {self._config.suspect_s} s")

    def _note(self, transition: Transition | None) -> None:
        if transition:
            log_transition(transition)


def log_transition(transition: Transition) -> None:
    """One line per change of a replica's state."""
    _log.info(
        "replica_state",
        replica=transition.replica,
        before=transition.before.name,
        after=transition.after.name,
    )


def _reason(group: BaseExceptionGroup[Exception]) -> str:
    """The first failure in plain words; the others follow from it."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, grpc.aio.AioRpcError):
        first = from_rpc_error(first)
    return str(first) or type(first).__name__
