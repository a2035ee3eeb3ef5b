"""A line of guesses: what is final, then a chain, and the KV of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from services.edge.drafter.core.chooser import Opinion, Proposal
from services.edge.drafter.core.kv import Kv
from services.edge.drafter.core.rates import Rates
from services.edge.drafter.messages import Source


@dataclass(frozen=True, slots=True)
class Voice:
    """What one source said of a place."""

    source: Source
    opinion: Opinion


@dataclass(frozen=True, slots=True)
class Entry:
    """A guess in its place."""

    token: int
    chance: float
    """That it is right if all before it are."""
    source: Source
    voices: tuple[Voice, ...] = ()
    other: Opinion | None = None
    """The next best token."""


class Line:
    """A chain of guesses from absolute position `begin` on."""

    def __init__(self, begin: int, kv: Kv, chain: Sequence[Entry] = ()) -> None:
        self.begin = begin
        self.kv = kv
        self.chain = list(chain)
        self.proposal: Proposal | None = None
        """What the model says of the token behind the chain."""
        self.copied: Opinion | None = None
        """What the text repeats says of it, once it was asked."""
        self.asked_copy = False
        self.wants_row = False
        """Whether the chain could go on if the model were asked."""
        self.is_settled = False
        """Nothing changed since it last grew."""

    @property
    def end(self) -> int:
        """The absolute position behind the chain."""
        return self.begin + len(self.chain)

    @property
    def num_missing(self) -> int:
        """Tokens whose KV is not computed."""
        return self.end - self.kv.length

    def survival(self, skipped: int = 0) -> float:
        """Chance that the chain is right, given that its first `skipped` guesses are."""
        return prod(entry.chance for entry in self.chain[skipped:])

    def push(self, entry: Entry) -> None:
        """One more guess."""
        self.chain.append(entry)
        self.forget()

    def forget(self) -> None:
        """Another text than before ends here: what was said of the next token is void."""
        self.proposal = None
        self.reconsider()

    def reconsider(self) -> None:
        """Something changed that guesses are weighed by."""
        self.copied = None
        self.asked_copy = self.is_settled = self.wants_row = False


def weigh(
    copied: Opinion | None, proposal: Proposal | None, rates: Rates, position: int
) -> Entry | None:
    """The best guess for the reply's token `position`; None if nobody has one."""
    model = proposal.best if proposal else None
    if copied and model and copied.token == model.token:
        likelier = max(copied, model, key=lambda opinion: opinion.chance)
        voices = [Voice(Source.BOTH, likelier)]
    else:
        voices = [Voice(Source.SUFFIX, copied)] if copied else []
        voices += [Voice(Source.MODEL, model)] if model else []
    if not voices:
        return None
    ranked = sorted(
        ((rates.chance(voice.source, position, voice.opinion.chance), voice) for voice in voices),
        key=lambda pair: -pair[0],
    )
    others = [Opinion(voice.opinion.token, chance) for chance, voice in ranked[1:]]
    chance, best = ranked[0]
    second = proposal.second if proposal else None
    if second and second.token != best.opinion.token:
        others.append(second)
    other = max(others, key=lambda opinion: opinion.chance, default=None)
    return Entry(best.opinion.token, chance, best.source, tuple(voices), other)
