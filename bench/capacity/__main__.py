"""Measures all cells, and holds them against the law."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import bench.capacity
from bench.capacity.cells import (
    EDGE,
    NUM_TOKENS,
    OUTRIDER,
    PLAIN,
    WARM_TOKENS,
    Outcome,
    Scheme,
    region_scheme,
    run_cell,
)
from bench.capacity.law import Regime, batched_law, chats_at, law, regime_of
from bench.capacity.pairs import CallCost, Pair
from bench.harness import Run, median, parser, start

CORE: Final = Pair("one core", CallCost(142.0, 26.3), CallCost(40.0, 8.0), 0.84)
"""Qwen2.5-Coder of 1.5 and 0.5 thousand million weights: a call of one row 168 ms, one more row
26.3, a draft 48, and 0.84 of the drafts right, as `python -m bench.wan --pair` measured them. How
a step's cost divides into its parts was not: taken as the target's."""
ROWS_FREE: Final = Pair("rows nearly free", CallCost(60.0, 0.6), CallCost(15.0, 0.15), 0.8)
"""A target whose weights take the time, whatever the rows, and a draft model a quarter as slow."""
SMALL_DRAFT: Final = Pair("small draft model", CallCost(100.0, 5.0), CallCost(8.0, 0.4), 0.7)
"""A draft model a twelfth as slow as its target, and not as good."""
PAIRS: Final = (CORE, ROWS_FREE, SMALL_DRAFT)
RTTS_MS: Final = (0, 50, 150)
CHATS: Final = (1, 2, 4, 8, 16, 32)
MORE_CHATS: Final = (*CHATS, 48)
"""Also of edges: how many have the pace that fewer have in the region."""
NUM_DRAFTS: Final = (1, 2, 3, 4)
"""Most drafts of a chat before a call, where the region drafts: the best of these counts, number of
chats by number of chats."""
LEAST_SHARE: Final = 0.98
"""Of the pace of the best way to draft that it has: where the controller found it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured for a pair, a distance and a number of chats."""

    pair: Pair
    rtt_ms: int
    num_chats: int
    plain: Outcome
    region: Outcome
    """Of the best number of drafts."""
    num_drafts: int
    """That number."""
    edge: Outcome
    outrider: Outcome
    edge_chats: float
    """Chats of edges that draft, at `region_pace`."""

    @property
    def regime(self) -> Regime:
        return regime_of(self.pair, self.plain, self.region, self.num_drafts, self.rtt_ms / 1e3)

    @property
    def region_pace(self) -> float:
        """Of the better of plain decoding and region drafting."""
        return max(self.plain.pace, self.region.pace)

    @property
    def ratio(self) -> float:
        """Chats with edges for each without."""
        return self.edge_chats / self.num_chats

    @property
    def law_error(self) -> float:
        """By how much the law says too little, as a share of it."""
        return self.ratio / law(self.region) - 1

    @property
    def batched_law_error(self) -> float:
        """The same for its form for calls that chats share."""
        return self.ratio / batched_law(self.pair, self.region, self.num_chats) - 1

    @property
    def choice(self) -> float:
        """The controller's pace over the best of drafting at edges and not at all."""
        return self.outrider.pace / max(self.plain.pace, self.edge.pace)


def cells_of(pair: Pair, rtts_ms: Iterable[int], chats: tuple[int, ...]) -> list[Cell]:
    """All cells of a pair."""

    def measure(
        scheme: Scheme, rtt_ms: int = 0, counts: tuple[int, ...] = chats
    ) -> dict[int, Outcome]:
        return {count: run_cell(pair, scheme, count, rtt_ms / 1e3) for count in counts}

    more = tuple(it for it in MORE_CHATS if it <= 2 * chats[-1])
    plain = measure(PLAIN)
    drafting = {number: measure(region_scheme(number)) for number in NUM_DRAFTS}
    best = {
        count: max(NUM_DRAFTS, key=lambda number: drafting[number][count].pace) for count in chats
    }
    cells = []
    for rtt_ms in rtts_ms:
        edge, ours = measure(EDGE, rtt_ms, more), measure(OUTRIDER, rtt_ms)
        for count in chats:
            region = drafting[best[count]][count]
            pace = max(plain[count].pace, region.pace)
            cells.append(
                Cell(
                    *(pair, rtt_ms, count, plain[count], region, best[count]),
                    *(edge[count], ours[count]),
                    edge_chats=chats_at(_paces(edge), pace),
                )
            )
        print(f"{pair.name}, RTT {rtt_ms} ms", file=sys.stderr)
    return cells


