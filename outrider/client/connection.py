"""The QUIC connection to an edge: streams in, streams out, one socket after another."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
from typing import Any, Final, TypeAlias, cast

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.recovery import QuicPacketSpace

from outrider.client.failures import connection_error, stream_error
from outrider.client.life_signs import LifeSigns
from outrider.client.liveness import LinkAction
from outrider.client.protocol import ACK_DELAY_S, CloseCode
from outrider.client.streams import StreamReader
from outrider.client.ways import Way
from outrider.errors import OutriderError, UnavailableError

_LONG_HEADER: Final = 0x80
_MIN_RESET_BYTES: Final = 21
Peer: TypeAlias = tuple[Any, ...]
"""An address as sockets give it: host and port, for IPv6 followed by flow label and scope."""

# What goes wrong with a connection is told by the errors raised; a program that wants aioquic's
# lines too sets up logging.
logging.getLogger("quic").addHandler(logging.NullHandler())


class _Socket(asyncio.DatagramProtocol):
    """One UDP socket of a connection. Connected, so that it hears of a refused port."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: NetworkAddress) -> None:
        self._connection.datagram_received(data, addr)

    def error_received(self, exc: Exception) -> None:
        self._connection.socket_failed(self._transport, exc)


class ClientConnection(QuicConnectionProtocol):
    """One connection to the edge called `edge`. `lost` is why it cannot be used any more.

    It moves to another socket by itself when the present one cannot send, or hears nothing: the
    machine may be on another network now (QUIC migration, RFC 9000, section 9).
    """

    def __init__(
        self, quic: QuicConnection, edge: str, peer: Peer, process_name: bytes = b""
    ) -> None:
        """`process_name`: which of the edge's processes is asked for (protocol.process_name)."""
        super().__init__(quic)
        # The connection ID of the first packet is the client's to choose (RFC 9000, section 7.2),
        # and its beginning says to the edge's machine which process is to get it. aioquic takes
        # none.
        cid = process_name + quic._peer_cid.cid[len(process_name) :]
        quic._peer_cid.cid = quic._original_destination_connection_id = cid
        quic._ack_delay = ACK_DELAY_S  # aioquic has no public setting for it
        self._edge = edge
        self._peer = peer
        self._readers: dict[int, StreamReader] = {}
        self._established: asyncio.Future[None] = self._loop.create_future()
        self._established.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._pings = itertools.count()
        self._life = LifeSigns(lambda: bool(self._readers), self._act)
        self._patience: asyncio.TimerHandle | None = None
        """Ends a handshake that takes too long."""
        self.heard_at: float | None = None
        """Loop time of the last packet that only the edge can have sent; None: none came."""
        self.was_refused = False
        """Whether the handshake ended because one side did not want the other."""
        self._moving: asyncio.Task[None] | None = None
        self.num_migrations = 0
        self.lost: OutriderError | None = None
        self.process_name = b""
        """Name of the edge process at the other end, as read from chats' resume tokens
        (protocol.process_name); empty: unknown."""
        self.is_leaving = False
        """Its edge is being stopped: chats under way may end here, others go another way."""

    @property
    def way(self) -> Way:
        """QUIC."""
        return Way.QUIC

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        return not self._readers

    @property
    def was_established(self) -> bool:
        """Whether the edge ever answered."""
        return self._established.done() and self._established.exception() is None

    @property
    def has_ticket(self) -> bool:
        """Whether data sent before the handshake is complete goes in 0-RTT."""
        ticket = self._quic.configuration.session_ticket
        return ticket is not None and ticket.max_early_data_size is not None

    async def bind(self) -> None:
        """Open the first socket. Raises OSError."""
        self._transport = await self._open_socket()

    def begin(self, timeout_s: float) -> None:
        """Begin the handshake; data sent in this turn of the loop goes with it."""
        self.connect(cast(Any, self._peer), transmit=False)
        self._transmit_soon()
        self._patience = self._loop.call_later(timeout_s, self._unanswered, timeout_s)

    async def established(self) -> None:
        """Return once the handshake is complete. Raises UnavailableError, OverloadedError."""
        await asyncio.shield(self._established)

    async def migrate(self) -> None:
        """Continue from another socket; streams stay as they are. Raises the error that lost the
        connection, or UnavailableError if the edge cannot be reached now, or not yet."""
        self._check_lost()
        if not self._established.done():  # RFC 9000, section 9: not before the handshake
            raise UnavailableError(f"the handshake with {self._edge} is not complete; try again")
        try:
            transport = await self._open_socket()
        except OSError as error:
            raise UnavailableError(
                f"{self._edge} cannot be reached now ({error}); try again"
            ) from error
        try:
            self._check_lost()  # meanwhile
        except OutriderError:
            transport.close()
            raise
        old, self._transport = self._transport, transport
        if old is not None:
            old.close()
        self.num_migrations += 1
        self._life.moved()
        self._quic.change_connection_id()  # section 9.5: or both ways could be told to be one
        self._ping()
        self._watch()

    def open(self, reader: StreamReader, data: bytes) -> int:
        """Open a stream, send `data` on it and return its number. Raises the error that lost the
        connection, if it is lost."""
        self._check_lost()
        stream_id = self._quic.get_next_available_stream_id()
        self._readers[stream_id] = reader
        self.send(stream_id, data)
        self._watch()
        return stream_id

    def send(self, stream_id: int, data: bytes) -> None:
        """Send on a stream that is open; on one that has ended, nothing happens."""
        if stream_id in self._readers:
            with contextlib.suppress(RuntimeError):  # the edge asked to stop: the end is coming
                self._quic.send_stream_data(stream_id, data)
            self.transmit()

    def drop(self, stream_id: int) -> None:
        """Give a stream up in both directions, at once."""
        if self._readers.pop(stream_id, None) is not None:
            self._quic.reset_stream(stream_id, CloseCode.CLIENT_CANCELLED)
            self._quic.stop_stream(stream_id, CloseCode.CLIENT_CANCELLED)
            self.transmit()

    def shut(self, code: CloseCode = CloseCode.DONE, error: OutriderError | None = None) -> None:
        """See Connection.shut. One datagram informs the edge; the drain time of RFC 9000, section
        10.2, is skipped because the socket closes with the connection."""
        self._lose(error or UnavailableError("the client is closed"))
        self.close(code)
        for handle in (self._patience, self._timer, self._transmit_task, self._moving):
            if handle is not None:
                handle.cancel()
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """A datagram came from the edge."""
        assert isinstance(data, bytes)
        if self._is_reset(data):
            self._lose(UnavailableError(f"{self._edge} lost this connection; connect again"))
            return
        if self._established.done() or not self.has_ticket:
            super().datagram_received(data, addr)
            return
        spaces = list(self._quic._spaces.values())
        num_retries = self._quic._retry_count
        super().datagram_received(data, addr)
        if self._quic._retry_count != num_retries:
            self._send_early_data_again(spaces)

    def _send_early_data_again(self, spaces: list[QuicPacketSpace]) -> None:
        """Send 0-RTT data again after a Retry, by which the edge checks this client's address and
        drops the data. aioquic forgets the data together with its packet spaces: it would neither
        repeat it nor take it out of the bytes in flight."""
        for space in spaces:
            packets = list(space.sent_packets.values())
            in_flight = [packet for packet in packets if packet.in_flight]
            self._quic._loss._cc.on_packets_expired(packets=in_flight)
            for handler, arguments in (h for packet in packets for h in packet.delivery_handlers):
                handler(QuicDeliveryState.LOST, *arguments)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event, in order."""
        self._life.heard()
        if not isinstance(event, ConnectionTerminated):
            self.heard_at = self._loop.time()
        match event:
            case StreamDataReceived(data, end_stream, stream_id):
                self._received(stream_id, data, end_stream)
            case StreamReset(error_code, stream_id):
                if (reader := self._readers.pop(stream_id, None)) is not None:
                    reader.failed(stream_error(error_code))
            case HandshakeCompleted():
                if not self._established.done():
                    self._established.set_result(None)
                self._stop_patience()
                self._watch()
            case ConnectionTerminated():
                self.was_refused = not self._established.done()
                self._lose(connection_error(event, self._edge))

    def socket_failed(self, transport: asyncio.BaseTransport | None, error: Exception) -> None:
        """A socket reports an error. A refused connection means that no edge listens on the port;
        any other error is one of this machine's network, and another socket may work."""
        if transport is not self._transport:
            return
        if self._established.done() and not isinstance(error, ConnectionRefusedError):
            self._move()
            return
        self._lose(
            UnavailableError(
                f"nothing answers at {self._edge} ({error}); check that the edge runs and the port"
            )
        )

    def _is_reset(self, data: bytes) -> bool:
        """Whether a datagram is a stateless reset (RFC 9000, section 10.3.1), which aioquic does
        not check: its sender does not know this connection, and proves it by the reset token."""
        token = self._quic._peer_cid.stateless_reset_token
        return (
            bool(token)
            and len(data) >= _MIN_RESET_BYTES
            and data[0] & _LONG_HEADER == 0
            and hmac.compare_digest(data[-len(token) :], token)
        )

    def _received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        reader = self._readers.get(stream_id)
        if reader is None:
            return
        if end_stream:
            del self._readers[stream_id]
            # Our own direction ends too, or the edge would keep the stream.
            self._quic.reset_stream(stream_id, CloseCode.DONE)
        reader.received(data, end_stream)

    def _lose(self, error: OutriderError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._life.stop()
        self._stop_patience()
        if not self._established.done():
            self._established.set_exception(error)
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.failed(error)

    def _check_lost(self) -> None:
        if self.lost is not None:
            raise self.lost

    async def _open_socket(self) -> asyncio.DatagramTransport:
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _Socket(self), remote_addr=self._peer[:2]
        )
        return transport

    def _unanswered(self, timeout_s: float) -> None:
        self._lose(
            UnavailableError(
                f"no answer from {self._edge} within {timeout_s:g} s; check that the edge runs, "
                "the host and port, and that UDP gets through"
            )
        )

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _watch(self) -> None:
        """Set the timer of the life signs, once the handshake has had its own."""
        if self.lost is None and self._established.done():
            self._life.watch()

    def _act(self, action: LinkAction) -> None:
        match action:
            case LinkAction.PING:
                self._ping()
            case LinkAction.MIGRATE:
                self._move()
            case LinkAction.GIVE_UP:
                error = UnavailableError(f"{self._edge} no longer answers; connect again")
                self._quic.close(CloseCode.COMING_BACK)
                self._lose(error)
            case LinkAction.WAIT:
                pass

    def _ping(self) -> None:
        self._quic.send_ping(next(self._pings))
        self.transmit()

    def _move(self) -> None:
        if self._moving is None or self._moving.done():
            self._moving = self._loop.create_task(self._try_to_move())

    async def _try_to_move(self) -> None:
        # Without any network there is nothing to move to; the life signs decide how long that goes.
        with contextlib.suppress(OutriderError):
            await self.migrate()
