"""The ways to an edge, and which of them is tried when (pure).

QUIC is tried first. Once the edge has been silent for a while, TCP is tried beside it, and the one
that is complete first is used: networks that drop UDP say nothing, and whoever waited for the
handshake's timeout would wait for seconds. It is what RFC 8305 does with addresses. What had to be
TCP is remembered for the network, and there TCP is tried first for some time, then QUIC again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from outrider.lru_map import LruMap

MAX_NETWORKS: Final = 64


class Way(Enum):
    """Over what a connection goes."""

    QUIC = "QUIC"
    TCP = "TCP"
    """HTTP/2 over TLS."""

    @property
    def other(self) -> Way:
        """The one of the two that this is not."""
        return Way.TCP if self is Way.QUIC else Way.QUIC


@dataclass(frozen=True, slots=True)
class WayLimits:
    """How long is waited for a way, in seconds."""

    silence_s: float = 0.25
    """After this time without an answer the other way is tried beside it (RFC 8305, section 5)."""
    remembered_s: float = 600.0
    """So long TCP is tried first on a network that let no QUIC through."""


class RaceState(Enum):
    """How far a search for a connection is."""

    FIRST_ALONE = auto()
    """The first way is tried; the other one was not begun."""
    BOTH = auto()
    ONE_LEFT = auto()
    """One has failed, the other is tried."""
    WON = auto()
    LOST = auto()


class RaceInput(Enum):
    """What happens to a way that is tried."""

    SILENT = auto()
    """No answer for `silence_s`."""
    FAILED = auto()
    """It does not work here."""
    REFUSED = auto()
    """It works, and the edge or this client does not want the other."""
    COMPLETE = auto()


class RaceAction(Enum):
    """What is to be done next."""

    NOTHING = auto()
    BEGIN_OTHER = auto()
    """Try the other way, too."""
    TAKE = auto()
    """Use this way, and give up the other."""
    GIVE_UP = auto()


_STAY: Final = RaceAction.NOTHING
TABLE: Final[Mapping[RaceState, Mapping[RaceInput, tuple[RaceState, RaceAction]]]] = {
    RaceState.FIRST_ALONE: {
        RaceInput.SILENT: (RaceState.BOTH, RaceAction.BEGIN_OTHER),
        RaceInput.FAILED: (RaceState.ONE_LEFT, RaceAction.BEGIN_OTHER),
        RaceInput.REFUSED: (RaceState.LOST, RaceAction.GIVE_UP),
        RaceInput.COMPLETE: (RaceState.WON, RaceAction.TAKE),
    },
    RaceState.BOTH: {
        RaceInput.SILENT: (RaceState.BOTH, _STAY),
        RaceInput.FAILED: (RaceState.ONE_LEFT, _STAY),
        RaceInput.REFUSED: (RaceState.ONE_LEFT, _STAY),
        RaceInput.COMPLETE: (RaceState.WON, RaceAction.TAKE),
    },
    RaceState.ONE_LEFT: {
        RaceInput.SILENT: (RaceState.ONE_LEFT, _STAY),
        RaceInput.FAILED: (RaceState.LOST, RaceAction.GIVE_UP),
        RaceInput.REFUSED: (RaceState.LOST, RaceAction.GIVE_UP),
        RaceInput.COMPLETE: (RaceState.WON, RaceAction.TAKE),
    },
    RaceState.WON: dict.fromkeys(RaceInput, (RaceState.WON, _STAY)),
    RaceState.LOST: dict.fromkeys(RaceInput, (RaceState.LOST, _STAY)),
}


class Race:
    """One search for a connection to one edge. Times in seconds on the clock of `now`."""

    def __init__(self, now: float, limits: WayLimits) -> None:
        """The first way begins now."""
        self._silence_s = limits.silence_s
        self._heard_at = now
        self.state = RaceState.FIRST_ALONE

    @property
    def silent_at(self) -> float | None:
        """When SILENT is to be told unless something is heard; None: it would change nothing."""
        return self._heard_at + self._silence_s if self.state is RaceState.FIRST_ALONE else None

    def heard(self, now: float) -> None:
        """The edge answered on the first way, whose handshake goes on."""
        self._heard_at = max(self._heard_at, now)

    def take(self, happened: RaceInput) -> RaceAction:
        """Something happened to a way that is tried; the next step, which counts as taken."""
        self.state, action = TABLE[self.state][happened]
        return action


class KnownWays:
    """Networks that let no QUIC through to an edge, the 64 used last. Times in seconds on the clock
    of `now`."""

    def __init__(self, limits: WayLimits) -> None:
        self._limits = limits
        self._tcp_until: LruMap[str, float] = LruMap(MAX_NETWORKS)

    def first(self, network: str, now: float) -> Way:
        """The way to try first. `network` names the network and the edge."""
        until = self._tcp_until.get(network)
        return Way.QUIC if until is None or now >= until else Way.TCP

    def won(self, network: str, way: Way, now: float, *, quic_answered: bool) -> None:
        """`way` was complete first; `quic_answered`: QUIC got an answer, and was only slower."""
        if way is Way.QUIC:
            self._tcp_until.pop(network)
        elif not quic_answered:
            self._tcp_until.put(network, now + self._limits.remembered_s)
