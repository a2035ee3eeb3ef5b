"""What the README says: by one statistic, how the times of Outrider's chats compare with plain
streaming's, beside those of a region that drafts without any edge (pure).

A ratio is the sum of all chats' times over that of the same chats' times by plain streaming, which
is the ratio of the means. Below 1 is sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench.harness import TOO_FEW, Cell, Figure, Run
from bench.wan.first_words import how
from bench.wan.plan import OURS, PLAIN, REGION_SUFFIX, Scheme
from bench.wan.results import Results, Selection, ratio
from bench.wan.samples import Sample, Word


@dataclass(frozen=True, slots=True)
class Times:
    """Of the same chats in the same order, by one scheme; ms since they were asked."""

    staying_ms: Sequence[float]
    """The first word that stays on screen."""
    final_ms: Sequence[float]
    """The first word that is committed."""
    whole_ms: Sequence[float]
    """The last token."""


Pair: TypeAlias = tuple[Times, Times]
"""Of a scheme, and of the same chats by plain streaming."""


def headline_table(run: Run, by_rtt: Mapping[float, Mapping[Scheme, Pair]], how_: str) -> None:
    """One row a distance, and the same in the figures. Of the schemes here are `OURS`, without
    which there is no row, and `REGION_SUFFIX`."""
    table = run.table(
        "Times of Outrider's chats over those of the same chats by plain streaming, by distance to "
        f"the region: one chat at a time, {how_}",
        *("RTT to the region, ms", "chats", "first word that stays", "came later, chats"),
        *("first committed word", "whole reply", "took longer, chats"),
        "whole reply, the region drafting without an edge",
    )
    figures: dict[str, Figure] = {}
    for rtt_ms, pairs in by_rtt.items():
        if OURS not in pairs:
            continue
        ours, plain = pairs[OURS]
        region = pairs.get(REGION_SUFFIX)
        staying = ratio(ours.staying_ms, plain.staying_ms)
        final = ratio(ours.final_ms, plain.final_ms)
        whole = ratio(ours.whole_ms, plain.whole_ms)
        alone = None if region is None else ratio(region[0].whole_ms, region[1].whole_ms)
        num_later = _num_longer(ours.staying_ms, plain.staying_ms)
        num_longer = _num_longer(ours.whole_ms, plain.whole_ms)
        cells: list[Cell] = [str(staying), num_later, str(final), str(whole), num_longer]
        table.add(
            int(rtt_ms), len(plain.whole_ms), *cells, TOO_FEW if alone is None else str(alone)
        )
        figures[f"{rtt_ms:g}"] = {
            "chats": len(plain.whole_ms),
            "staying": staying.rounded(),
            "later": num_later,
            "final": final.rounded(),
            "whole": whole.rounded(),
            "longer": num_longer,
            "region_whole": None if alone is None else alone.rounded(),
        }
    table.note(
        "Ratios of means with 95 % intervals (chats drawn anew, bootstrap): 0.77 is 23 % sooner. "
        "The region drafts from repetitions in the text, with an edge and without one."
    )
    run.figures[f"over_plain, {how_}"] = figures


def headline(run: Run, results: Results, temperature: float) -> None:
    """The table of a run's own chats."""
    found = {}
    for rtt_ms in results.rtts_ms():
        where = Selection(rtt_ms, 1, temperature)
        found[rtt_ms] = {
            scheme: pair
            for scheme in (REGION_SUFFIX, OURS)
            if (pair := _pair(results, scheme, where)) is not None
        }
    headline_table(run, found, how(temperature))


def _pair(results: Results, scheme: Scheme, where: Selection) -> Pair | None:
    """Of chats that both had, those without any text left out."""
    both = [
        (ours, ours.word, plain, plain.word)
        for ours, plain in results.sample_pairs(scheme, PLAIN, where)
        if ours.word is not None and plain.word is not None
    ]
    if not both:
        return None
    return (
        _times([(ours, word) for ours, word, _, _ in both]),
        _times([(plain, word) for _, _, plain, word in both]),
    )


def _times(chats: Sequence[tuple[Sample, Word]]) -> Times:
    return Times(
        [word.staying_ms for _, word in chats],
        [word.final_ms for _, word in chats],
        [chat.whole_ms for chat, _ in chats],
    )


def _num_longer(ours: Sequence[float], plain: Sequence[float]) -> int:
    return sum(mine > base for mine, base in zip(ours, plain, strict=True))
