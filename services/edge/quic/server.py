"""The UDP socket's protocol: datagrams are read at once and looked at in turns."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Final, cast

from aioquic.quic.connection import NetworkAddress

from services.edge.quic.turns import Turns

SLICE_S: Final = 0.0003
"""Others have their turn of the event loop after so long: a datagram takes some 0.15 ms, and a chat
needs several turns until its first token is out."""
_MAX_READ: Final = 1024
"""Datagrams read from the socket in one turn: 2 to 3 ms at most."""
_MAX_DATAGRAM_BYTES: Final = 65_535
_MAX_BYTES_EACH: Final = 2 << 20
"""QUIC lets a client send 1 MiB ahead (RFC 9000, section 4.1, as aioquic sets it)."""
_MAX_BYTES: Final = 64 << 20


class FairServer(asyncio.DatagramProtocol):
    """Long prompts come in hundreds of datagrams. Looked at in the order in which they came, they
    would hold the loop for tens of milliseconds, and overflow the socket meanwhile.

    An event loop reads 32 datagrams in a turn (libuv) or one (asyncio), and a question that came
    behind a thousand others would wait in the socket for tens of turns, where nobody sees whose it
    is. So the rest is read here."""

    def __init__(self, look: Callable[[bytes, NetworkAddress], None]) -> None:
        """`look` is called for each datagram in its turn."""
        self._look = look
        self.transport: asyncio.DatagramTransport | None = None
        self._turns = Turns[NetworkAddress](_MAX_BYTES_EACH, _MAX_BYTES)
        self._is_busy = False
        self._is_closed = False
        self._socket: socket.socket | None = None
        self.num_dropped = 0
        """Datagrams that found no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is bound."""
        self.transport = cast(asyncio.DatagramTransport, transport)
        # The loop does not let go of its own.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._socket is not None:
            self._socket.close()

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """The first one of a turn of the loop is looked at right away."""
        assert isinstance(data, bytes)
        if self._is_busy:
            self._put(addr, data)
            return
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._go_on)
        self._look(data, addr)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()

    def _put(self, addr: NetworkAddress, data: bytes) -> None:
        self.num_dropped += not self._turns.put(addr, data)

    def _read(self) -> None:
        assert self._socket is not None
        for _ in range(_MAX_READ):
            try:
                data, addr = self._socket.recvfrom(_MAX_DATAGRAM_BYTES)
            except OSError:  # nothing left; or an error, which the loop's own read reports
                return
            self._put(addr, data)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._read()
        until = time.perf_counter() + SLICE_S
        while not self._is_closed and (taken := self._turns.take()) is not None:
            addr, data = taken
            try:
                self._look(data, addr)
            except BaseException:  # the loop reports it; the others' datagrams are looked at
                asyncio.get_running_loop().call_soon(self._go_on)
                raise
            if time.perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._is_busy = False
