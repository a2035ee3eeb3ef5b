"""Every attack by name: who can make it, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from bench.hostile import chats, inside, packets, words
from bench.hostile.target import Findings, Target

Run: TypeAlias = Callable[[Target, float, Findings], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One of them. `run` takes the target, for how many seconds it should go on, and where to note
    what was found."""

    name: str
    family: str
    """"quic": packets; "chats": clients; "words": reading others' text; "inside": ports between
    services."""
    run: Run

    @property
    def what(self) -> str:
        """A sentence."""
        return " ".join((self.run.__doc__ or "").split())


def _family(family: str, *runs: Run) -> list[Attack]:
    return [Attack(run.__name__, family, run) for run in runs]


ATTACKS = (
    *_family("quic", *packets.ATTACKS),
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
_BY_NAME = {attack.name: attack for attack in ATTACKS}


def attack_of(name: str) -> Attack:
    """The attack of this name. Raises KeyError."""
    return _BY_NAME[name]
