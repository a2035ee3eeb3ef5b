"""The way to the region: one long-lived Route stream per router, many sessions on each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from outrider.errors import OutriderError, OverloadedError, UnavailableError
from outrider.rpc import Outbox, from_rpc_error, make_channel
from outrider.v1 import inference_pb2, router_pb2, router_pb2_grpc

log = structlog.get_logger()

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0


class Sink(Protocol):
    """Where a session's frames go."""

    def region_frame(self, frame: inference_pb2.SessionDown) -> None:
        """A frame of this session came."""
        ...

    def region_lost(self, error: OutriderError) -> None:
        """The stream broke; the session is over."""
        ...


class RouterLink:
    """One router. `run` keeps the stream up; sessions live as long as the stream they opened on."""

    def __init__(
        self, address: str, max_queued_frames: int, on_connected: Callable[[], None]
    ) -> None:
        self.address = address
        self._max_queued_frames = max_queued_frames
        self._on_connected = on_connected
        self._outbox: Outbox[router_pb2.RouteRequest] | None = None
        self._sinks: dict[int, Sink] = {}
        self._last_number = 0

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened."""
        return self._outbox is not None

    @property
    def num_sessions(self) -> int:
        """Sessions that may still receive frames."""
        return len(self._sinks)

    def open(self, sink: Sink, frame: inference_pb2.SessionUp) -> int:
        """Open a session and return its number. Raises UnavailableError, OverloadedError."""
        if self._outbox is None:
            raise UnavailableError(f"the router at {self.address} cannot be reached")
        frame.session = self._last_number + 1
        self._outbox.put_nowait(router_pb2.RouteRequest(frame=frame))
        self._last_number += 1
        self._sinks[self._last_number] = sink
        return self._last_number

    def draft(self, number: int, frame: inference_pb2.SessionUp) -> bool:
        """Queue drafts of a session; False if they were dropped, which costs nothing but speed."""
        if self._outbox is None:
            return False  # the stream broke; region_lost tells the session
        frame.session = number
        try:
            self._outbox.put_nowait(router_pb2.RouteRequest(frame=frame))
        except OverloadedError:
            return False
        return True

    def cancel(self, number: int, frame: inference_pb2.SessionUp) -> None:
        """Queue the cancel of a session, however many frames wait for the router."""
        if self._outbox is not None:
            frame.session = number
            self._outbox.put_nowait(router_pb2.RouteRequest(frame=frame), last=True)

    def forget(self, number: int) -> None:
        """The session needs no frame any more; what still comes for it is dropped."""
        self._sinks.pop(number, None)

    async def run(self) -> None:
        """Connect, relay, and connect again after every loss, until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        channel = make_channel(self.address)
        try:
            while True:
                await channel.channel_ready()
                began = asyncio.get_running_loop().time()
                error = await self._relay(channel)
                log.warning("router lost", router=self.address, error=error.message)
                if asyncio.get_running_loop().time() - began > MAX_BACKOFF_S:
                    backoff_s = FIRST_BACKOFF_S
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        finally:
            await channel.close()

    async def _relay(self, channel: grpc.aio.Channel) -> OutriderError:
        """Run one stream to its end and return why it ended."""
        outbox = self._outbox = Outbox(self._max_queued_frames)
        call = router_pb2_grpc.RouterServiceStub(channel).Route(outbox)
        self._on_connected()
        error: OutriderError = UnavailableError(f"the router at {self.address} ended the stream")
        try:
            async for response in call:
                sink = self._sinks.get(response.frame.session)
                if sink is not None:
                    sink.region_frame(response.frame)
        except grpc.aio.AioRpcError as failure:
            error = UnavailableError(
                f"the router at {self.address} was lost: {from_rpc_error(failure).message}"
            )
        except DecodeError as failure:
            error = UnavailableError(f"the router at {self.address} sent no frame: {failure}")
        except Exception as failure:
            # A defect of the edge costs this stream, not the way to the region for good.
            log.exception("stream to the router failed", router=self.address)
            error = UnavailableError(f"the edge failed: {type(failure).__name__}; try again")
        finally:
            call.cancel()
            self._break(outbox, error)
        return error

    def _break(self, outbox: Outbox[router_pb2.RouteRequest], error: OutriderError) -> None:
        self._outbox = None
        outbox.close()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.region_lost(error)


class Upstream:
    """The routers of this edge, best first."""

    def __init__(self, addresses: tuple[str, ...], max_queued_frames: int) -> None:
        self._connected = asyncio.Event()
        self.links = tuple(
            RouterLink(address, max_queued_frames, self._connected.set) for address in addresses
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """Whether any router can be reached."""
        return any(link.ready for link in self.links)

    async def wait_connected(self) -> None:
        """Return once a router has been reached for the first time."""
        await self._connected.wait()

    def pick(self) -> RouterLink:
        """The first router that can be reached. Raises UnavailableError."""
        for link in self.links:
            if link.ready:
                return link
        names = ", ".join(link.address for link in self.links)
        raise UnavailableError(
            f"no router can be reached ({names}); check that one runs", retry_delay_ms=1000
        )

    def start(self) -> None:
        """Begin to connect."""
        self._tasks = [asyncio.create_task(link.run(), name=link.address) for link in self.links]

    async def stop(self) -> None:
        """Break every stream; open sessions hear of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
