"""What a reply took and what speculation did for it, in the shape of vLLM's `metrics` (pure).

vLLM's fields and what they count: its pages "Per-Request Metrics" and "Per-Request Acceptance
Metrics". Times here are measured at the edge. `tokens`, `moves`, `first_text` and `rtt_ms` are
ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from msgspec import UNSET, UnsetType

from outrider.session.client import Done
from outrider.session.types import AcceptanceCount


class SpeculativeDecoding(msgspec.Struct, kw_only=True):
    """What became of the drafts that the model verified for one reply. A step is a call of the
    model that verified some. After a move it is what the last replica verified."""

    mean_acceptance_length: float
    """Tokens that a step brought, with the one that the model adds to the accepted drafts; 1
    without steps."""
    draft_acceptance_rate: float
    """Share of the verified drafts that were accepted; 0 without any."""
    acceptance_histogram: list[int]
    """Entry j: steps that accepted j drafts; `num_spec_tokens` + 1 entries."""
    acceptance_histogram_by_draft_length: dict[str, list[int]]
    """The same for the steps that verified k drafts, by k; k + 1 entries."""
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    """Drafts that were verified."""
    num_spec_tokens: int
    """Most drafts that a step may verify."""


class TokensBySource(msgspec.Struct, kw_only=True):
    """The reply's tokens, by who had drafted them."""

    edge: int
    """Accepted drafts of the edge."""
    region: int
    """Accepted drafts that the replica made for itself."""
    none: int
    """Tokens for which no draft was right."""
    unknown: int
    """Tokens of replicas that the chat has left, or of an earlier run of it."""


class FirstTextTimes(msgspec.Struct, kw_only=True):
    """When the edge had the first text for its client, in milliseconds since the request came."""

    provisional_ms: float
    """The first provisional text, right or wrong; 0: none was shown."""
    staying_ms: float
    """The first word that was never taken back, provisional or final; 0: no text came."""
    committed_ms: float
    """The first final text; 0: none came."""
    region_ms: float
    """Estimate of the first final text by the region alone; 0: not known."""


class ReplyMetrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one reply."""

    time_to_first_token_ms: float
    """From the request to the first final token."""
    generation_time_ms: float
    """From there to the end."""
    queue_time_ms: float
    """Of that the time in the replica's queue."""
    mean_itl_ms: float | UnsetType = UNSET
    """Generation time by token after the first; absent with fewer than two tokens."""
    tokens_per_second: float
    """The reply's tokens over all of its time."""
    speculative_decoding: SpeculativeDecoding
    tokens: TokensBySource
    moves: int
    """How often another replica went on with the reply."""
    first_text: FirstTextTimes
    rtt_ms: float | UnsetType = UNSET
    """Median round trip between edge and replica; absent if none was measured."""
    ahead_tokens: int = 0
    """Tokens that were ready when the request came (`typing_id`); absent: none."""


def metrics_of(done: Done) -> ReplyMetrics:
    """Of the reply that ended so."""
    usage, times = done.usage, done.edge_timings
    generation_ms = times.total_ms - times.ttft_ms
    num_later = usage.completion_tokens - 1
    return ReplyMetrics(
        time_to_first_token_ms=round(times.ttft_ms, 3),
        generation_time_ms=round(generation_ms, 3),
        queue_time_ms=round(done.replica_timings.queue_ms, 3),
        mean_itl_ms=round(generation_ms / num_later, 3) if num_later > 0 else UNSET,
        tokens_per_second=round(usage.completion_tokens * 1000 / max(times.total_ms, 1e-3), 3),
        speculative_decoding=_speculation(usage.acceptance, done.max_drafts),
        tokens=TokensBySource(**usage.sources._asdict()),
        moves=done.num_moves,
        first_text=FirstTextTimes(
            **{name: round(it, 3) for name, it in asdict(done.first_text).items()}
        ),
        rtt_ms=round(done.speculation_stats.rtt_ms, 3) or UNSET,
        ahead_tokens=done.speculation_stats.ahead_tokens,
    )


def _speculation(counts: Sequence[AcceptanceCount], max_drafts: int) -> SpeculativeDecoding:
    """`max_drafts`: of one call, as the replica says; a prediction may bring more."""
    most = max((it.drafted for it in counts), default=0)
    histogram = [0] * (max(most, max_drafts) + 1)
    by_length: dict[str, list[int]] = {}
    for it in counts:
        histogram[it.accepted] += it.calls
        row = by_length.setdefault(str(it.drafted), [0] * (it.drafted + 1))
        row[it.accepted] += it.calls
    num_steps = sum(histogram)
    num_drafts = sum(it.drafted * it.calls for it in counts)
    num_accepted = sum(it.accepted * it.calls for it in counts)
    return SpeculativeDecoding(
        mean_acceptance_length=1 + num_accepted / max(1, num_steps),
        draft_acceptance_rate=num_accepted / max(1, num_drafts),
        acceptance_histogram=histogram,
        acceptance_histogram_by_draft_length=by_length,
        num_spec_steps=num_steps,
        num_accepted_draft_tokens=num_accepted,
        num_draft_tokens=num_drafts,
        num_spec_tokens=len(histogram) - 1,
    )
