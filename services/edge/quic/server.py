"""The UDP socket's protocol: datagrams are read at once and looked at in turns."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aioquic.asyncio.server import QuicServer
from aioquic.quic.connection import NetworkAddress

from services.edge.quic.turns import Turns

SLICE_S: Final = 0.001
"""Others have their turn of the event loop after so long: a datagram takes some 0.15 ms."""
_MAX_BYTES_EACH: Final = 2 << 20
"""QUIC lets a client send 1 MiB ahead (RFC 9000, section 4.1, as aioquic sets it)."""
_MAX_BYTES: Final = 64 << 20


class FairServer(QuicServer):
    """Long prompts come in hundreds of datagrams. Looked at in the order in which they came, they
    would hold the loop for tens of milliseconds, and overflow the socket meanwhile."""

    def __init__(self, **settings: Any) -> None:
        """As QuicServer."""
        super().__init__(**settings)
        self._turns = Turns[NetworkAddress](_MAX_BYTES_EACH, _MAX_BYTES)
        self._is_busy = False
        self._is_closed = False
        self.num_dropped = 0
        """Datagrams that found no room."""

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """The first one of a turn of the loop is looked at right away."""
        assert isinstance(data, bytes)
        if self._is_busy:
            self.num_dropped += not self._turns.put(addr, data)
            return
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._go_on)
        super().datagram_received(data, addr)

    def close(self) -> None:
        """End all connections and stop listening."""
        self._is_closed = True
        super().close()

    def _go_on(self) -> None:
        until = time.perf_counter() + SLICE_S
        while not self._is_closed and (taken := self._turns.take()) is not None:
            addr, data = taken
            super().datagram_received(data, addr)
            if time.perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._is_busy = False
