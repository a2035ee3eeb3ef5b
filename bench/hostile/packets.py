"""The attacks on the QUIC port, each again and again for as long as it is asked to, and clients
whose clocks are off by days."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bench.hostile import quic_attacks
from bench.hostile.quic_attacks import SOURCE, Address, Outcome, begin, ticket_of
from bench.hostile.target import Findings, Target, certificate_of

Once = Callable[[Address, Path | None], Awaitable[Outcome]]
Run = Callable[[Target, float, Findings], Awaitable[None]]
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)
_SOURCE: Final = "127.0.9.9"
"""Not the bystander's: what is shared by those of one address is no attack on others."""
_LOOPBACK: Final = tuple(f"127.0.{block}.{host}" for block in range(4) for host in range(1, 250))
"""A thousand addresses of this machine, for attacks from many."""


def repeated(once: Once, **settings: Any) -> Run:
    """An attack that goes on for as long as it should."""

    @functools.wraps(once)
    async def run(target: Target, seconds: float, findings: Findings) -> None:
        end = time.monotonic() + seconds
        SOURCE.set(_SOURCE)
        while time.monotonic() < end:
            try:
                outcome = await once((target.host, target.port), certificate_of(target), **settings)
            except _REFUSED as error:
                findings.count(f"refused: {type(error).__name__}")
                continue
            findings.count("sent", outcome.num_sent)
            findings.count("connected", outcome.num_connected)
            for reason, times in outcome.closed.items():
                findings.count(f"closed: {reason}", times)

    return run


async def clocks_off_by_days(address: Address, certificate: Path | None) -> Outcome:
    """Clients that come back with tickets whose age is off by days either way (RFC 8446, section
    4.2.11.1)."""
    outcome = Outcome()
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


ATTACKS: Final = (
    repeated(quic_attacks.doubling_offsets),
    repeated(quic_attacks.one_byte_fragments),
    repeated(quic_attacks.one_byte_frames),
    repeated(quic_attacks.partial_frames),
    repeated(quic_attacks.spoofed_initials, sources=_LOOPBACK),
    repeated(quic_attacks.half_open_handshakes, sources=_LOOPBACK),
    repeated(quic_attacks.crypto_fragments),
    repeated(quic_attacks.ping_flood),
    repeated(quic_attacks.many_pings),
    repeated(quic_attacks.path_challenges),
    repeated(quic_attacks.connection_ids),
    repeated(quic_attacks.retired_connection_ids),
    repeated(quic_attacks.acknowledgements),
    repeated(quic_attacks.packet_number_gaps),
    repeated(quic_attacks.empty_stream_frames),
    repeated(quic_attacks.rapid_resets),
    repeated(quic_attacks.stopped_streams),
    repeated(quic_attacks.malformed_frames),
    repeated(quic_attacks.mutated_packets),
    repeated(quic_attacks.idle_connections),
    repeated(quic_attacks.slow_readers),
    repeated(quic_attacks.vanishing_clients),
    repeated(quic_attacks.many_chats),
    repeated(quic_attacks.typed_text),
    repeated(quic_attacks.early_data_flood),
    repeated(quic_attacks.replayed_early_data),
    repeated(clocks_off_by_days),
)
