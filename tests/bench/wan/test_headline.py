"""One statistic for all that the README says of a chat's times."""

from __future__ import annotations

from bench.harness import TOO_FEW, Run
from bench.wan.headline import Times, headline_table
from bench.wan.plan import OURS, REGION_SUFFIX

BASE = Times([400.0, 600.0], [400.0, 600.0], [1000.0, 2000.0])
FEWER = Times([400.0], [400.0], [1000.0])
ALONE = Times([400.0], [400.0], [800.0])
SOONER = Times([100.0, 700.0], [440.0, 660.0], [1100.0, 1300.0])


def test_times_are_ratios_of_means_and_slower_chats_are_counted() -> None:
    run = Run("wan", quick=True, command="")
    by_rtt = {
        50.0: {REGION_SUFFIX: (ALONE, FEWER), OURS: (SOONER, BASE)},
        100.0: {OURS: (SOONER, BASE)},
        250.0: {REGION_SUFFIX: (ALONE, FEWER)},
    }
    headline_table(run, by_rtt, "greedy")
    assert run.tables[0].rows == [
        (50, 2, "0.800", 1, "1.10", "0.800", 1, "0.800"),
        (100, 2, "0.800", 1, "1.10", "0.800", 1, TOO_FEW),
    ]
    figures = run.figures["over_plain, greedy"]
    assert isinstance(figures, dict)
    assert figures["50"] == {
        "chats": 2,
        "staying": [0.8, None, None],
        "later": 1,
        "final": [1.1, None, None],
        "whole": [0.8, None, None],
        "longer": 1,
        "region_whole": [0.8, None, None],
    }
