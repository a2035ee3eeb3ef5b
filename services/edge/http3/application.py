"""The call of an ASGI 3 application for one request over HTTP/3."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from outrider.telemetry.logs import failure_place
from services.edge.http3.messages import Message, scope_of
from services.edge.http3.session import Http3Session, RequestStream
from services.edge.limits.listener import MemoryBudget
from services.edge.limits.loop_time import billed
from services.edge.quic.alpn import Connection

_PIECE_BYTES: Final = 64 << 10
"""Most bytes of a response's body that are sent before the client has to have read earlier ones."""
_UNBOUNDED: Final = 1 << 62

Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
"""ASGI 3; any object that can be called so."""


class ApplicationCall:
    """One call, and the two callables that the application is given."""

    def __init__(
        self,
        application: Application,
        session: Http3Session,
        stream: RequestStream,
        connection: Connection,
    ) -> None:
        self._application = application
        self._session = session
        self._stream = stream
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._budget = MemoryBudget(_UNBOUNDED, connection.budget)
        """Memory that the application uses for the client's data."""
        self._is_client_lost = False
        self.task: asyncio.Task[None] | None = None
        """The task that runs `run`."""
        stream.wake = self._changed.set

    def cancel(self) -> None:
        """The application was given its time."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def client_lost(self) -> None:
        """Record that the client can no longer be reached."""
        self._is_client_lost = True
        self._budget.close()

    def close(self) -> None:
        """The call has ended."""
        self._budget.close()

    async def run(self, state: Mapping[str, Any]) -> None:
        """Call the application, with the state of its lifespan. Whatever it raises ends this
        request alone."""
        exchange, connection = self._stream.exchange, self._connection
        assert exchange is not None
        scope = scope_of(
            exchange.request,
            client=connection.peer,
            server=connection.local,
            state=state,
            connection={
                "secret": connection.secret,
                "budget": self._budget,
                "abort": self._abort,
                "push": self._push,
            },
        )
        try:
            await billed(self._called(scope), self._bill)
        except Exception as failure:
            connection.context.telemetry.refused("application", error=failure_place(failure))

    async def _called(self, scope: Message) -> None:
        await self._application(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        exchange = self._stream.exchange
        assert exchange is not None
        while True:
            self._changed.clear()
            message = self._session.receive(self._stream, self._loop.time())
            if message is not None:
                self._transmit()  # what was read makes room
                return message
            try:
                await self._changed.wait()
            finally:
                exchange.stop_waiting(self._loop.time())

    async def _send(self, message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] == "http.response.body" and len(body) > _PIECE_BYTES:
            last = (len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES
            for at in range(0, last, _PIECE_BYTES):
                piece = body[at : at + _PIECE_BYTES]
                await self._send_piece({**message, "body": piece, "more_body": True})
            message = {**message, "body": body[last:]}
        await self._send_piece(message)

    async def _send_piece(self, message: Message) -> None:
        self._session.send(self._stream, message, self._loop.time())
        self._transmit()
        if self._stream.gone_since is not None or self._is_client_lost:
            await asyncio.sleep(0)  # so that one who goes on sending can be cancelled
        while self._session.must_wait(self._stream):
            self._changed.clear()
            await self._changed.wait()

    def _push(self, data: bytes) -> bool:
        """Send a piece of the body at once; False: nothing was sent, for its client does not
        read."""
        if len(data) > _PIECE_BYTES or self._session.must_wait(self._stream):
            return False
        if self._stream.gone_since is not None or self._is_client_lost:
            return False
        message = {"type": "http.response.body", "body": data, "more_body": True}
        self._session.send(self._stream, message, self._loop.time())
        self._transmit()
        return True

    def _abort(self) -> None:
        self._session.abort(self._stream, self._loop.time())
        self._transmit()

    def _transmit(self) -> None:
        if not self._is_client_lost:
            self._connection.transmit_soon()

    def _bill(self, seconds: float) -> None:
        self._connection.unbilled_s += seconds
