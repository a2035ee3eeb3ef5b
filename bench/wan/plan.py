"""What is compared, and how much of it is measured (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.harness.prompts import Prompt, interleaved, load_prompts

KINDS = ("chat_short", "chat_long", "code", "languages", "structured", "math")
CLIENT_RTT_MS = 10.0
"""Of a client's last mile."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to answer."""

    name: str
    gateway: str
    """Which edge the client talks to (`bench.wan.testbed`)."""
    speculation: Literal["on", "off", "region_only"] = "on"
    provisional: bool = False
    drafts_in_region: bool = False
    """Whether the gateway's drafter is the region's."""

    @property
    def is_at_region(self) -> bool:
        """Whether the client's gateway stands at the region: the long way is the client's."""
        return self.gateway in ("far", "wide")

    @property
    def long_link(self) -> str:
        """The relay's link that has the RTT to the region."""
        return f"{self.gateway} {'client' if self.is_at_region else 'region'}"

    def rtts_ms(self, rtt_ms: float) -> dict[str, float]:
        """Round trip of each relayed link, where the region lies `rtt_ms` behind the client's last
        mile."""
        if self.is_at_region:
            return {self.long_link: CLIENT_RTT_MS + rtt_ms}
        return {f"{self.gateway} client": CLIENT_RTT_MS, self.long_link: rtt_ms}


PLAIN = Scheme("(a) plain streaming", "far", "off")
PLAIN_WIDE = Scheme("(a2) as (a), the model on all cores", "wide", "off")
REGION_SUFFIX = Scheme("(b) region drafts, suffix", "far", "region_only")
REGION_SUFFIX_WIDE = Scheme("(b2) as (b), the model on all cores", "wide", "region_only")
REGION_DRAFTER = Scheme("(c) region runs the drafter", "far", drafts_in_region=True)
OURS = Scheme("(f) Outrider", "near", provisional=True)
NO_UPLOAD = Scheme("(g) as (f), no draft sent", "quiet", provisional=True)
SCHEMES = (
    PLAIN,
    PLAIN_WIDE,
    REGION_SUFFIX,
    REGION_SUFFIX_WIDE,
    REGION_DRAFTER,
    OURS,
    NO_UPLOAD,
)
COPIES = Scheme("(d) edge drafts copies alone", "copies", provisional=True)
ALWAYS = Scheme("(g) as (f), drafts always sent", "always", provisional=True)
ALL_SCHEMES = (*SCHEMES, COPIES, ALWAYS)
"""With those that only `--pair` has (`bench.wan.pair`)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition under which every scheme is measured."""

    rtt_ms: float
    sessions: int
    """Chats at once."""
    temperature: float


