"""Ends one request over HTTP/2 and no other of its connection, with RST_STREAM (RFC 9113, section
6.4). Anycorn has no verb for it: an application can only end its whole connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import h2.errors
import h2.exceptions
from anycorn.protocol.h2 import H2Protocol

_SENT_WITHIN_S: Final = 5.0
"""A connection that does not take the frame within this time is stuck as a whole, and closed."""


class StreamResets:
    """Resets of one connection's streams."""

    def __init__(self, protocol: Callable[[], object], abort: Callable[[], None]) -> None:
        """`protocol` returns anycorn's, which is known once the connection's first bytes are;
        `abort` closes the connection at once."""
        self._protocol = protocol
        self._abort = abort
        self._under_way: set[asyncio.Task[None]] = set()

    def abort_of(self, send: Any) -> Callable[[], None]:
        """A function that ends the request whose answer goes through `send`: its stream over
        HTTP/2, its connection over HTTP/1.1."""
        protocol = self._protocol()
        number: int | None = getattr(getattr(send, "__self__", None), "stream_id", None)
        if not isinstance(protocol, H2Protocol) or number is None:
            return self._abort

        def reset() -> None:
            task = asyncio.create_task(self._reset(protocol, number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

        return reset

    async def _reset(self, protocol: H2Protocol, stream: int) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # the stream or all is closed
            protocol.connection.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        try:
            async with asyncio.timeout(_SENT_WITHIN_S):
                await protocol._discard_send_state(stream)
                await protocol._flush()
        except TimeoutError:
            self._abort()
