"""Which drafts go into a call: those worth their rows. Drafters are only asked if asking pays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from outrider.session.types import Priority
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel, attention_work
from services.inference.scheduler.draft_sources import (
    NO_PROPOSAL,
    DraftAttempt,
    ProfitTracker,
    Proposal,
)
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.scheduler.session import Session
from services.inference.scheduler.types import OverloadLevel

LEAST_PROFIT = 0.01
"""Drafts are paid for if they gain each session this much, as a logarithm of its expected commits:
estimates are not exact."""

LATENCY_WEIGHT = 1.2
"""Exponent of a call's duration: above 1, since a longer call also delays all text that comes in it
and the prompts that arrive meanwhile. On chats with a 135M model on one core 1.2 costs 1 to 3 % of
the tokens per second at 4 to 8 sessions, and shortens the median call by a fifth at 8."""


class BatchSlot(NamedTuple):
    """One session's place in a call, before drafts."""

    session: Session
    num_tokens: int
    """The session's own."""
    num_padding: int
    """Drafts, or copies of its last token, that the slice needs to have min_rows tokens."""
    is_last: bool
    """Whether the slice ends at the session's last token, so that its logits are wanted."""


class DraftOffer(NamedTuple):
    """Drafts of one session that compete for rows."""

    survival: Sequence[float]
    """Probability that draft i and all before it are accepted; never rises."""
    num_padding: int = 0
    """Leading drafts that cost nothing: the slice has their rows anyway (min_rows)."""


class DraftRows(NamedTuple):
    """How many rows the drafts of a call may take."""

    max_rows: int
    """Most rows of the call, drafts included."""
    has_low: bool
    """Whether drafts of LOW sessions are among them, beyond their padding."""


class DraftGrant(NamedTuple):
    """The drafts that a session verifies in the call."""

    ids: tuple[int, ...]
    num_drafts: int
    """Rows for drafts, padding included; at least len(ids)."""
    attempt: DraftAttempt | None
    """Set if its suffix drafter was asked."""


class RowCost(Protocol):
    """Predicts the cost of calls by their rows (DecodeCostModel, DecodeCallCost)."""

    def predict_ms(self, rows: int) -> float:
        """Duration of a call that needs `rows`."""
        ...

    def padded_rows(self, rows: int) -> int:
        """Rows that the engine computes in such a call."""
        ...


def allocate_draft_rows(
    offers: Sequence[DraftOffer], rows: int, max_rows: int, cost: RowCost
) -> list[int]:
    """How many drafts of each offer to verify in a call that has `rows` rows without them.

    Every session commits one token for certain. The choice has the largest geometric mean of the
    sessions' expected commits (Kelly's proportional fairness, 1998) over the call's duration to the
    power of LATENCY_WEIGHT. With a weight of 1 that is, for one session or all alike, the goodput
    of TurboSpec (arXiv 2406.14066); in a mixed call it weighs what a draft gains for its session
    against the time it costs all others, where the goodput's sum would let sessions with repetitive
    text slow down the others. Rows that the engine computes anyway take the next best drafts.
    """
    if not offers:
        return []
    counts = [min(offer.num_padding, len(offer.survival)) for offer in offers]
    ranked = sorted(
        (-gain, index)
        for index, (offer, count) in enumerate(zip(offers, counts, strict=True))
        for gain in _gains(offer.survival, count)
    )[: max(0, max_rows - rows)]
    best_profit = LEAST_PROFIT * len(offers)
    num_paid = 0
    gained = 0.0
    num_tried = 0
    base_ms = cost.predict_ms(rows)
    while num_tried < len(ranked):
        begin = num_tried
        num_tried = min(len(ranked), cost.padded_rows(rows + num_tried + 1) - rows)
        gained -= sum(negated for negated, _ in ranked[begin:num_tried])
        stretch = cost.predict_ms(rows + num_tried) / base_ms
        profit = gained - LATENCY_WEIGHT * len(offers) * math.log(stretch)
        if profit > best_profit:
            best_profit, num_paid = profit, num_tried
    num_free = cost.padded_rows(rows + num_paid) - rows
    for _, index in ranked[: max(num_paid, num_free)]:
        counts[index] += 1
    return counts


def _gains(survival: Sequence[float], num_padding: int) -> Iterator[float]:
    """By how much each draft raises the logarithm of its session's expected commits; falling."""
    expected = 1.0 + sum(survival[:num_padding])
    for chance in survival[num_padding:]:
        yield math.log1p(chance / expected)
        expected += chance


