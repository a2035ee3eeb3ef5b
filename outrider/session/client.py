"""Events that an edge reports to the client of a chat. The edge writes the same types that the
client reads (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from outrider.errors import OutriderError
from outrider.session.types import (
    NO_FIRST_TEXT,
    NO_SPECULATION,
    FinishReason,
    FirstText,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    Usage,
)

if TYPE_CHECKING:
    from outrider.reply_parsing.formats import ReplyFormat
    from outrider.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftingTerms:
    """What a client that drafts by means of its own has to know."""

    vocabulary_digest: bytes
    prompt_ids: tuple[int, ...]
    max_ahead: int
    """Drafts that are kept ahead of the final tokens."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The edge took the chat on."""

    request_id: str
    model: str
    prompt_tokens: int
    edge: str = ""
    """The edge's name; empty within it."""
    resume_token: str = ""
    """Token with which the same client can get the reply again, even after its own restart
    (`Client.resume`). It serves once; `Chat.resume_token` is the latest. Empty within the edge."""
    reply_format: ReplyFormat | None = None
    """How to read the final text (outrider.reply_parsing); None: as plain text."""
    sampling: SamplingParams | None = None
    """Sampling of the reply, including the values that the request left to the model; None in
    clients."""
    template_date: str = ""
    """The date that the model's chat template shows in the prompt, YYYY-MM-DD; empty: none."""
    drafting: DraftingTerms | None = None
    """Of a chat whose client drafts itself; None: of others, and in clients."""


@dataclass(frozen=True, slots=True)
class Provisional:
    """A guess at what comes next. The first `erase_to` code points of the provisional text shown
    so far stay, the rest is replaced by `text`."""

    base: int
    """Committed tokens when the edge decided this."""
    erase_to: int
    text: str
    stability: float
    """Estimated probability that all provisional text shown will be committed, 0..1."""


@dataclass(frozen=True, slots=True)
class Retracted:
    """The first `erase_to` code points of the provisional text stay, the rest was wrong."""

    erase_to: int


class Committed(NamedTuple):
    """`text` is final. Provisional text that it confirms leaves the provisional front."""

    text: str
    ids: tuple[int, ...]
    upto: int
    """Number of final tokens."""
    model_identity: bytes | None = None
    """Opaque identity of the model that computed these tokens; None: the same as in the event
    before."""
    inexact: bool = False
    """Whether the replica computes differently from the lost one before it: the reply is not the
    one that either would have written."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of the last of `ids`, if `num_logprobs` asked for them. They are unknown
    for earlier tokens: another edge committed those, or a client that resumed the chat lacked too
    many."""


@dataclass(frozen=True, slots=True)
class Done:
    """The reply is whole, or was cancelled. Always the last event."""

    finish_reason: FinishReason
    usage: Usage
    replica_timings: Timings
    edge_timings: Timings
    upto: int
    region: str
    replica: str
    speculation_stats: SpeculationStats = NO_SPECULATION
    inexact: bool = False
    """Whether an event of the reply was `inexact`."""
    stop_string: str = ""
    """The stop string of the request that ended the reply, as the edge's HTTP APIs say; empty: none
    did, or the chat came by the native protocol."""
    num_moves: int = 0
    """How often another replica went on with the reply."""
    max_drafts: int = 0
    """Most drafts that the replica which ended it takes into one call, as the edge's HTTP APIs say;
    0: unknown, or the chat came by the native protocol."""
    first_text: FirstText = NO_FIRST_TEXT


@dataclass(frozen=True, slots=True)
class Failed:
    """The chat ended by an error, which the client raises instead of reading it."""

    error: OutriderError
