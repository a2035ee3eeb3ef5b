"""What is compared, and how much of it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.wan.waiting.edge import CHAIN, STOP_AND_WAIT, WaitingPolicy

KINDS = ("chat_short", "chat_long", "code", "languages", "structured", "math")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to answer."""

    name: str
    gateway: Literal["far", "near", "quiet", ""]
    """Which edge the client talks to; "": the bench is the edge."""
    speculation: Literal["on", "off", "region_only"] = "on"
    provisional: bool = False
    drafts_in_region: bool = False
    """Whether the gateway's work is the region's."""
    policy: WaitingPolicy | None = None
    """Of an edge that is the bench."""

    @property
    def long_link(self) -> str:
        """The relay's link that has the RTT."""
        if self.gateway == "far":
            return "far client"
        return f"{self.gateway or 'waiting'} region"


PLAIN = Scheme("(a) plain streaming", "far", "off")
REGION_SUFFIX = Scheme("(b) region drafts, suffix", "far", "region_only")
REGION_DRAFTER = Scheme("(c) region runs the drafter", "far", drafts_in_region=True)
ROUNDS = Scheme(f"(d) stop-and-wait edge, k={STOP_AND_WAIT.frame_drafts}", "", policy=STOP_AND_WAIT)
STREAM = Scheme("(e) asynchronous chain", "", policy=CHAIN)
OURS = Scheme("(f) Outrider", "near", provisional=True)
QUIET = Scheme("(g) as (f), no draft sent", "quiet", provisional=True)
SCHEMES = (PLAIN, REGION_SUFFIX, REGION_DRAFTER, ROUNDS, STREAM, OURS, QUIET)


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
    max_fixed_rows: int = 64
    """Of the region's engines: fewer are compiled sooner."""

    @property
    def rtts_ms(self) -> tuple[float, ...]:
        """Those measured, rising."""
        return tuple(sorted({rtt_ms for part in self.parts for rtt_ms in part.rtts_ms}))

    def parts_of(self, turn: int, rtt_ms: float) -> list[Part]:
        """What a round asks at one RTT."""
        return [part for part in self.parts if turn < part.rounds and rtt_ms in part.rtts_ms]

    def num_prompts(self, turn: int) -> int:
        """Prompts of a round."""
        return max(part.num_prompts for part in self.parts if turn < part.rounds)

    def prompts(self, turn: int) -> tuple[Prompt, ...]:
        """Those of a round: where the last one's end, and from the first on again after all."""
        all_ = interleaved(load_prompts(*KINDS))
        first = sum(self.num_prompts(earlier) for earlier in range(turn))
        return tuple(all_[(first + n) % len(all_)] for n in range(self.num_prompts(turn)))


def _each(num_chats: int, *schemes: Scheme) -> dict[Scheme, int]:
    return dict.fromkeys(schemes, num_chats)


_OTHERS = (REGION_DRAFTER, ROUNDS, STREAM)
_MAIN = (PLAIN, REGION_SUFFIX, OURS)
"""Most of the time goes to those that are hardest to tell apart."""
_CROWD = (*_MAIN, QUIET)
RTTS_MS = (0.0, 20.0, 50.0, 100.0, 150.0, 250.0)
FULL = Size(
    rounds=9,
    parts=(
        Part(1, 0.0, RTTS_MS, _each(3, *_MAIN)),
        Part(1, 0.0, RTTS_MS, _each(1, *_OTHERS)),
        Part(1, 0.8, (50.0, 250.0), _each(2, *_MAIN)),
        Part(1, 0.8, (50.0, 250.0), _each(1, *_OTHERS), rounds=4),
        Part(4, 0.0, (0.0,), _each(4, *_OTHERS), rounds=1),
        Part(4, 0.0, (0.0, 50.0, 250.0), _each(4, *_CROWD), rounds=5),
        Part(4, 0.8, (50.0,), _each(4, *_CROWD), rounds=5),
        Part(16, 0.0, (0.0,), _each(16, *_OTHERS), rounds=1),
        Part(16, 0.0, (0.0, 50.0, 250.0), _each(16, *_CROWD), rounds=5),
        Part(16, 0.8, (50.0,), _each(16, *_CROWD), rounds=5),
    ),
    max_tokens=40,
)
QUICK = Size(
    rounds=1,
    parts=(
        Part(1, 0.0, (0.0, 50.0, 250.0), _each(2, *_MAIN)),
        Part(1, 0.0, (0.0, 50.0, 250.0), _each(1, *_OTHERS)),
        Part(1, 0.8, (50.0,), _each(1, *_MAIN)),
        Part(4, 0.0, (0.0,), _each(4, *_CROWD, REGION_DRAFTER)),
    ),
    max_tokens=24,
    max_fixed_rows=12,
)
