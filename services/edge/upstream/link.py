"""One router: a long-lived Route stream with many sessions, and probes beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Final, NoReturn, Protocol

import grpc.aio
import structlog

from outrider.codec.prompt_memory import PromptMemory
from outrider.errors import OutriderError, PermissionDeniedError, UnavailableError
from outrider.mesh_state import State, mesh_as_dict
from outrider.peers.jobs import until_one_fails
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import (
    LOSSES,
    Outbox,
    Reconnector,
    end_call,
    from_rpc_error,
    loss_text,
    make_channel,
    outgoing,
    received,
    until_distrusted,
)
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import embedding_pb2_grpc, inference_pb2, router_pb2, router_pb2_grpc
from services.edge.upstream.table import RouterTable

log = structlog.get_logger()

_FRAMES_PER_TURN: Final = 64
"""Most frames handled in one turn of the loop. Nearly all are commits, of some 0.1 ms each; those
of a turn share packets."""

_DESCRIBE_S: Final = 5.0
"""Limit of a router's description of the mesh."""

_RouteCall = grpc.aio.StreamStreamCall[router_pb2.RouteRequest, router_pb2.RouteResponse]
_RouteOutbox = Outbox[inference_pb2.SessionUp]


class Sink(Protocol):
    """Receiver of a session's frames."""

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame of this session came."""
        ...

    def region_lost(self, error: OutriderError) -> None:
        """The stream broke; the session is over."""
        ...


@dataclass(frozen=True, slots=True)
class LinkPolicy:
    """Limits and intervals of a link to a router."""

    max_queued_frames: int
    """Frames that may wait for the router."""
    prompt_memory_bytes: int = 16 << 20
    """For prompts that the router has seen."""
    connect_s: float = 5.0
    """Limit of one attempt to connect."""
    probe_interval_s: float = 1.0
    """Time between two probes."""
    probe_timeout_s: float = 1.0
    """Limit of a probe's answer."""
    max_backoff_s: float = 2.0
    """Longest pause between two attempts to connect."""


