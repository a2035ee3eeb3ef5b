"""Every attack by name, family and function, and the references that are no attacks."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.hostile import chats, inside, neighbours, quic_attacks, words
from bench.hostile.http import catalog as http
from bench.hostile.http.catalog import HttpRun
from bench.hostile.http.sending import Ration
from bench.hostile.quic_client import SOURCE, Address, QuicAttackResult
from bench.hostile.target import Findings, Target, certificate_of

Once = Callable[[Address, Path | None], Awaitable[QuicAttackResult]]
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)
_SOURCE: Final = "127.0.9.9"
"""An address other than the bystander's: limits per address then hit the attacker alone."""
_LOOPBACK: Final = tuple(f"127.0.{block}.{host}" for block in range(4) for host in range(1, 250))
"""A thousand addresses of this machine, for attacks from many."""
_EXTRA_S: Final = 40.0
"""An attack of a number of requests may take so much longer than one of a time."""
Run: TypeAlias = Callable[[Target, float, Findings], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `run` takes the target, for how many seconds it should go on, and where to note
    what was found."""

    name: str
    family: str
    """"quic": packets; "chats": clients; "words": reading others' text; "inside": ports between
    services; "neighbours": ordinary use by others, which is no attack; of the HTTP door "http1",
    "http2", "http3", "bodies" and "credentials"."""
    run: Run
    num_requests: int = 0
    """That it sends in a full run; 0: as many as fit in its time."""

    @property
    def is_reference(self) -> bool:
        """Whether it is ordinary use: what the bystander loses to it is the yardstick for what he
        loses to attacks, so no aim holds for that."""
        return self.family == "neighbours"

    @property
    def what(self) -> str:
        """What it does, in a sentence."""
        return " ".join((self.run.__doc__ or "").split())


def _family(family: str, *runs: Run) -> list[Attack]:
    return [Attack(run.__name__, family, run) for run in runs]


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


_QUIC_ATTACKS: Final = (
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
    repeated(quic_attacks.clocks_off_by_days),
)

ATTACKS = (
    *_family("neighbours", neighbours.one_honest_client, neighbours.four_honest_clients),
    *_family("quic", *_QUIC_ATTACKS),
    *_family(
        "chats",
        chats.malformed_streams,
        chats.malformed_messages,
        chats.absurd_requests,
        chats.private_use_text,
        chats.one_byte_streams,
        chats.high_priority,
    ),
    *_family(
        "words",
        words.others_drafts,
        words.others_cached_tokens,
        words.others_prompt_by_time,
        words.stolen_resume_token,
        words.stolen_idempotency_key,
        words.guessed_keys,
    ),
    *_family(
        "inside",
        inside.calls_without_certificate,
        inside.calls_of_another_role,
        inside.noise_at_grpc,
        inside.open_sockets,
        inside.admin_floods,
    ),
)


def counted(attack: HttpRun, num_requests: int) -> Run:
    """An attack that sends so many requests, and takes as long as they take, within a limit."""

    @functools.wraps(attack)
    async def run(target: Target, seconds: float, findings: Findings) -> None:
        share = round(num_requests * target.requests_share)
        end = time.monotonic() + seconds + _EXTRA_S
        ration = Ration(max(1, share), end, findings)
        await attack(target, ration, findings)
        if ration.num_left:
            findings.broken.append(f"{ration.num_left} of {share} requests found no time")

    return run


HTTP_ATTACKS: Final = tuple(
    Attack(name, family, counted(run, num_requests), num_requests)
    for family, name, run, num_requests in http.HTTP_ATTACKS
)
"""Of the HTTP door."""
_BY_NAME = {attack.name: attack for attack in (*ATTACKS, *HTTP_ATTACKS)}


def attack_of(name: str) -> Attack:
    """The attack of this name. Raises KeyError."""
    return _BY_NAME[name]