class DraftGate:
    """Decides when suffix drafters are asked for drafts, by the gains of recent attempts.

    Drafts that are not worth their rows are never verified, but finding that out takes time in
    which the engine idles. The profit of an attempt, in tokens: what the session committed beyond
    the one it would have had anyway, less what all sessions could have committed in the time that
    the rows of its drafts and the attempt took. Greedy and sampled replies, and calls of different
    sizes, are tracked apart. While a tracker shows a loss, DraftBackoff spaces the attempts; a
    session whose attempt found drafts worth their rows is asked again in the next call.
    """

    def __init__(self, attempt_ms: float) -> None:
        """`attempt_ms`: CPU time of one attempt."""
        self._attempt_ms = attempt_ms
        self._trackers: dict[tuple[bool, int], ProfitTracker] = {}

    def tracker(self, num_sessions: int, *, sampled: bool) -> ProfitTracker:
        """For greedy or sampled replies in calls of about so many sessions."""
        key = sampled, num_sessions.bit_length()
        tracker = self._trackers.get(key)
        if tracker is None:
            tracker = self._trackers[key] = ProfitTracker()
        return tracker

    def attempts(
        self, trackers: Sequence[ProfitTracker], counts: Sequence[int], rows: int, cost: RowCost
    ) -> list[DraftAttempt]:
        """One attempt for each session of a call; `counts` drafts of each are verified, and the
        call has `rows` rows without them."""
        num_drafts = sum(counts)
        base_ms = cost.predict_ms(rows)
        draft_ms = (cost.predict_ms(rows + num_drafts) - base_ms) / max(1, num_drafts)
        tokens_per_ms = len(counts) / base_ms
        return [
            DraftAttempt(tracker, (draft_ms * count + self._attempt_ms) * tokens_per_ms, count > 0)
            for tracker, count in zip(trackers, counts, strict=True)
        ]


class DraftBudget:
    """Asks sessions for drafts, and lets those in that are worth their rows."""

    def __init__(
        self,
        limits: SchedulerLimits,
        cost: CostModel,
        decode_cost: DecodeCostModel,
        min_rows: int,
    ) -> None:
        self._limits = limits
        self._cost = cost
        self._decode_cost = decode_cost
        self._min_rows = min_rows
        self._gate = DraftGate(limits.draft_attempt_ms)

    def max_rows(
        self,
        slots: Sequence[BatchSlot],
        rows: int,
        taken: int,
        *,
        short: bool,
        level: OverloadLevel,
    ) -> DraftRows:
        """Rows of these slots, which have `rows` without drafts, in a call of `taken` tokens.

        Prompt tokens take time from drafts in short calls only: in others, drafts that came with a
        prompt are verified with its last chunk. Drafts of sessions above LOW may make a short call
        as long as they could without LOW sessions.
        """
        free = self._cost.padded_rows(rows)
        has_low = True
        if level >= OverloadLevel.NO_DRAFTS:
            most = free
        else:
            row_ms = self._cost.row_ms
            decode_ms = self._decode_ms(slots)
            if short:
                limit_ms = self._limits.low_tick_ms
                above_low = [slot for slot in slots if slot.session.priority is not Priority.LOW]
                if any(slot.session.sources.may_propose for slot in above_low):
                    without_ms = self._limits.draft_stretch * self._decode_ms(above_low)
                    has_low = without_ms <= limit_ms
                    limit_ms = max(limit_ms, without_ms)
                spare_ms = limit_ms - decode_ms - row_ms * (taken - rows)
            else:
                limit_ms = max(self._limits.max_tick_ms, self._limits.draft_stretch * decode_ms)
                spare_ms = limit_ms - decode_ms
            most = max(free, rows + int(spare_ms / row_ms))
        return DraftRows(min(most, rows + self._limits.max_batch_tokens - taken), has_low)

    def _decode_ms(self, slots: Sequence[BatchSlot]) -> float:
        contexts = [slot.session.num_computed for slot in slots]
        return self._cost.decode_ms(contexts, self._min_rows)

    def allocate(self, slots: Sequence[BatchSlot], rows: int, most: DraftRows) -> list[DraftGrant]:
        """One grant for each slot of a call, whose slots have `rows` rows without drafts.

        Prompt tokens are left out of the price: beside a long prefill every draft would look cheap.
        In a call that ends a prompt, only this session is asked: its first token does not wait for
        the others' drafts.
        """
        ends_prompt = any(slot.num_tokens > 1 for slot in slots)
        attention = sum(
            [attention_work(1 + slot.num_padding, slot.session.num_computed) for slot in slots]
        )
        cost = self._decode_cost.reading(attention)
        least = self._decode_cost.least_survival(len(slots), attention)
        greedy = self._gate.tracker(len(slots), sampled=False)
        sampled = self._gate.tracker(len(slots), sampled=True)
        trackers: list[ProfitTracker] = []
        proposals: list[Proposal] = []
        asked: list[bool] = []
        for slot in slots:
            session = slot.session
            tracker = sampled if session.is_sampled else greedy
            may_draft = slot.num_tokens > 1 or not ends_prompt
            sources = session.sources
            may_ask = may_draft and sources.has_drafter and not sources.follows_prediction
            ask = may_ask and sources.backoff.is_due(tracker)
            trackers.append(tracker)
            asked.append(ask)
            if may_draft:
                limits, room = self._limits, session.max_drafts
                if session.priority is Priority.LOW and not most.has_low:
                    room = min(room, slot.num_padding)
                proposals.append(
                    sources.propose(
                        min(limits.max_draft_tokens, room),
                        least,
                        ask_drafter=ask,
                        max_predicted=min(limits.max_predicted_tokens, room),
                    )
                )
            else:
                proposals.append(NO_PROPOSAL)
        offers = [
            DraftOffer(proposal.survival, slot.num_padding)
            for proposal, slot in zip(proposals, slots, strict=True)
        ]
        counts = allocate_draft_rows(offers, rows, most.max_rows, cost)
        paid = [count - slot.num_padding for count, slot in zip(counts, slots, strict=True)]
        attempts = self._gate.attempts(trackers, paid, rows, cost)
        return [
            DraftGrant(proposal.ids[:count], count, attempt if was_asked else None)
            for proposal, count, attempt, was_asked in zip(
                proposals, counts, attempts, asked, strict=True
            )
        ]
