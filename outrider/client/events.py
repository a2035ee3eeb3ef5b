"""What a chat tells its reader, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "deadline"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The edge took the chat on."""

    request_id: str
    model: str
    prompt_tokens: int
    edge: str


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


@dataclass(frozen=True, slots=True)
class Committed:
    """`text` is final. Provisional text that it confirms leaves the provisional front."""

    text: str
    ids: tuple[int, ...]
    upto: int
    """Number of final tokens."""
    lossy: tuple[int, ...] = ()
    """Numbers of tokens among `ids` that acceptance_threshold let through: the model's own choice
    was another."""
    lossy_spans: tuple[tuple[int, int], ...] = ()
    """For each of those, where its text stands: code points [begin, end) from the beginning of the
    reply. It may lie ahead of what is final, in text held back that comes later or never."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the chat."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class ServerTimings:
    """Milliseconds as the named process's own clock measured them."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Done:
    """The reply is whole, or was cancelled. Always the last event."""

    finish_reason: FinishReason
    usage: Usage
    replica_timings: ServerTimings
    edge_timings: ServerTimings
    upto: int
    region: str
    replica: str


Event: TypeAlias = Accepted | Provisional | Retracted | Committed | Done


@dataclass(frozen=True, slots=True)
class Timings:
    """What the client's own clock measured from sending the request on."""

    provisional_ttft_ms: float | None
    """To the first provisional text; None if there was none."""
    committed_ttft_ms: float | None
    """To the first final token; None if there was none."""
    total_ms: float
    tokens_per_s: float
    """Final tokens after the first over the time since the first; 0 with fewer than two."""


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The whole reply."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    replica_timings: ServerTimings
    edge_timings: ServerTimings
    num_retractions: int
    erased_chars: int
    """Code points that were shown and then taken back."""
    region: str
    replica: str
    lossy: tuple[int, ...] = ()
    """Numbers of tokens that acceptance_threshold let through; always empty without one."""
