"""Every attack: its name, what it does, and what the edge has to answer; and the references that
are no attacks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.hostile import bodies, http1, http2, leaving, native, quic_attacks
from bench.hostile.quic_client import SOURCE as QUIC_SOURCE
from bench.hostile.quic_client import Address, QuicAttackResult
from bench.hostile.target import SOURCE, Findings, Target, certificate_of

Run: TypeAlias = Callable[[Target, float, Findings], Awaitable[None]]
"""Takes the target, for how many seconds to go on, and where to note what was found."""
Once: TypeAlias = Callable[..., Awaitable[QuicAttackResult]]
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)
_LOOPBACK: Final = tuple(f"127.0.{block}.{host}" for block in range(4) for host in range(1, 250))
"""A thousand addresses of this machine, for attacks from many."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    name: str
    run: Run
    expects: str = ""
    """How what it has to be answered begins, as findings count it; "": nothing in particular."""
    what: str = ""
    leaves: bool = False
    """Whether nothing of it may be computed once it is over: its clients have left by then."""

    @property
    def sends(self) -> str:
        """What it does, in a sentence."""
        return " ".join((self.what or self.run.__doc__ or "").split())

    @property
    def is_reference(self) -> bool:
        """Whether it is ordinary use: what bystanders lose to it is the yardstick for what they
        lose to attacks, so no aim holds for that."""
        return "honest" in self.name


def _quic(once: Once, expects: str = "", **settings: Any) -> Attack:
    """An attack with packets, again and again."""

    async def run(target: Target, seconds: float, findings: Findings) -> None:
        end = time.monotonic() + seconds
        QUIC_SOURCE.set(SOURCE)
        address: Address = target.address
        certificate: Path = certificate_of(target)
        while time.monotonic() < end:
            try:
                outcome = await once(address, certificate, **settings)
            except _REFUSED as error:
                findings.count(f"refused: {type(error).__name__}")
                continue
            findings.count("sent", outcome.num_sent)
            for reason, times in outcome.closed.items():
                findings.count(f"closed: {reason}", times)

    name = next(name for name, it in vars(quic_attacks).items() if it is once)
    return Attack(name, run, expects, once.__doc__ or "")


ATTACKS: Final = (
    Attack("one_honest_client", native.one_honest_client, "chats"),
    Attack("three_honest_clients", native.three_honest_clients, "chats"),
    _quic(quic_attacks.spoofed_initials, sources=_LOOPBACK),
    _quic(quic_attacks.one_byte_fragments, "closed: too many fragments of a stream", hold_s=2.0),
    _quic(quic_attacks.many_pings, "closed: too many frames", hold_s=2.0),
    _quic(quic_attacks.rapid_resets, "closed: too many streams"),
    _quic(quic_attacks.mutated_packets),
    _quic(quic_attacks.early_data_flood),
    _quic(quic_attacks.idle_connections, num_connections=200),
    _quic(quic_attacks.slow_readers),
    _quic(quic_attacks.vanishing_clients),
    _quic(quic_attacks.many_chats),
)
"""On the native protocol's port."""
HTTP_ATTACKS: Final = (
    Attack("head_floods", http1.head_floods, "answered 431"),
    Attack("slow_heads", http1.slow_heads, "ended by the edge"),
    Attack("unread_replies", http1.unread_replies, "left unread"),
    Attack("h2_rapid_resets", http2.rapid_resets),
    Attack("h2_control_floods", http2.control_floods, "connections ended by the edge"),
    Attack("giant_bodies", bodies.Bodies(bodies.giant), "answered 4"),
    Attack("text_floods", bodies.TextFlood(1), "answered"),
    Attack("text_floods_from_four", bodies.TextFlood(4), "answered"),
    Attack("megabyte_texts", bodies.megabyte_texts, "answered 4"),
    Attack("slow_bodies", bodies.slow_bodies, "bodies taken whole"),
    Attack("resets_everywhere", leaving.resets_everywhere, "reset", leaves=True),
    Attack("grammar_bombs", bodies.Bodies(bodies.grammars), "answered 400"),
)
"""On the HTTP door."""
_BY_NAME = {attack.name: attack for attack in (*ATTACKS, *HTTP_ATTACKS)}


def attack_of(name: str) -> Attack:
    """The attack of this name. Raises KeyError."""
    return _BY_NAME[name]
