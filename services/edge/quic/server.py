"""The UDP socket's protocol: datagrams are read at once and looked at in turns, within each
address's share of the loop's time."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from aioquic.quic.connection import NetworkAddress

from services.edge.quic.turns import Share, Turns

SLICE_S: Final = 0.0003
"""Others have their turn of the event loop after so long: a datagram takes some 0.15 ms, and a chat
needs several turns until its first token is out."""
_MAX_READ: Final = 1024
"""Datagrams read from the socket in one turn: 2 to 3 ms at most."""
_MAX_DATAGRAM_BYTES: Final = 65_535
_MAX_BYTES_EACH: Final = 2 << 20
"""QUIC lets a client send 1 MiB ahead (RFC 9000, section 4.1, as aioquic sets it)."""
_MAX_BYTES: Final = 64 << 20


class Payer(Protocol):
    """A connection, as far as it pays for what its datagrams take."""

    unpaid_s: float
    """What it took of the loop's time, while nobody knew that the client is where it says."""

    @property
    def is_proven(self) -> bool:
        """Whether that is known: nobody else can use an address's share up in its name."""
        ...


Look = Callable[[bytes, NetworkAddress], "Payer | None"]
"""Looks at a datagram, and returns whose it is."""


class FairServer(asyncio.DatagramProtocol):
    """Long prompts come in hundreds of datagrams. Looked at in the order in which they came, they
    would hold the loop for tens of milliseconds, and overflow the socket meanwhile.

    An event loop reads 32 datagrams in a turn (libuv) or one (asyncio), and a question that came
    behind a thousand others would wait in the socket for tens of turns, where nobody sees whose it
    is. So the rest is read here."""

    def __init__(self, look: Look, address_of: Callable[[str], str], share: Share) -> None:
        """`look` is called for each datagram in its turn; `address_of` says which addresses count
        as one."""
        self._look = look
        self._address_of = address_of
        self.transport: asyncio.DatagramTransport | None = None
        self._turns = Turns[NetworkAddress](_MAX_BYTES_EACH, _MAX_BYTES, share)
        self._timer: asyncio.TimerHandle | None = None
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
        self._wake()
        address = self._address_of(addr[0])
        if self._turns.may_pass(address, time.perf_counter()):
            self._handle(address, addr, data)
        else:
            self._put(addr, data)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            self.transport.close()

    def _put(self, addr: NetworkAddress, data: bytes) -> None:
        self.num_dropped += not self._turns.put(self._address_of(addr[0]), addr, data)

    def _wake(self) -> None:
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _handle(self, address: str, addr: NetworkAddress, data: bytes) -> None:
        began = time.thread_time()  # what others take of a core is not this client's fault
        payer = self._look(data, addr)
        if payer is None:
            return
        payer.unpaid_s += time.thread_time() - began
        if payer.is_proven:
            self._turns.spend(address, payer.unpaid_s, time.perf_counter())
            payer.unpaid_s = 0.0

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
        now = time.perf_counter()
        until = now + SLICE_S
        while not self._is_closed and (taken := self._turns.take(now)) is not None:
            try:
                self._handle(*taken)
            except BaseException:  # the loop reports it; the others' datagrams are looked at
                asyncio.get_running_loop().call_soon(self._go_on)
                raise
            now = time.perf_counter()
            if now >= until:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._is_busy = False
        self._rest(now)

    def _rest(self, now: float) -> None:
        """Nothing to do until an address that has used its share up has time again."""
        if self._timer is not None:
            self._timer.cancel()
        at = self._turns.next_at()
        if at is None or self._is_closed:
            self._timer = None
        else:
            wait_s = max(0.0, at - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._rested)

    def _rested(self) -> None:
        self._timer = None
        if not self._is_busy and not self._is_closed:
            self._wake()