def _paces(outcomes: Mapping[int, Outcome]) -> dict[int, float]:
    return {count: it.pace for count, it in outcomes.items()}


def report(run: Run, cells: list[Cell]) -> int:
    """Tables, samples and figures; returns how many replies' cells were not exact."""
    for pair in dict.fromkeys(it.pair for it in cells):
        _report_pair(run, pair, [it for it in cells if it.pair is pair])
    regimes = run.table(
        "The law by regime: chats of one core with edges for each without, at equal pace",
        *("regime", "cells", "measured, median", "least", "most", "the law, median"),
        *("off the law, median", "off its form for shared calls, median"),
    )
    regimes.note(
        "Off: measured over said, less one. Without: plain decoding or region drafting, whichever "
        "is better."
    )
    worth: dict[str, dict[str, float]] = {}
    errors: dict[str, dict[str, float]] = {}
    for regime in Regime:
        of = [it for it in cells if it.regime is regime]
        if not of:
            continue
        ratios = [it.ratio for it in of]
        said = [law(it.region) for it in of]
        error = median([it.law_error for it in of])
        batched = median([it.batched_law_error for it in of])
        regimes.add(
            *(regime.value, len(of), median(ratios), min(ratios), max(ratios), median(said)),
            *(error, batched),
        )
        worth[regime.name.lower()] = {
            "median": round(median(ratios), 3),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
        }
        errors[regime.name.lower()] = {
            "as_published": round(error, 3),
            "shared_calls": round(batched, 3),
        }
    exact = [o.is_exact for it in cells for o in (it.plain, it.region, it.edge, it.outrider)]
    run.figures.update(
        exact_runs=sum(exact),
        runs=len(exact),
        curves=_curves(cells),
        least_choice=round(min(it.choice for it in cells), 3),
        cells=len(cells),
        cells_choice_missed=sum(it.choice < LEAST_SHARE for it in cells),
        cells_region_model_better=sum(
            it.region.pace * LEAST_SHARE > it.outrider.pace for it in cells
        ),
        edge_over_region_best=worth,
        law_error=errors,
    )
    return len(exact) - sum(exact)


def _report_pair(run: Run, pair: Pair, cells: list[Cell]) -> None:
    table = run.table(
        f"{pair.name}: tokens per second of each chat, and chats of one core at equal pace",
        *("RTT, ms", "chats", "plain", "region drafts", "its drafts", "edges draft", "Outrider"),
        *("Outrider over the better of plain and edges", "edges: chats at the region's pace"),
        *("for each of the region's", "the law", "its form for shared calls", "regime"),
    )
    table.note(
        f"A call takes {pair.target.fixed_ms:g} ms and {pair.target.row_ms:g} for each row, a step "
        f"of the draft model {pair.draft.fixed_ms:g} and {pair.draft.row_ms:g}; "
        f"{pair.acceptance:g} of its drafts are right. The region's pace: the better of plain and "
        "region drafting; 0: one chat alone is slower."
    )
    if any(it.edge_chats >= MORE_CHATS[-1] for it in cells):
        table.note(f"{MORE_CHATS[-1]} chats: that many or more.")
    for it in cells:
        table.add(
            *(it.rtt_ms, it.num_chats, it.plain.pace, it.region.pace, it.num_drafts),
            *(it.edge.pace, it.outrider.pace, it.choice, it.edge_chats, it.ratio),
            *(law(it.region), batched_law(pair, it.region, it.num_chats), it.regime.name.lower()),
        )


def _curves(cells: list[Cell]) -> dict[str, dict[str, float | None]]:
    """Chats with edges for each without, by pair and distance and by chats without, for the chart.
    None where more chats with edges than were measured have the pace, or not even one has."""
    found: dict[str, dict[str, float | None]] = {}
    for it in cells:
        is_known = 0 < it.edge_chats < MORE_CHATS[-1]
        of = found.setdefault(f"{it.pair.name}, RTT {it.rtt_ms} ms", {})
        of[str(it.num_chats)] = round(it.ratio, 3) if is_known else None
    return found


def main() -> int:
    run = start("capacity", parser("capacity", bench.capacity.__doc__ or "").parse_args())
    run.setting("emulated", tokens=NUM_TOKENS, counted_from=WARM_TOKENS, num_drafts=NUM_DRAFTS)
    if run.quick:
        cells = cells_of(CORE, RTTS_MS[:2], CHATS[:3])
    else:
        cells = [cell for pair in PAIRS for cell in cells_of(pair, RTTS_MS, CHATS)]
    num_wrong = report(run, cells)
    run.finish()
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
