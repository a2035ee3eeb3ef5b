"""One chat as its reader sees it, and a batch of chats."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bench.harness.prompts import Prompt
from bench.relay.lane import Traffic
from bench.wan.plan import Cell, Scheme
from outrider.client import Client, Committed, Interrupted, Provisional, Retracted
from outrider.client.events import Event
from outrider.client.first_word import FirstWord
from outrider.client.transcript import Transcript
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams
from outrider.session.types import NO_SPECULATION, SpeculationStats


@dataclass(frozen=True, slots=True)
class Word:
    """A reply's first word on its reader's screen (`outrider.client.first_word`); milliseconds
    since the chat was asked."""

    shown_ms: float
    """When the first word that was ever completed on screen was, right or wrong."""
    staying_ms: float
    """Since when the reply's own first word has stood there without being taken back."""
    final_ms: float
    """When it was committed."""
    is_early: bool
    """Whether the first one shown was shown before it was final."""
    is_right: bool
    """Whether the first one shown was the reply's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One chat as its reader saw it; milliseconds since it was asked."""

    ids: tuple[int, ...]
    visible_ms: float
    """To the first text on screen."""
    commits: tuple[tuple[float, int], ...]
    """Time and number of committed tokens after each commit."""
    word: Word | None = None
    """None: the reply has no text."""
    num_chars: int = 0
    """Of the final text."""
    erased_chars: int = 0
    """Shown provisionally, and taken back."""
    ahead: tuple[tuple[float, int], ...] = ()
    """Characters that were shown provisionally and stayed: (ms on screen before their commit,
    number of characters)."""
    num_drafts: int = 0
    """Drafts verified."""
    num_accepted: int = 0
    edge: SpeculationStats = NO_SPECULATION
    """What the edge says of its own drafts."""

    @property
    def early_chars(self) -> int:
        """Of the final text, on screen before they were final."""
        return sum(count for _, count in self.ahead)

    @property
    def provisional_chars(self) -> int:
        """Shown before they were final, whether they stayed or not."""
        return self.early_chars + self.erased_chars

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
    def num_later_commits(self) -> int:
        """Commits after the first."""
        return len(self.commits) - 1


class Reader:
    """Follows a chat's events."""

    def __init__(self) -> None:
        self._transcript = Transcript()
        self._first_word = FirstWord()
        self._visible_ms: float | None = None
        self._commits: list[tuple[float, int]] = []
        self._standing: list[tuple[float, int]] = []
        """The provisional text on screen, first to last: (ms since which it stands there,
        characters)."""
        self._ahead: list[tuple[float, int]] = []

    def take(self, event: Event, at_ms: float) -> None:
        """An event came. Raises MalformedFrameError for one that does not fit."""
        self._transcript.apply(event)
        match event:
            case Provisional(erase_to=erase_to, text=text):
                self._keep(erase_to)
                self._standing.append((at_ms, len(text)))
            case Retracted(erase_to=erase_to):
                self._keep(erase_to)
            case Interrupted():
                self._keep(0)
            case Committed(text=text):
                self._settle(len(text), at_ms)
        seen = self._transcript
        if seen.text and self._visible_ms is None:
            self._visible_ms = at_ms
        self._first_word.see(seen.committed, seen.provisional, at_ms)
        if isinstance(event, Committed) and event.ids:
            self._commits.append((at_ms, len(seen.ids)))

    def sample(
        self,
        num_drafts: int,
        num_accepted: int,
        edge: SpeculationStats = NO_SPECULATION,
    ) -> Sample:
        """The whole chat. A reply without text shows nothing: its commit counts."""
        first_ms, whole_ms = self._commits[0][0], self._commits[-1][0]
        seen = self._transcript
        self._first_word.see(seen.committed, "", whole_ms, is_whole=True)
        return Sample(
            ids=tuple(seen.ids),
            visible_ms=first_ms if self._visible_ms is None else self._visible_ms,
            commits=tuple(self._commits),
            word=_word(self._first_word),
            num_chars=len(seen.committed),
            erased_chars=seen.erased_chars,
            ahead=tuple(self._ahead),
            num_drafts=num_drafts,
            num_accepted=num_accepted,
            edge=edge,
        )

    def _keep(self, num_chars: int) -> None:
        """All but `num_chars` of the provisional characters were taken back."""
        kept: list[tuple[float, int]] = []
        for since_ms, count in self._standing:
            taken = min(count, num_chars)
            num_chars -= taken
            if taken:
                kept.append((since_ms, taken))
        self._standing = kept

    def _settle(self, num_chars: int, at_ms: float) -> None:
        """`num_chars` characters became final, first those that stood on screen provisionally."""
        standing: list[tuple[float, int]] = []
        for since_ms, count in self._standing:
            taken = min(count, num_chars)
            num_chars -= taken
            if taken:
                self._ahead.append((at_ms - since_ms, taken))
            if count > taken:
                standing.append((since_ms, count - taken))
        self._standing = standing


def _word(seen: FirstWord) -> Word | None:
    if seen.shown_at is None or seen.staying_at is None or seen.final_at is None:
        return None
    return Word(
        shown_ms=seen.shown_at,
        staying_ms=seen.staying_at,
        final_ms=seen.final_at,
        is_early=seen.shown_early,
        is_right=seen.shown_right,
    )


@dataclass(frozen=True, slots=True)
class CpuSpent:
    """CPU time in seconds."""

    region_s: float = 0.0
    """Of the region's processes that the scheme needs."""
    draft_s: float = 0.0
    """Of the drafter's process, where that is one of them."""
    edge_s: float = 0.0
    """Of the edge or gateway: its process, and its drafter's unless that is the region's."""


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
    spent: CpuSpent = field(default_factory=CpuSpent)
    up: Traffic = field(default_factory=Traffic)
    """Over the long link, towards the region."""
    down: Traffic = field(default_factory=Traffic)

    @property
    def num_tokens(self) -> int:
        """Final tokens."""
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def asked(self) -> list[tuple[int, int]]:
        """Round and number of every chat's prompt."""
        return [(self.turn, self.first + n) for n in range(len(self.samples))]


async def ask(
    client: Client, scheme: Scheme, prompt: Prompt, temperature: float, seed: int, max_tokens: int
) -> Sample:
    """One chat by a scheme."""
    reader = Reader()
    began = time.perf_counter()
    async with client.chat(
        messages_of(prompt),
        sampling=SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens),
        provisional=scheme.provisional,
        speculation=scheme.speculation,
    ) as chat:
        async for event in chat:
            reader.take(event, (time.perf_counter() - began) * 1000)
        result = await chat.result()
    usage = result.usage
    return reader.sample(usage.draft_tokens, usage.accepted_tokens, result.speculation_stats)


def messages_of(prompt: Prompt) -> list[Message]:
    """The chat of a prompt."""
    return [Message("user", prompt.text)]
