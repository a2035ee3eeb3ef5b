"""HTTP/2 of this edge: anycorn's, except that a connection which takes no more requests finishes
those it has (RFC 9113, sections 6.8 and 8.7). Anycorn sends GOAWAY through h2, which then sends
nothing more on the connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import h2.events
import h2.exceptions
from anycorn.events import Closed, Event, RawData, Updated
from anycorn.protocol import ProtocolWrapper
from anycorn.protocol.events import Event as StreamEvent
from anycorn.protocol.events import StreamClosed
from anycorn.protocol.h2 import H2Protocol
from anycorn.worker_context import WorkerContext
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame


class Pushing(Protocol):
    """Sends on a connection without waiting."""

    @property
    def may_push(self) -> bool:
        """Whether nothing waits to be sent, and the client reads."""
        ...

    def push(self, data: bytes) -> None:
        """Send, where `may_push` says so."""
        ...


class Http2(H2Protocol):
    """One connection."""

    def __init__(self, wrapper: ProtocolWrapper, pushing: Pushing) -> None:
        super().__init__(
            wrapper.app,
            wrapper.config,
            WorkerContext(None),  # that of all connections has anycorn say GOAWAY
            wrapper.task_group,
            wrapper.state,
            *(wrapper.client, wrapper.server, wrapper.send, wrapper.tls),
        )
        self._max_requests = wrapper.config.keep_alive_max_requests
        self._is_stopping = wrapper.context.terminated.is_set
        self._has_said_goodbye = False
        self._num_requests = 0
        self._last_stream = 0
        """The last one that is served."""
        self._pushing = pushing
        self._has_pushed = False
        """Whether frames wait for the end of this turn of the event loop."""
        self._flushing: set[asyncio.Task[None]] = set()
        """Tasks that send them once there is room."""

    def forget(self) -> None:
        """The connection is over: let go of what came over it."""
        del self.connection

    @property
    def is_leaving(self) -> bool:
        """Whether it takes no more requests."""
        is_full = self._num_requests >= self._max_requests
        return is_full or self._has_said_goodbye or self._is_stopping()

    @property
    def has_served(self) -> bool:
        """Whether the connection had a request."""
        return bool(self._last_stream)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and all answers were sent."""
        return super().idle and not self.stream_buffers

    async def say_goodbye(self) -> None:
        """Send GOAWAY with the last stream served. The client may send later requests again, on
        another connection: they were not processed.

        Sent as late as possible: many Python clients (httpx) take it for the end of all running
        requests. For the same reason it comes without a reset.
        """
        if not self._has_said_goodbye:
            self._has_said_goodbye = True
            frame = GoAwayFrame(last_stream_id=self._last_stream)
            await self.send(RawData(data=frame.serialize()))

    def push(self, stream_id: int, data: bytes) -> bool:
        """Send a piece of a body, with those of the connection's other streams in this turn of the
        event loop; False: nothing was sent, for something waits before it or the client's windows
        are too small."""
        waiting = self.stream_buffers.get(stream_id)
        if self.closed or waiting is None or waiting.buffer or not self._pushing.may_push:
            return False
        connection = self.connection
        try:
            window = connection.local_flow_control_window(stream_id)
            if len(data) > min(window, connection.max_outbound_frame_size):
                return False
            connection.send_data(stream_id, data)
        except h2.exceptions.ProtocolError:
            return False  # its stream is closed; whoever sends and waits is told
        if not self._has_pushed:
            self._has_pushed = True
            asyncio.get_running_loop().call_soon(self._send_pushed)
        return True

    def _send_pushed(self) -> None:
        self._has_pushed = False
        if self.closed:
            return
        if not self._pushing.may_push:
            # By asyncio: anyio begins no task from a callback of the event loop.
            task = asyncio.get_running_loop().create_task(self._flush())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)
        elif data := self.connection.data_to_send():
            self._pushing.push(data)

    async def handle(self, event: Event) -> None:
        """Handle an event as anycorn does; when the client is gone, also release tasks that wait
        for it to read."""
        await super().handle(event)
        if isinstance(event, Closed):
            for stream in list(self.stream_buffers):
                await self._discard_send_state(stream)

    async def stream_send(self, event: StreamEvent) -> None:
        """A request's next event."""
        if isinstance(event, StreamClosed):
            await self._close_stream(event.stream_id)
            await self.send(Updated(idle=self.idle))
        else:
            await super().stream_send(event)

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        if stream_id not in self.stream_buffers and self.idle:  # it was the end of the last one
            await self.send(Updated(idle=True))

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        was_told = self._has_said_goodbye
        served = []
        for event in events:
            if not isinstance(event, h2.events.RequestReceived):
                served.append(event)
            elif not self.is_leaving:
                self._num_requests += 1
                self._last_stream = event.stream_id
                served.append(event)
            elif was_told:
                with contextlib.suppress(h2.exceptions.ProtocolError):  # its client has reset it
                    self.connection.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            else:
                await self.say_goodbye()
        await super()._handle_events(served)
        if self.idle and any(isinstance(it, h2.events.StreamReset) for it in served):
            await self.send(Updated(idle=True))
