"""What is compared, how much of it is measured, and how long a round takes (pure)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.wan.waiting_edge import CHAIN, STOP_AND_WAIT, WaitingPolicy

KINDS = ("chat_short", "chat_long", "code", "languages", "structured", "math")

Gateway: TypeAlias = Literal["far", "near", "quiet", "wide", "copies", "always"]


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
STOP_AND_WAIT_EDGE = Scheme(
    f"(d) stop-and-wait edge, k={STOP_AND_WAIT.frame_drafts}", None, policy=STOP_AND_WAIT
)
STREAM = Scheme("(e) asynchronous chain", None, policy=CHAIN)
OURS = Scheme("(f) Outrider", "near", provisional=True)
NO_UPLOAD = Scheme("(g) as (f), no draft sent", "quiet", provisional=True)
SCHEMES = (
    PLAIN,
    PLAIN_WIDE,
    REGION_SUFFIX,
    REGION_SUFFIX_WIDE,
    REGION_DRAFTER,
    STOP_AND_WAIT_EDGE,
    STREAM,
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

    def num_prompts(self, turn: int) -> int:
        """Prompts of a round."""
        return max(part.num_prompts for part in self.parts if turn < part.rounds)

    def prompts(self, turn: int) -> tuple[Prompt, ...]:
        """Those of a round: where the last one's end, and from the first on again after all. To
        none of them was anything fitted (`bench.harness.prompts`)."""
        all_ = interleaved(load_prompts(*self.kinds, split="held_out"))
        first = sum(self.num_prompts(earlier) for earlier in range(turn))
        return tuple(all_[(first + n) % len(all_)] for n in range(self.num_prompts(turn)))


def seed_of(turn: int, number: int) -> int:
    """Of the chat with a round's prompt of this number: another one in every round, the same for
    all schemes and RTTs."""
    return 1000 * turn + number


def _each(num_chats: int, *schemes: Scheme) -> dict[Scheme, int]:
    return dict.fromkeys(schemes, num_chats)


_OTHERS = (REGION_DRAFTER, STOP_AND_WAIT_EDGE, STREAM)
_MAIN = (PLAIN, REGION_SUFFIX, OURS)
"""Most of the time goes to those that are hardest to tell apart."""
_WIDE = (PLAIN_WIDE, REGION_SUFFIX_WIDE)
_SEVERAL = (*_MAIN, NO_UPLOAD)
RTTS_MS = (0.0, 20.0, 50.0, 100.0, 150.0, 250.0)
FULL = Size(
    rounds=6,
    parts=(
        CellGroup(1, 0.0, RTTS_MS, _each(6, *_MAIN)),
        CellGroup(1, 0.0, RTTS_MS, _each(2, *_OTHERS)),
        CellGroup(1, 0.0, (0.0, 50.0, 250.0), _each(4, *_WIDE)),
        CellGroup(1, 0.8, (50.0, 250.0), _each(5, *_MAIN)),
        CellGroup(1, 0.8, (50.0, 250.0), _each(2, *_OTHERS), rounds=4),
        CellGroup(4, 0.0, (0.0,), _each(4, *_OTHERS), rounds=1),
        CellGroup(4, 0.0, (0.0, 50.0, 250.0), _each(4, *_SEVERAL), rounds=5),
        CellGroup(4, 0.8, (50.0,), _each(4, *_SEVERAL), rounds=5),
        CellGroup(16, 0.0, (0.0,), _each(16, *_OTHERS), rounds=1),
        CellGroup(16, 0.0, (0.0, 50.0, 250.0), _each(16, *_SEVERAL, *_WIDE), rounds=5),
        CellGroup(16, 0.8, (50.0,), _each(16, *_SEVERAL), rounds=5),
    ),
    max_tokens=40,
)
FULL_MINUTES = 45.0
CORE = Size(
    rounds=6,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0, 100.0, 250.0), _each(10, *_MAIN)),
        CellGroup(1, 0.0, (50.0,), _each(4, *_WIDE)),
        CellGroup(1, 0.8, (50.0, 250.0), _each(5, *_MAIN)),
    ),
    max_tokens=32,
    max_fixed_rows=32,
)
"""60 greedy chats a cell and 30 sampled ones, one at a time."""
CORE_MINUTES = 20.0
QUICK = Size(
    rounds=1,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0, 250.0), _each(2, *_MAIN)),
        CellGroup(1, 0.0, (0.0, 50.0, 250.0), _each(1, *_OTHERS)),
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
    kinds=_SHORT_KINDS,
)
"""Of the slow target (`bench.wan.pair`), whose tokens take ten times as long."""
PAIR_MINUTES = 11.0
PAIR_QUICK = Size(
    rounds=1,
    parts=(
        CellGroup(1, 0.0, (0.0, 250.0), _each(2, PLAIN, OURS) | _each(1, COPIES)),
        CellGroup(1, 0.0, (50.0,), _each(2, PLAIN, OURS) | _each(1, COPIES, REGION_SUFFIX)),
    ),
    max_tokens=24,
    kinds=_SHORT_KINDS,
)


REFERENCE_START_S = 20.0
"""Until the reference makes its first reply."""


@dataclass(slots=True)
class Progress:
    """Of one run; seconds since measuring began."""

    size: Size
    limit_s: float = math.inf
    """When the run has to be over, the reference's replies included."""
    reply_s: float = 0.0
    """What the reference needs for one."""
    _took_s: dict[tuple[float, int], float] = field(default_factory=dict)

    def took(self, rtt_ms: float, part: int, seconds: float) -> None:
        """The part of this number, among all that were to be done at an RTT, took so long."""
        self._took_s[rtt_ms, part] = seconds

    def round_s(self, turn: int, done: int = 0) -> float:
        """A round's time, but for the first `done` of its steps, by what they took last."""
        steps = self.steps(turn)[done:]
        return sum(self._took_s.get(step, 0.0) for step in steps)

    def steps(self, turn: int) -> list[tuple[float, int]]:
        """RTT and number of part of all that a round does, in its order."""
        rtts_ms = self.size.rtts_ms
        first = turn % len(rtts_ms)
        return [
            (rtt_ms, number)
            for rtt_ms in (*rtts_ms[first:], *rtts_ms[:first])
            for number, part in enumerate(self.size.parts)
            if rtt_ms in part.rtts_ms and turn < part.rounds
        ]

    def num_rounds(self, turn: int, now_s: float) -> int:
        """How many rounds the run will have, from the beginning of this one on; the first is
        always made."""
        end_s = now_s
        for number in range(turn, self.size.rounds):
            end_s += self.round_s(number)
            if number and end_s + self._reference_s(number + 1) > self.limit_s:
                return number
        return self.size.rounds

    def left_s(self, turn: int, done: int, now_s: float) -> float:
        """Time to the end of the run, after so many steps of a round; of what was never done
        nothing is known."""
        end_s = now_s + self.round_s(turn, done)
        num_rounds = max(turn + 1, self.num_rounds(turn + 1, end_s))
        later_s = sum(self.round_s(number) for number in range(turn + 1, num_rounds))
        return end_s - now_s + later_s + self._reference_s(num_rounds)

    def _reference_s(self, num_rounds: int) -> float:
        """For the replies of so many rounds."""
        temperatures = {part.temperature for part in self.size.parts}
        count = sum(
            max((p.num_prompts for p in self._asked(turn, temperature)), default=0)
            for turn in range(num_rounds)
            for temperature in temperatures
        )
        return len(temperatures) * REFERENCE_START_S + count * self.reply_s

    def _asked(self, turn: int, temperature: float) -> list[CellGroup]:
        parts = self.size.parts
        return [p for p in parts if turn < p.rounds and p.temperature == temperature]
