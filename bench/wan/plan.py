"""What is compared, and how much of it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.harness.prompts import Prompt, interleaved, load_prompts
from bench.wan.waiting.edge import CHAIN, STOP_AND_WAIT, WaitingPolicy

KINDS = ("chat_short", "chat_long", "code", "languages", "structured", "math")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to answer."""

    name: str
    gateway: Literal["far", "near", ""]
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
        return {"far": "far client", "near": "near region", "": "waiting region"}[self.gateway]


PLAIN = Scheme("(a) plain streaming", "far", "off")
REGION_SUFFIX = Scheme("(b) region drafts, suffix", "far", "region_only")
REGION_DRAFTER = Scheme("(c) region runs the drafter", "far", drafts_in_region=True)
ROUNDS = Scheme("(d) stop-and-wait edge", "", policy=STOP_AND_WAIT)
STREAM = Scheme("(e) asynchronous chain", "", policy=CHAIN)
OURS = Scheme("(f) Outrider", "near", provisional=True)
SCHEMES = (PLAIN, REGION_SUFFIX, REGION_DRAFTER, ROUNDS, STREAM, OURS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition under which every scheme is measured."""

    rtt_ms: float
    sessions: int
    """Chats at once."""
    temperature: float


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    rtts_ms: tuple[float, ...]
    crowds: tuple[tuple[int, tuple[float, ...]], ...]
    """More sessions at once than one, and at which RTTs."""
    num_alone: int
    """Chats one after the other, where one runs at a time."""
    max_tokens: int
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_fixed_rows: int = 64
    """Of the region's engines: fewer are compiled sooner."""

    @property
    def num_prompts(self) -> int:
        """Prompts of a round."""
        return max(self.num_alone, *(sessions for sessions, _ in self.crowds))

    def cells(self, rtt_ms: float) -> Iterator[Cell]:
        """The conditions at one RTT."""
        for temperature in self.temperatures:
            yield Cell(rtt_ms, 1, temperature)
            for sessions, rtts_ms in self.crowds:
                if rtt_ms in rtts_ms:
                    yield Cell(rtt_ms, sessions, temperature)

    def prompts(self, turn: int) -> tuple[Prompt, ...]:
        """Those of a round. Raises ValueError when there are not so many."""
        all_ = interleaved(load_prompts(*KINDS))
        wanted = all_[turn * self.num_prompts : (turn + 1) * self.num_prompts]
        if len(wanted) < self.num_prompts:
            raise ValueError(f"there are {len(all_)} prompts: ask for fewer rounds")
        return wanted


RTTS_MS = (0.0, 20.0, 50.0, 100.0, 150.0, 250.0)
FULL = Size(
    rounds=2,
    rtts_ms=RTTS_MS,
    crowds=((4, (0.0, 20.0, 50.0, 100.0, 250.0)), (16, (0.0, 50.0, 250.0))),
    num_alone=4,
    max_tokens=40,
)
QUICK = Size(
    rounds=1,
    rtts_ms=(0.0, 50.0, 250.0),
    crowds=((4, (50.0,)),),
    num_alone=2,
    max_tokens=24,
    max_fixed_rows=12,
)
