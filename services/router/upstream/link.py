"""One replica, kept connected: its session stream, its load reports, its health."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from random import Random
from typing import Final, NoReturn

import grpc.aio
from google.protobuf.message import DecodeError

from outrider.errors import OutriderError, OverloadedError, UnavailableError
from outrider.peers.health import Signal
from outrider.peers.jobs import until_one_fails
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import from_rpc_error, make_channel, until_distrusted
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import inference_pb2, inference_pb2_grpc, router_pb2
from services.router.config import RouterConfig
from services.router.fleet.load import Identity, Model
from services.router.fleet.registry import Registry
from services.router.fleet.replica import Replica
from services.router.relay.outlet import Outlet
from services.router.relay.switch import Down, Switch, Up
from services.router.upstream import watches
from services.router.upstream.prefixes import PrefixWatch

_GENERATE: Final = "/outrider.v1.InferenceService/Generate"
_FIRST_BACKOFF_S: Final = 0.1

_LOSSES: Final = (OutriderError, grpc.aio.AioRpcError, TimeoutError, DecodeError)
"""How a replica can be lost, bytes that are no frame included."""


class ReplicaLink:
    """The shell of one replica. `run` until cancelled."""

    def __init__(
        self,
        replica: Replica,
        config: RouterConfig,
        registry: Registry,
        switch: Switch,
        prefixes: PrefixWatch,
        *,
        clock: StallFreeClock,
        rng: Random,
        tls: Tls = PLAINTEXT,
    ) -> None:
        self._replica = replica
        self._config = config
        self._registry = registry
        self._switch = switch
        self._prefixes = prefixes
        self._clock = clock
        self._rng = rng
        self._tls = tls
        self._backoff_s = _FIRST_BACKOFF_S

    @property
    def _name(self) -> str:
        """A discovered replica's changes when it says who it is."""
        return self._replica.name

    async def run(self) -> None:
        """Connect, serve, and reconnect with jittered exponential backoff, for ever."""
        while True:
            try:
                await self._connect()
            except _LOSSES as error:
                self._lose(error)
            await asyncio.sleep(self._backoff_s * self._rng.uniform(0.5, 1.0))
            self._backoff_s = min(2.0 * self._backoff_s, self._config.max_backoff_s)

    async def _connect(self) -> NoReturn:
        """One connection, from greeting to loss. Raises the reason of the loss."""
        async with self._channel() as channel:
            with ExitStack() as ending:
                async with self._clock.timeout(self._config.connect_timeout_s):
                    said = await self._greet(channel)
                    rtt_ms, is_serving = await watches.probe(channel)
                    call = _generate(channel)
                    # Closing the channel does not end every call (grpc/grpc issue 42125).
                    ending.callback(call.cancel)
                    await call.wait_for_connection()
                self._registry.introduce(self._name, said)
                self._registry.connected(self._name, said.model, self._clock())
                self._registry.probed(self._name, rtt_ms, is_serving, self._clock())
                self._backoff_s = _FIRST_BACKOFF_S
                await self._serve(channel, call, said.model)

    async def _serve(
        self, channel: grpc.aio.Channel, call: grpc.aio.StreamStreamCall[Up, Down], model: Model
    ) -> NoReturn:
        outlet: Outlet[Up] = Outlet(self._config.replica_buffer_frames, self._config.max_sessions)
        stream = self._switch.attach_replica(self._name, outlet)
        is_own = False
        try:
            await until_one_fails(
                self._write(call, outlet),
                self._read(call, stream),
                self._watch_load(channel),
                self._watch_health(channel),
                self._prefixes.run(channel, self._name, model),
                self._probe(channel),
                self._distrust(),
            )
        except _LOSSES as error:
            is_own = self._lose(error)  # before its sessions are placed anew
            raise
        finally:
            self._registry.lost(self._name, "", self._clock(), is_own=is_own)
            self._switch.detach_replica(self._name, stream, self._clock(), is_own=is_own)

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

    async def _greet(self, channel: grpc.aio.Channel) -> Identity:
        """Who the replica is, and what it serves."""
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        said = await stub.GetModel(inference_pb2.GetModelRequest())
        model = Model(
            name=said.model,
            vocabulary_digest=said.vocabulary_digest,
            max_context_tokens=said.max_context_tokens,
            codecs=tuple(said.codecs),
            block_tokens=said.block_tokens,
        )
        return Identity(said.replica, said.region, model)

    async def _write(
        self, call: grpc.aio.StreamStreamCall[Up, Down], outlet: Outlet[Up]
    ) -> NoReturn:
        while (request := await outlet.take()) is not None:
            try:
                await call.write(request)
            except asyncio.InvalidStateError as error:  # grpc.aio's word for an ended call
                raise UnavailableError("it ended its stream") from error
        raise UnavailableError("it does not read its stream")

    async def _read(self, call: grpc.aio.StreamStreamCall[Up, Down], stream: int) -> NoReturn:
        async for response in call:
            self._switch.from_replica(stream, response, self._clock())
        raise UnavailableError("it ended its stream")

    async def _watch_load(self, channel: grpc.aio.Channel) -> None:
        async for load in watches.loads(
            channel,
            min_interval_ms=self._config.load_interval_ms,
            max_interval_ms=self._config.heartbeat_ms,
        ):
            self._registry.report(self._name, load, self._clock())
            self._switch.reported(self._clock())

    async def _watch_health(self, channel: grpc.aio.Channel) -> None:
        async for is_serving in watches.health(channel):
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
                    rtt_ms, serving = await watches.probe(channel)
            except TimeoutError:
                self._registry.unanswered(self._name, self._clock())
            else:
                self._registry.probed(self._name, rtt_ms, serving, self._clock())
        raise UnavailableError(f"it was silent for {self._config.suspect_s} s")

    def _lose(self, error: Exception) -> bool:
        """It is lost; whether by this router's own fault: it was late, so that the replica gave it
        up, or it did not read what the replica had to say."""
        told = from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else error
        is_own = self._clock.stalled_recently or isinstance(told, OverloadedError)
        why = str(told) or type(told).__name__
        self._registry.lost(self._name, why, self._clock(), is_own=is_own)
        return is_own


def _generate(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[Up, Down]:
    """GenerateRequest and RouteRequest are the same bytes, as are the responses: the stream carries
    the edge's own messages, renumbered, never copied."""
    generate: grpc.aio.StreamStreamMultiCallable[Up, Down] = channel.stream_stream(
        _GENERATE,
        request_serializer=router_pb2.RouteRequest.SerializeToString,
        response_deserializer=router_pb2.RouteResponse.FromString,
    )
    return generate()
