"""A chain of drafts behind the final tokens, and the KV of both (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from services.edge.drafter.calibration import OnlineCalibration
from services.edge.drafter.kv import KvSequence
from services.edge.drafter.proposer import Proposal, TokenEstimate
from services.edge.drafter.protocol import DraftSource


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """One source's estimate for a place, before calibration."""

    source: DraftSource
    estimate: TokenEstimate


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A draft in its place."""

    token: int
    probability: float
    """Calibrated probability that it is right if all drafts before it are."""
    source: DraftSource
    estimates: tuple[SourceEstimate, ...] = ()
    """All estimates for the place; the calibration learns from them."""
    alternative: TokenEstimate | None = None
    """The next best token."""


class DraftBranch:
    """Drafts from absolute position `begin` on."""

    def __init__(self, begin: int, kv: KvSequence, chain: Sequence[DraftToken] = ()) -> None:
        self.begin = begin
        self.kv = kv
        self.chain = list(chain)
        self.proposal: Proposal | None = None
        """The model's estimate of the token behind the chain, if it was computed."""
        self.copied: TokenEstimate | None = None
        """The token that a repetition of the text predicts there, if `asked_copy` and one
        exists."""
        self.asked_copy = False
        self.wants_row = False
        """Whether one more row from the model could extend the chain."""
        self.is_settled = False
        """Whether nothing has changed since the chain last grew."""

    @property
    def end(self) -> int:
        """The absolute position behind the chain."""
        return self.begin + len(self.chain)

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens whose KV is not computed."""
        return self.end - self.kv.length

    def survival(self, skipped: int = 0) -> float:
        """Probability that the chain is right, given that its first `skipped` drafts are."""
        return prod(draft.probability for draft in self.chain[skipped:])

    def push(self, draft: DraftToken) -> None:
        """Append a draft."""
        self.chain.append(draft)
        self.proposal = None
        self.reconsider()

    def reconsider(self) -> None:
        """The text before the end, or the calibration, changed: weigh the sources again."""
        self.copied = None
        self.asked_copy = False
        self.is_settled = False
        self.wants_row = False


def best_draft(
    copied: TokenEstimate | None,
    proposal: Proposal | None,
    calibration: OnlineCalibration,
    position: int,
) -> DraftToken | None:
    """The likeliest draft for the reply's token `position`; None if no source has one."""
    model = proposal.best if proposal else None
    if copied and model and copied.token == model.token:
        likelier = max(copied, model, key=lambda estimate: estimate.probability)
        estimates = [SourceEstimate(DraftSource.BOTH, likelier)]
    else:
        estimates = [SourceEstimate(DraftSource.SUFFIX, copied)] if copied else []
        estimates += [SourceEstimate(DraftSource.MODEL, model)] if model else []
    if not estimates:
        return None
    ranked = sorted(
        (
            (calibration.probability(it.source, position, it.estimate.probability), it)
            for it in estimates
        ),
        key=lambda pair: -pair[0],
    )
    others = [TokenEstimate(it.estimate.token, probability) for probability, it in ranked[1:]]
    probability, best = ranked[0]
    second = proposal.second if proposal else None
    if second and second.token != best.estimate.token:
        others.append(second)
    alternative = max(others, key=lambda estimate: estimate.probability, default=None)
    return DraftToken(best.estimate.token, probability, best.source, tuple(estimates), alternative)
