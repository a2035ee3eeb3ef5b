"""What edge and drafter tell each other (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from outrider.sampling.params import SamplingParams
from services.edge.drafter.settings import MAX_LEAD


class Source(IntEnum):
    """Who guessed a token; the numbers are the wire's."""

    SUFFIX = 0
    """Copied from the text, or a turn of phrase."""
    MODEL = 1
    BOTH = 2
    """The two agreed."""


@dataclass(frozen=True, slots=True)
class Open:
    """Edge to drafter: guess along with this reply."""

    session: int
    """The edge's number. One that is known already begins anew."""
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """What is final of the reply already."""
    params: SamplingParams
    ends: tuple[int, ...] = ()
    """Ids that end the reply."""
    lead: int = MAX_LEAD
    """Most guesses wanted ahead of what is final; the drafter has a limit of its own."""
    group: bytes = b""
    """The trust group whose replies teach each other; empty: this one learns for itself."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Edge to drafter: these ids follow what was final."""

    session: int
    ids: tuple[int, ...]
    lead: int = MAX_LEAD
    """As Open's, from now on."""


@dataclass(frozen=True, slots=True)
class Close:
    """Edge to drafter: no more guesses are wanted."""

    session: int


@dataclass(frozen=True, slots=True)
class Guess:
    """Drafter to edge: the whole chain of guesses for a reply; the last one counts."""

    session: int
    base: int
    """Final tokens of the reply before the chain, as far as the drafter knew."""
    ids: tuple[int, ...]
    survival: tuple[float, ...]
    """[n] chance that each guess and all before it are right; never rising."""
    sources: tuple[Source, ...]
    """[n]"""
    call_us: int = 0
    """Microseconds that a call of the model takes of late."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Drafter to edge: the model is loaded."""

    model: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """Drafter to edge, last: there will be no drafts by a model, and another try is no use."""

    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Drafter to edge, now and then: counts since it started."""

    num_sessions: int
    """Open now."""
    num_modelled: int
    """Of these, how many have the model; the others get what the text repeats."""
    num_calls: int
    """Of the model."""
    num_rows: int
    call_us: int
    """Microseconds in all calls."""
    num_refused: int
    """Sessions that found no place."""
    num_evicted: int
    """Sessions whose KV made room for others'."""
    num_branches: int
    """Second guesses."""
    num_promoted: int
    """Of these, how many turned out right."""
    prompt_token_us: int
    """Microseconds that a token of a prompt takes of late; 0: none was read yet."""
    drafted: tuple[int, int, int]
    """Guesses by source."""
    accepted: tuple[int, int, int]
    """Of these, how many turned out right."""


Downward: TypeAlias = Open | Commit | Close
Upward: TypeAlias = Guess | Ready | Unfit | Report
