"""How long a replica may be silent before its sessions go elsewhere. Pure.

A replica with sessions in the middle of their replies makes calls, and every call commits: when
none of them gets a token within many times what a call takes, it hangs, though its process may
answer every question. Who is not being served yet has nothing to be silent about: for that the
heartbeat of the replica's reports stands (services.router.fleet). Times are those of a clock that
leaves out this process's stalls (outrider.peers.stall_free_clock): they are nobody's silence.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_TOKENS = 256
"""Rows of the longest usual engine call: a chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class SilencePolicy:
    """What the operator decides."""

    least_s: float = 2.0
    """No silence shorter than this counts..."""
    num_calls: float = 8.0
    """...nor one of fewer calls than these, as the replica reports their cost, at their longest."""
    stall_s: float = 30.0
    """A session without a token for so long goes elsewhere though its replica serves others: they
    may have the better right to it, but not for ever."""


class Silence:
    """When each stream of a replica was last heard with tokens. Times in seconds."""

    def __init__(self, policy: SilencePolicy) -> None:
        self._policy = policy
        self._heard_at: dict[int, float] = {}

    def detached(self, stream: int) -> None:
        """It is no more."""
        self._heard_at.pop(stream, None)

    def heard(self, stream: int, now: float) -> None:
        """A frame came."""
        self._heard_at[stream] = now

    def limit_s(self, fixed_ms: float, row_ms: float) -> float:
        """How long a replica of this cost may be silent in the middle of replies."""
        call_ms = fixed_ms + row_ms * CHUNK_TOKENS
        return max(self._policy.least_s, self._policy.num_calls * call_ms / 1e3)

    def is_quiet(self, stream: int, limit_s: float, now: float) -> bool:
        """Whether nothing at all was heard from it for so long."""
        return now - self._heard_at.get(stream, 0.0) >= limit_s

    def is_late(self, heard_at: float, limit_s: float, now: float) -> bool:
        """Whether a session has heard nothing for so long."""
        return now - heard_at >= limit_s

    def is_stalled(self, heard_at: float, now: float) -> bool:
        """Whether a session last heard then waits in vain."""
        return now - heard_at >= self._policy.stall_s
