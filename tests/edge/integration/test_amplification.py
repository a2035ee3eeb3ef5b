"""However a handshake ends: to an address that is not validated, an edge sends at most three times
the bytes that came from there (RFC 9000, section 8.1). Whoever forges that address could otherwise
have an edge flood it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion

from bench.hostile.quic_attacks import initial
from bench.hostile.quic_client import crypto_frame, stream_frame
from outrider.client.protocol import ALPN
from outrider.testing import eventually
from services.edge.limits.listener import HandshakeLimits
from services.edge.quic.connection import EdgeConnection
from tests.edge.integration.running import Running

PADDED = 1200
"""Bytes of a client's first datagram (RFC 9000, section 14.1)."""


@dataclass
class Sender:
    """A socket that counts, and answers nothing."""

    mesh: Running
    num_sent: int = 0
    received: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect(("127.0.0.1", self.mesh.ports.main))

    def send(self, datagrams: Iterable[bytes]) -> None:
        for data in datagrams:
            self._socket.send(data)
            self.num_sent += len(data)

    def look(self) -> bool:
        """Count what came; whether something did. Fails beyond the limit."""
        try:
            while True:
                self.received.append(self._socket.recv(1 << 16))
        except BlockingIOError:
            num_received = sum(map(len, self.received))
            assert num_received <= 3 * self.num_sent, [len(it) for it in self.received]
        return bool(self.received)

    async def until(self, ends: Callable[[], object]) -> int:
        """Look until this holds; the number of bytes that came by then."""

        def has_ended() -> bool:
            self.look()
            return bool(ends())

        await eventually(has_ended)
        self.look()
        self._socket.close()
        return sum(map(len, self.received))


class Client(QuicConnection):
    """A client that says of itself what it likes."""

    def __init__(self, parameters: bytes | None = None, protocol: str = ALPN) -> None:
        stated = QuicConfiguration(
            is_client=True, alpn_protocols=[protocol], server_name="localhost"
        )
        super().__init__(configuration=stated)
        self._stated = parameters

    def _serialize_transport_parameters(self) -> bytes:
        own = super()._serialize_transport_parameters()
        return own if self._stated is None else self._stated

    def flight(self) -> list[bytes]:
        """Its first datagrams."""
        self.connect(("192.0.2.1", 4433), now=0.0)
        return [data for data, _ in self.datagrams_to_send(now=0.0)]


def of_version(version: int) -> bytes:
    """A first datagram of another version of QUIC."""
    (data,) = Client().flight()
    return data[:1] + version.to_bytes(4, "big") + data[5:]


def cut(data: bytes) -> bytes:
    """A datagram that is too small to be a first one."""
    return data[: PADDED - 1]


REFUSED = {
    "an application protocol that is not served": lambda: Client(protocol="none").flight(),
    "transport parameters that are none": lambda: Client(b"\xff\xff").flight(),
    "a ClientHello that is none": lambda: [initial([crypto_frame(0, b"\x01\x00\x00\x02hi")])],
    "another message of TLS": lambda: [initial([crypto_frame(0, b"\x0b\x00\x00\x02hi")])],
    "a stream before the handshake": lambda: [initial([stream_frame(0, 0, b"hello")])],
    "a frame that is none": lambda: [initial([b"\x3f\x3f"])],
    "a client that closes": lambda: [initial([b"\x1c\x00\x00\x00"])],
}


@pytest.mark.parametrize("how", REFUSED)
async def test_a_handshake_that_is_refused(
    how: str, mesh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, end = list[EdgeConnection](), EdgeConnection._terminated

    def terminated(self: EdgeConnection, *, gave_up: bool) -> None:
        end(self, gave_up=gave_up)
        ended.append(self)

    monkeypatch.setattr(EdgeConnection, "_terminated", terminated)
    sender = Sender(mesh)
    sender.send(REFUSED[how]())
    await sender.until(lambda: bool(ended))
    assert not mesh.edge.listener.connections


@pytest.mark.edge(handshake_timeout_s=2.0)
@pytest.mark.parametrize("num_copies", [1, 3])
async def test_a_handshake_that_never_ends(num_copies: int, mesh: Running) -> None:
    sender = Sender(mesh)
    sender.send(Client().flight() * num_copies)
    num_bytes = await sender.until(
        lambda: mesh.sample("outrider_edge_refused_total", reason="handshake timeout")
    )
    assert num_bytes > 0
    assert not mesh.edge.listener.connections


async def test_a_handshake_when_the_edge_stops(mesh: Running) -> None:
    sender = Sender(mesh)
    sender.send(Client().flight())
    await sender.until(sender.look)
    sender = Sender(mesh)
    sender.send(Client().flight())
    await sender.until(lambda: len(mesh.edge.listener.connections) == 2)
    await mesh.edge.stop()
    assert not mesh.edge.listener.connections


@pytest.mark.parametrize(
    ("limits", "datagram"),
    [
        (HandshakeLimits(retry_from_half_open=0), initial([crypto_frame(0, b"hello")])),
        (HandshakeLimits(retry_from_half_open=0), initial([b"\x01"], token=bytes(64))),
        (HandshakeLimits(max_resident_bytes=1), initial([crypto_frame(0, b"hello")])),
        (HandshakeLimits(max_half_open=0), initial([crypto_frame(0, b"hello")])),
        (HandshakeLimits(), of_version(QuicProtocolVersion.VERSION_2 + 1)),
        (HandshakeLimits(), of_version(0x1A2A3A4A)),
    ],
    ids=["Retry", "a bad token", "no memory", "too many handshakes", "another version", "grease"],
)
async def test_a_first_packet_that_makes_no_connection(
    limits: HandshakeLimits, datagram: bytes, mesh: Running
) -> None:
    mesh.edge.listener.shared.handshakes._limits = limits
    sender = Sender(mesh)
    sender.send([datagram])
    assert await sender.until(sender.look) < PADDED, "less than came, so that nothing circles"
    assert not mesh.edge.listener.connections


async def test_what_is_no_first_packet_gets_no_answer(mesh: Running) -> None:
    sender = Sender(mesh)
    sender.send([cut(of_version(0x1A2A3A4A)), cut(Client().flight()[0]), b"\x40" + os.urandom(64)])
    told = Sender(mesh)  # whose datagram comes behind them
    told.send([of_version(0x1A2A3A4A)])
    await told.until(told.look)
    assert await sender.until(lambda: True) == 0