@dataclass(frozen=True, slots=True)
class CellGroup:
    """What every round asks at several RTTs, otherwise under equal conditions."""

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
    parts: tuple[CellGroup, ...]
    max_tokens: int
    """Of a reply."""
    minutes: float = 60.0
    """No round begins that would probably end later."""
    max_fixed_rows: int = 64
    """Of the region's engines: fewer are compiled sooner."""
    kinds: tuple[str, ...] = KINDS
    """Of the prompts."""

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Those that take part, in the order of `ALL_SCHEMES`."""
        asked = {scheme for part in self.parts for scheme in part.chats}
        return tuple(scheme for scheme in ALL_SCHEMES if scheme in asked)

    @property
    def rtts_ms(self) -> tuple[float, ...]:
        """Those measured, rising."""
        return tuple(sorted({rtt_ms for part in self.parts for rtt_ms in part.rtts_ms}))

    def steps(self, turn: int) -> list[tuple[float, CellGroup]]:
        """RTT and part of all that a round does, in its order: another RTT begins each."""
        first = turn % len(self.rtts_ms)
        return [
            (rtt_ms, part)
            for rtt_ms in (*self.rtts_ms[first:], *self.rtts_ms[:first])
            for part in self.parts
            if rtt_ms in part.rtts_ms and turn < part.rounds
        ]

    def num_prompts(self, turn: int) -> int:
        """Prompts of a round."""
        return max(part.num_prompts for part in self.parts if turn < part.rounds)

    def prompts(self, turn: int) -> tuple[Prompt, ...]:
        """Those of a round: where the last one's end, and from the first on again after all. On
        none of them was anything chosen (`bench.harness.prompts`)."""
        all_ = interleaved(load_prompts(*self.kinds, split="test"))
        first = sum(self.num_prompts(earlier) for earlier in range(turn))
        return tuple(all_[(first + n) % len(all_)] for n in range(self.num_prompts(turn)))


def seed_of(turn: int, number: int) -> int:
    """Of the chat with a round's prompt of this number: another one in every round, the same for
    all schemes and RTTs."""
    return 1000 * turn + number


def _each(num_chats: int, *schemes: Scheme) -> dict[Scheme, int]:
    return dict.fromkeys(schemes, num_chats)


_MAIN = (PLAIN, REGION_SUFFIX, OURS)
"""Most of the time goes to those that are hardest to tell apart."""
_WIDE = (PLAIN_WIDE, REGION_SUFFIX_WIDE)
_SEVERAL = (*_MAIN, NO_UPLOAD)
_ALONE = _each(6, *_MAIN) | _each(3, REGION_DRAFTER, NO_UPLOAD)
FULL = Size(
    rounds=6,
    parts=(
        CellGroup(1, 0.0, (0.0, 20.0, 50.0, 100.0, 150.0, 250.0), _ALONE),
        CellGroup(1, 0.0, (0.0, 50.0, 250.0), _each(4, *_WIDE, PLAIN)),
        CellGroup(1, 0.8, (50.0, 250.0), _each(5, *_MAIN) | _each(2, REGION_DRAFTER)),
        CellGroup(4, 0.0, (0.0,), _each(4, REGION_DRAFTER), rounds=1),
        CellGroup(4, 0.0, (0.0, 50.0, 250.0), _each(4, *_SEVERAL), rounds=5),
        CellGroup(4, 0.8, (50.0,), _each(4, *_SEVERAL), rounds=5),
        CellGroup(16, 0.0, (0.0,), _each(16, REGION_DRAFTER), rounds=1),
        CellGroup(16, 0.0, (0.0, 50.0, 250.0), _each(16, *_SEVERAL, *_WIDE), rounds=5),
        CellGroup(16, 0.8, (50.0,), _each(16, *_SEVERAL), rounds=5),
    ),
    max_tokens=40,
    minutes=45.0,
)
CORE = Size(
    rounds=6,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0, 100.0, 250.0), _each(10, *_MAIN)),
        CellGroup(1, 0.0, (50.0,), _each(4, *_WIDE)),
        CellGroup(1, 0.8, (50.0, 250.0), _each(5, *_MAIN)),
    ),
    max_tokens=32,
    minutes=20.0,
    max_fixed_rows=32,
)
"""60 greedy chats a cell and 30 sampled ones, one at a time."""
QUICK = Size(
    rounds=1,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0), _each(2, *_MAIN) | _each(1, REGION_DRAFTER)),
        CellGroup(1, 0.0, (50.0,), _each(2, *_WIDE)),
        CellGroup(1, 0.8, (50.0,), _each(2, *_MAIN)),
        CellGroup(4, 0.0, (0.0,), _each(4, *_SEVERAL, REGION_DRAFTER)),
    ),
    max_tokens=24,
    max_fixed_rows=12,
)

_SHORT_KINDS = tuple(kind for kind in KINDS if kind != "chat_long")
"""A slow target reads a long prompt for seconds, in which nothing is measured that is asked."""
_PAIRED = _each(6, PLAIN, OURS) | _each(2, COPIES, ALWAYS)
_REGION_ALONE = _each(2, REGION_SUFFIX, REGION_DRAFTER)
PAIR = Size(
    rounds=4,
    parts=(
        CellGroup(1, 0.0, (0.0, 100.0), _PAIRED | _REGION_ALONE),
        CellGroup(1, 0.0, (20.0, 50.0, 150.0, 250.0), _PAIRED),
    ),
    max_tokens=32,
    minutes=11.0,
    max_fixed_rows=0,
    kinds=_SHORT_KINDS,
)
"""Of the slow target (`bench.wan.pair`), whose tokens take ten times as long."""
PAIR_QUICK = Size(
    rounds=1,
    parts=(
        CellGroup(1, 0.0, (0.0, 250.0), _each(2, PLAIN, OURS) | _each(1, COPIES)),
        CellGroup(1, 0.0, (50.0,), _each(2, PLAIN, OURS) | _each(1, COPIES, REGION_SUFFIX)),
    ),
    max_tokens=24,
    max_fixed_rows=0,
    kinds=_SHORT_KINDS,
)
