"""Types that describe a session on every tier: priority, finish reason, tokens and times. Pure.

`outrider.wire` translates them to and from `protos/outrider/v1/common.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from outrider.cost import Cost


class Priority(IntEnum):
    """Order in which sessions get an engine; the numbers are the wire's."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Speculation(StrEnum):
    """Allowed sources of a session's drafts."""

    ON = "on"
    """Drafts from the edge and from the region."""
    OFF = "off"
    REGION_ONLY = "region_only"


class FinishReason(StrEnum):
    """Why a session ended without an error."""

    STOP = "stop"
    """An end id or a stop string."""
    LENGTH = "length"
    """max_tokens, or the end of the model's context."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"

    @property
    def error_reason(self) -> str | None:
        """The `reason` of the error that stands for the same in logs and metrics; None if the reply
        is whole."""
        return None if self.is_whole else self.name

    @property
    def is_whole(self) -> bool:
        """Whether the reply ended by itself, so that the same request would bring no more."""
        return self in (FinishReason.STOP, FinishReason.LENGTH)


MIN_LOGPROB: Final = -9999.0
"""Stands for every lower value, including minus infinity, as in OpenAI's API, so that every value
is a number."""


class ScoredToken(NamedTuple):
    """A token in its place in a reply."""

    id: int
    logprob: float
    """MIN_LOGPROB to 0; a float32 exactly."""
    text: bytes = b""
    """The bytes that it adds to a text; empty for control tokens, and inside the region."""


class TokenLogprobs(NamedTuple):
    """One place of a reply."""

    chosen: ScoredToken
    """The token of the reply."""
    top: tuple[ScoredToken, ...]
    """The likeliest, likeliest first, equal ones by id; `chosen` may be among them."""


MAX_DRAFTS_PER_CALL: Final = 1024
"""Most drafts of one session that one call of the model verifies."""


class AcceptanceCount(NamedTuple):
    """How many calls of the model verified so many drafts of a session and accepted so many."""

    drafted: int
    """1 to MAX_DRAFTS_PER_CALL."""
    accepted: int
    calls: int


class TokenSources(NamedTuple):
    """Tokens of a reply, by who had drafted them."""

    edge: int
    """Accepted drafts of the edge."""
    region: int
    """Accepted drafts that the region made for itself."""
    none: int
    """Tokens that the model chose where no draft was right."""
    unknown: int
    """Tokens of other replicas and of earlier runs; see Usage.uncounted_tokens."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one session, and what it costs."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused."""
    completion_tokens: int = 0
    draft_tokens: int = 0
    """Drafts that the model verified."""
    accepted_tokens: int = 0
    """Verified drafts that became part of the reply."""
    cost: Cost | None = None
    """Cost of the whole session by the router's price table; None if no price applies, before a
    router has set it, and for a chat that was cancelled."""
    accepted_prediction_tokens: int = 0
    """Accepted drafts that were copied from the request's prediction."""
    rejected_prediction_tokens: int = 0
    """Drafts copied from it that were verified and did not become part of the reply."""
    lossy_tokens: int = 0
    """Drafts that only the acceptance threshold let through: the model's own choice was another.
    The edge counts them, over all replicas of the chat; always 0 without a threshold."""
    reasoning_tokens: int = 0
    """Completion tokens of the model's reasoning, its tags not counted. The edge counts them."""
    accepted_edge_tokens: int = 0
    """Accepted drafts that the edge had made; the others the region made for itself."""
    uncounted_tokens: int = 0
    """Completion tokens that the counts of drafts leave out: another replica committed them, or an
    earlier run of the chat, or the chat was cancelled."""
    acceptance: tuple[AcceptanceCount, ...] = ()
    """The calls that verified drafts; calls without drafts are left out."""

    @property
    def sources(self) -> TokenSources:
        """The completion tokens, by who had drafted them."""
        region = self.accepted_tokens - self.accepted_edge_tokens
        none = self.completion_tokens - self.uncounted_tokens - self.accepted_tokens
        return TokenSources(self.accepted_edge_tokens, region, none, self.uncounted_tokens)


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds since the session was opened, on one process's own clock."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    """Time to the first token."""
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts of the edge's own drafts in one chat: how many were shown, sent and right."""

    shown_tokens: int = 0
    """Reply tokens whose text was shown before they were final."""
    erased_tokens: int = 0
    """Tokens whose text was shown and taken back."""
    drafted_tokens: int = 0
    sent_tokens: int = 0
    """Drafted tokens that were sent to the region."""
    checked_tokens: int = 0
    """Drafted tokens that were compared with a final token."""
    right_tokens: int = 0
    """Compared tokens that were equal to the final token."""
    commits_with_uploads: int = 0
    """Commits while drafts were sent to the region."""
    commits_without_uploads: int = 0
    """Commits while they were not."""
    switches: int = 0
    """How often the edge began or ceased to send drafts."""
    rtt_ms: float = 0.0
    """Median round trip between edge and replica; 0: none was measured."""
    commit_interval_ms: float = 0.0
    draft_ms: float = 0.0
    """The edge's time per draft."""
    ahead_tokens: int = 0
    """Tokens of the reply that waited at the edge when the chat was asked for."""


NO_SPECULATION = SpeculationStats()


@dataclass(frozen=True, slots=True)
class FirstText:
    """When an edge had the first text of a reply for its client: milliseconds since the request
    came, on the edge's clock. Without an edge that drafts and computes ahead, the first would have
    been `region_ms`."""

    provisional_ms: float = 0.0
    """The first provisional text, right or wrong; 0: none was shown."""
    staying_ms: float = 0.0
    """The first word that was shown and never taken back, provisional or final; 0: no text came."""
    committed_ms: float = 0.0
    """The first final text; 0: none came."""
    region_ms: float = 0.0
    """Estimate of `committed_ms` by the region alone: the time until the region was asked, one
    round trip to the replica, and the replica's own time to its first token. 0: not known."""


NO_FIRST_TEXT = FirstText()
