"""What is compared, and how much of it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.wan.waiting.edge import CHAIN, STOP_AND_WAIT, WaitingPolicy

KINDS = ("chat_short", "chat_long", "code", "languages", "structured", "math")

Gateway: TypeAlias = Literal["far", "near", "quiet", "wide"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to answer."""

    name: str
    gateway: Gateway | None
    """Which edge the client talks to; None: the bench is the edge."""
    speculation: Literal["on", "off", "region_only"] = "on"
    provisional: bool = False
    drafts_in_region: bool = False
    """Whether the gateway's drafter is the region's."""
    policy: WaitingPolicy | None = None
    """Of an edge that is the bench."""

    @property
    def is_at_region(self) -> bool:
        """Whether the client's gateway stands at the region: the long way is the client's."""
        return self.gateway in ("far", "wide")

    @property
    def long_link(self) -> str:
        """The relay's link that has the RTT to the region."""
        if self.gateway is None:
            return "waiting region"
        return f"{self.gateway} {'client' if self.is_at_region else 'region'}"

    def rtts_ms(self, rtt_ms: float, client_rtt_ms: float) -> dict[str, float]:
        """Round trip of each relayed link, where the region lies `rtt_ms` behind the client's last
        mile. A bench that is the edge has no last mile: `asking` adds it."""
        if self.gateway is None:
            return {self.long_link: rtt_ms}
        if self.is_at_region:
            return {self.long_link: client_rtt_ms + rtt_ms}
        return {f"{self.gateway} client": client_rtt_ms, self.long_link: rtt_ms}


PLAIN = Scheme("(a) plain streaming", "far", "off")
PLAIN_WIDE = Scheme("(a2) as (a), the model on all cores", "wide", "off")
REGION_SUFFIX = Scheme("(b) region drafts, suffix", "far", "region_only")
REGION_SUFFIX_WIDE = Scheme("(b2) as (b), the model on all cores", "wide", "region_only")
REGION_DRAFTER = Scheme("(c) region runs the drafter", "far", drafts_in_region=True)
ROUNDS = Scheme(
    f"(d) stop-and-wait edge, k={STOP_AND_WAIT.frame_drafts}", None, policy=STOP_AND_WAIT
)
STREAM = Scheme("(e) asynchronous chain", None, policy=CHAIN)
OURS = Scheme("(f) Outrider", "near", provisional=True)
QUIET = Scheme("(g) as (f), no draft sent", "quiet", provisional=True)
SCHEMES = (
    *(PLAIN, PLAIN_WIDE, REGION_SUFFIX, REGION_SUFFIX_WIDE, REGION_DRAFTER),
    *(ROUNDS, STREAM, OURS, QUIET),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition under which every scheme is measured."""

    rtt_ms: float
    sessions: int
    """Chats at once."""
    temperature: float


@dataclass(frozen=True, slots=True)
class Part:
    """What every round asks at some RTTs under otherwise equal conditions."""

    sessions: int
    temperature: float
    rtts_ms: tuple[float, ...]
    chats: dict[Scheme, int]
    """How many chats of a round each scheme has; those of one number have the same prompt. With
    one session they take turns chat by chat, otherwise all chats of a scheme run at once."""
    rounds: int = 100
    """It is left out of later ones."""

    @property
    def num_prompts(self) -> int:
        """Prompts of a round."""
        return max(self.chats.values())


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    """At most: another one begins only if there is time for it."""
    parts: tuple[Part, ...]
    max_tokens: int
    """Of a reply."""
    max_fixed_rows: int = 64
    """Of the region's engines: fewer are compiled sooner."""

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Those that take part, in the order of `SCHEMES`."""
        asked = {scheme for part in self.parts for scheme in part.chats}
        return tuple(scheme for scheme in SCHEMES if scheme in asked)

    @property
    def rtts_ms(self) -> tuple[float, ...]:
        """Those measured, rising."""
        return tuple(sorted({rtt_ms for part in self.parts for rtt_ms in part.rtts_ms}))

    def num_prompts(self, turn: int) -> int:
        """Prompts of a round."""
        return max(part.num_prompts for part in self.parts if turn < part.rounds)

    def prompts(self, turn: int) -> tuple[Prompt, ...]:
        """Those of a round: where the last one's end, and from the first on again after all. To
        none of them was anything fitted (`bench.harness.prompts`)."""
        all_ = interleaved(load_prompts(*KINDS, split="held_out"))
        first = sum(self.num_prompts(earlier) for earlier in range(turn))
        return tuple(all_[(first + n) % len(all_)] for n in range(self.num_prompts(turn)))


def seed_of(turn: int, number: int) -> int:
    """Of the chat with a round's prompt of this number: another one in every round, the same for
    all schemes and RTTs."""
    return 1000 * turn + number


def _each(num_chats: int, *schemes: Scheme) -> dict[Scheme, int]:
    return dict.fromkeys(schemes, num_chats)


_OTHERS = (REGION_DRAFTER, ROUNDS, STREAM)
_MAIN = (PLAIN, REGION_SUFFIX, OURS)
"""Most of the time goes to those that are hardest to tell apart."""
_WIDE = (PLAIN_WIDE, REGION_SUFFIX_WIDE)
_CROWD = (*_MAIN, QUIET)
RTTS_MS = (0.0, 20.0, 50.0, 100.0, 150.0, 250.0)
FULL = Size(
    rounds=6,
    parts=(
        Part(1, 0.0, RTTS_MS, _each(6, *_MAIN)),
        Part(1, 0.0, RTTS_MS, _each(2, *_OTHERS)),
        Part(1, 0.0, (0.0, 50.0, 250.0), _each(4, *_WIDE)),
        Part(1, 0.8, (50.0, 250.0), _each(5, *_MAIN)),
        Part(1, 0.8, (50.0, 250.0), _each(2, *_OTHERS), rounds=4),
        Part(4, 0.0, (0.0,), _each(4, *_OTHERS), rounds=1),
        Part(4, 0.0, (0.0, 50.0, 250.0), _each(4, *_CROWD), rounds=5),
        Part(4, 0.8, (50.0,), _each(4, *_CROWD), rounds=5),
        Part(16, 0.0, (0.0,), _each(16, *_OTHERS), rounds=1),
        Part(16, 0.0, (0.0, 50.0, 250.0), _each(16, *_CROWD, *_WIDE), rounds=5),
        Part(16, 0.8, (50.0,), _each(16, *_CROWD), rounds=5),
    ),
    max_tokens=40,
)
FULL_MINUTES = 45.0
CORE = Size(
    rounds=6,
    parts=(
        Part(1, 0.0, (0.0, 50.0, 100.0, 250.0), _each(10, *_MAIN)),
        Part(1, 0.0, (50.0,), _each(4, *_WIDE)),
        Part(1, 0.8, (50.0, 250.0), _each(5, *_MAIN)),
    ),
    max_tokens=32,
    max_fixed_rows=32,
)
"""60 greedy chats a cell and 30 sampled ones, one at a time."""
CORE_MINUTES = 20.0
QUICK = Size(
    rounds=1,
    parts=(
        Part(1, 0.0, (0.0, 50.0, 250.0), _each(2, *_MAIN)),
        Part(1, 0.0, (0.0, 50.0, 250.0), _each(1, *_OTHERS)),
        Part(1, 0.0, (50.0,), _each(2, *_WIDE)),
        Part(1, 0.8, (50.0,), _each(2, *_MAIN)),
        Part(4, 0.0, (0.0,), _each(4, *_CROWD, REGION_DRAFTER)),
    ),
    max_tokens=24,
    max_fixed_rows=12,
)