class RouterLink:
    """One router. `run` keeps the stream up; sessions live as long as the stream they opened on."""

    def __init__(
        self,
        address: str,
        table: RouterTable,
        policy: LinkPolicy,
        *,
        clock: StallFreeClock,
        rng: Random,
        on_connected: Callable[[], None],
        tls: Tls = PLAINTEXT,
    ) -> None:
        self.address = address
        self._table = table
        self._policy = policy
        self._clock = clock
        self._reconnector = Reconnector(max_backoff_s=policy.max_backoff_s, rng=rng)
        self._on_connected = on_connected
        self._tls = tls
        self._outbox: _RouteOutbox | None = None
        self._embedding: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub | None = None
        """While the stream is up."""
        self._stub: router_pb2_grpc.RouterServiceAsyncStub | None = None
        """While the stream is up."""
        self._sinks: dict[int, Sink] = {}
        """By session id."""
        self._unserved: set[int] = set()
        """Sessions without a token through this router."""
        self._last_session_id = 0
        self._heard_at = 0.0
        """When the router last sent anything, on the link's clock."""
        self.prompts = PromptMemory(0)
        """This edge's prompts that the router has, because they were sent on this stream."""

    @property
    def num_sessions(self) -> int:
        """Sessions that may still receive frames."""
        return len(self._sinks)

    def open(self, sink: Sink, frame: inference_pb2.SessionUp) -> int:
        """Open a session and return its id. Raises UnavailableError, OverloadedError."""
        if self._outbox is None:
            raise UnavailableError(f"the router at {self.address} cannot be reached")
        frame.session = self._last_session_id + 1
        self._outbox.put_nowait(frame)
        self._last_session_id += 1
        self._sinks[self._last_session_id] = sink
        self._unserved.add(self._last_session_id)
        self._table.opened(self.address, self._last_session_id)
        return self._last_session_id

    def draft(self, session_id: int, frame: inference_pb2.SessionUp) -> bool:
        """Queue drafts of a session; False if they were dropped, which costs nothing but speed."""
        if self._outbox is None:
            return False  # the stream broke; region_lost tells the session
        frame.session = session_id
        return self._outbox.offer(frame)

    def send(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Queue a frame that the session cannot do without. Raises OverloadedError."""
        if self._outbox is not None:  # otherwise region_lost tells the session
            frame.session = session_id
            self._outbox.put_nowait(frame)

    def cancel(self, session_id: int, frame: inference_pb2.SessionUp) -> None:
        """Queue the cancel of a session, however many frames wait for the router."""
        if self._outbox is not None:
            frame.session = session_id
            self._outbox.put_nowait(frame, last=True)

    @property
    def embedding(self) -> embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub:
        """The router's service for vectors; the caller ends the calls that it begins. Raises
        UnavailableError."""
        if self._embedding is None:
            raise UnavailableError(f"the router at {self.address} cannot be reached")
        return self._embedding

    @property
    def is_up(self) -> bool:
        """Whether its stream is up."""
        return self._stub is not None

    async def describe_mesh(self) -> State:
        """What the router says of the mesh (`outrider.mesh_state.mesh_as_dict`). Raises
        UnavailableError, and PermissionDeniedError if its settings do not allow it."""
        if self._stub is None:
            raise UnavailableError(f"the router at {self.address} cannot be reached")
        try:
            async with self._clock.timeout(_DESCRIBE_S):
                said = await self._stub.DescribeMesh(router_pb2.DescribeMeshRequest())
        except TimeoutError as error:
            raise UnavailableError("the router does not say how the mesh is doing") from error
        except grpc.aio.AioRpcError as error:
            reason = from_rpc_error(error)
            if isinstance(reason, PermissionDeniedError):
                raise reason from error
            raise UnavailableError(f"the router was lost: {reason.message}") from error
        return mesh_as_dict(said.models, said.replicas)

    def heard(self) -> None:
        """The router sent something, on the stream or in answer to a call: it is not silent, though
        the answer to a probe may wait behind thousands of others, there or here."""
        self._heard_at = self._clock()

    def forget(self, session_id: int) -> None:
        """The session needs no frame any more; what still comes for it is dropped."""
        if self._sinks.pop(session_id, None) is not None:
            self._unserved.discard(session_id)
            self._table.closed(self.address, session_id)

    async def run(self) -> None:
        """Connect, relay, and connect again after every loss, until cancelled."""
        await self._reconnector.run(self._connect, lambda loss: self._lose(loss_text(loss)))

    def hasten(self) -> None:
        """Connect without further delay: no router can be reached, and a session needs one."""
        self._reconnector.hasten()

    async def _connect(self) -> NoReturn:
        """One connection, from greeting to loss. Raises the reason of the loss."""
        async with make_channel(self.address, tls=self._tls, role=Role.ROUTER) as channel:
            stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(
                channel
            )
            with ExitStack() as ending:
                async with self._clock.timeout(self._policy.connect_s):
                    said, rtt_ms = await self._ask(stub)
                    outbox: _RouteOutbox = Outbox(self._policy.max_queued_frames)
                    call = stub.Route(_requests(outbox))
                    # Closing the channel does not end every call (grpc/grpc issue 42125).
                    ending.callback(end_call, call)
                    await call.wait_for_connection()
                self._table.connected(self.address, self._clock())
                self._heard(said, rtt_ms)
                self._stub = stub
                self._embedding = embedding_pb2_grpc.EmbeddingRouterServiceStub(channel)
                ending.callback(self._unlink)
                await self._serve(stub, call, outbox)

    def _unlink(self) -> None:
        self._embedding = self._stub = None

    async def _serve(
        self, stub: router_pb2_grpc.RouterServiceAsyncStub, call: _RouteCall, outbox: _RouteOutbox
    ) -> NoReturn:
        self._outbox = outbox
        self.prompts = PromptMemory(self._policy.prompt_memory_bytes, is_searched=True)
        self._on_connected()
        began_s = self._clock()
        why = "the edge leaves it"
        try:
            await until_one_fails(self._read(call), self._probe(stub), self._distrust())
        except LOSSES as failure:
            why = loss_text(failure)
            raise
        finally:
            end_call(call)
            if self._clock() - began_s > self._policy.max_backoff_s:
                self._reconnector.reset()
            self._lose(why)
            self._break(outbox, UnavailableError(f"the router at {self.address} was lost: {why}"))

    async def _read(self, call: _RouteCall) -> NoReturn:
        try:
            async for frames in received(call, _FRAMES_PER_TURN):
                self._relay(frames)
                self.heard()
        except LOSSES:
            raise
        except Exception as failure:
            # A defect of the edge costs this stream, not the way to the region for good.
            log.exception("router_stream_failed", router=self.address)
            raise UnavailableError(
                f"the edge failed: {type(failure).__name__}; try again"
            ) from failure
        raise UnavailableError("it ended the stream")

    def _relay(self, frames: list[inference_pb2.SessionDown]) -> None:
        # Apart from the loop that reads, which would keep the last ones until others come.
        for frame in frames:
            session_id = frame.session
            sink = self._sinks.get(session_id)
            if sink is not None:
                if session_id in self._unserved and frame.HasField("commit"):
                    self._unserved.discard(session_id)
                    self._table.served(self.address, session_id, self._clock())
                sink.region_frame(frame)

    async def _probe(self, stub: router_pb2_grpc.RouterServiceAsyncStub) -> NoReturn:
        """Measure the round trip; give the router up once the table has."""
        while self._table[self.address].health.is_up:
            await asyncio.sleep(self._policy.probe_interval_s)
            asked_at = self._clock()
            try:
                async with self._clock.timeout(self._policy.probe_timeout_s):
                    said, rtt_ms = await self._ask(stub)
            except TimeoutError:
                if self._heard_at > asked_at:
                    self._table.heard(self.address, self._clock())
                else:
                    self._table.unanswered(self.address, self._clock())
            else:
                self._heard(said, rtt_ms)
        raise UnavailableError("it does not answer")

    async def _distrust(self) -> NoReturn:
        """Leave the router when its certificate is good no more."""
        await until_distrusted(self.address, tls=self._tls, role=Role.ROUTER)

    async def _ask(
        self, stub: router_pb2_grpc.RouterServiceAsyncStub
    ) -> tuple[router_pb2.GetRouterResponse, float]:
        """The router's self-description, and the round trip in milliseconds."""
        sent_s = time.monotonic()
        said = await stub.GetRouter(router_pb2.GetRouterRequest())
        return said, (time.monotonic() - sent_s) * 1000.0

    def _heard(self, said: router_pb2.GetRouterResponse, rtt_ms: float) -> None:
        self._table.answered(self.address, said.region, rtt_ms, said.serving, self._clock())

    def _lose(self, why: str) -> None:
        self._table.lost(self.address, why, self._clock(), is_own=self._clock.stalled_recently)

    def _break(self, outbox: _RouteOutbox, error: OutriderError) -> None:
        self._outbox = None
        outbox.close()
        sinks, self._sinks = self._sinks, {}
        self._unserved.clear()
        for session_id in sinks:
            self._table.closed(self.address, session_id)
        for sink in sinks.values():
            sink.region_lost(error)


def _requests(outbox: _RouteOutbox) -> AsyncIterator[router_pb2.RouteRequest]:
    return outgoing(outbox, router_pb2.RouteRequest.FromString)
