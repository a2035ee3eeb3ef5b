"""Final tokens for a core-second of the region, drafting elsewhere over drafting there (pure).

A region's CPU time is that of replica (or waiting verifier) and router, prompts included, and where
the gateway drafts at the region, that of its drafter's process. What else a gateway does is the
same work with and without drafts, and counts for none.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.wan.plan import OURS, PLAIN, REGION_DRAFTER, REGION_SUFFIX
from bench.wan.report import theory
from bench.wan.report.results import Results, Where


@dataclass(frozen=True, slots=True)
class Capacity:
    """With so many chats at once. Ratios are of tokens per core-second on the same chats, 0 where
    there were none."""

    sessions: int
    over_plain: float
    over_suffix: float
    over_drafter: float
    """Over a region that runs the draft model itself."""
    drafts_per_commit: float
    """k, of that region."""
    draft_ms: float
    """t_d: CPU time of its drafter for each draft it verified."""
    token_ms: float
    """t_s: CPU time of a region that does not draft, for each token of the same chats."""

    @property
    def predicted(self) -> float:
        """Of `over_drafter`; 0 where that was not measured."""
        if not self.over_drafter:
            return 0.0
        return theory.capacity_gain(self.drafts_per_commit, self.draft_ms, self.token_ms)


def capacities(results: Results) -> list[Capacity]:
    """By chats at once, rising."""
    return [_capacity(results, sessions) for sessions in results.crowds()]


def _capacity(results: Results, sessions: int) -> Capacity:
    where = Where(sessions=sessions)
    batches = results.batches(REGION_DRAFTER, where)
    samples = [sample for batch in batches for sample in batch.samples]
    num_drafts = sum(sample.num_drafts for sample in samples)
    num_commits = sum(len(sample.commits) for sample in samples)
    draft_s = sum(batch.spent.draft_s for batch in batches)
    plain_s = results.paired_core_s(PLAIN, REGION_DRAFTER, where)
    return Capacity(
        sessions,
        results.capacity_ratio(OURS, PLAIN, where),
        results.capacity_ratio(OURS, REGION_SUFFIX, where),
        results.capacity_ratio(OURS, REGION_DRAFTER, where),
        num_drafts / num_commits if num_commits else 0.0,
        1000 * draft_s / num_drafts if num_drafts else 0.0,
        1000 / plain_s if plain_s else 0.0,
    )
