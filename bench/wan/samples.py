"""What one chat and one batch of chats came to (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.wan.plan import Cell, Scheme
from bench.wan.relay.lane import Traffic
from bench.wan.waiting.costs import Costs
from outrider.client import Committed, Provisional, Retracted
from outrider.client.events import Event
from outrider.client.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Sample:
    """One chat as its reader saw it; milliseconds since it was asked."""

    ids: tuple[int, ...]
    visible_ms: float
    stable_ms: float
    commits: tuple[tuple[float, int], ...]
    """When how many tokens were final."""
    num_chars: int = 0
    erased_chars: int = 0
    early_chars: int = 0
    """Of the final text, on screen before they were final."""
    num_drafts: int = 0
    """Drafts verified."""
    num_accepted: int = 0
    num_restarts: int = 0
    """Of the chain of drafts, where the bench is the edge."""

    @property
    def committed_ms(self) -> float:
        """Time to the first final token."""
        return self.commits[0][0]

    @property
    def whole_ms(self) -> float:
        """Time to the last one."""
        return self.commits[-1][0]

    @property
    def token_ms(self) -> float | None:
        """Time per final token after the first; None if no time passed between them."""
        passed = self.whole_ms - self.committed_ms
        return passed / (len(self.ids) - 1) if passed > 0 else None

    @property
    def num_rounds(self) -> int:
        """Commits after the first."""
        return len(self.commits) - 1


class Reader:
    """Follows a chat's events."""

    def __init__(self) -> None:
        self._transcript = Transcript()
        self._visible_ms: float | None = None
        self._stable_ms: float | None = None
        self._commits: list[tuple[float, int]] = []
        self._early_chars = 0

    def take(self, event: Event, at_ms: float) -> None:
        """An event came. Raises MalformedFrameError for one that does not fit."""
        before = self._transcript
        begun = bool(before.committed)
        match event:
            case Committed(text=text):
                self._early_chars += min(len(text), len(before.provisional))
            case Provisional(erase_to=0) | Retracted(erase_to=0) if not begun:
                self._stable_ms = None
        self._transcript.apply(event)
        if self._transcript.text:
            self._visible_ms = at_ms if self._visible_ms is None else self._visible_ms
            self._stable_ms = at_ms if self._stable_ms is None else self._stable_ms
        if isinstance(event, Committed) and event.ids:
            self._commits.append((at_ms, len(self._transcript.ids)))

    def sample(self, num_drafts: int, num_accepted: int) -> Sample:
        """The whole chat. A reply without text shows nothing: its commit counts."""
        first_ms = self._commits[0][0]
        return Sample(
            ids=tuple(self._transcript.ids),
            visible_ms=first_ms if self._visible_ms is None else self._visible_ms,
            stable_ms=first_ms if self._stable_ms is None else self._stable_ms,
            commits=tuple(self._commits),
            num_chars=len(self._transcript.committed),
            erased_chars=self._transcript.erased_chars,
            early_chars=self._early_chars,
            num_drafts=num_drafts,
            num_accepted=num_accepted,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time in seconds, and the waiting verifier's calls."""

    region_s: float = 0.0
    """Of the region's processes that the scheme needs."""
    draft_s: float = 0.0
    """Of the drafter's process, where that is one of them."""
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True, slots=True)
class Batch:
    """Chats of one scheme under one condition in one round."""

    scheme: Scheme
    cell: Cell
    turn: int
    first: int
    """Number of the first chat's prompt in its round."""
    samples: tuple[Sample, ...]
    """In the order of the prompts."""
    spent: Spent = field(default_factory=Spent)
    up: Traffic = field(default_factory=Traffic)
    """Over the long link, towards the region."""
    down: Traffic = field(default_factory=Traffic)
    calls_ms: tuple[float, ...] = ()
    """What calls of the bench's own draft model took, where the bench is the edge."""

    @property
    def num_tokens(self) -> int:
        """Final tokens."""
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def asked(self) -> list[tuple[int, int]]:
        """Round and number of every chat's prompt."""
        return [(self.turn, self.first + n) for n in range(len(self.samples))]
