"""What operators see of the drafter: its counts go on though it starts anew with every process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.telemetry.metrics import Metrics
from services.edge.drafter import metrics as told
from services.edge.drafter.metrics import DrafterMetrics, DrafterState
from services.edge.drafter.protocol import DrafterStats
from services.edge.telemetry.labels import ModelLabels

FIRST = DrafterStats(
    5, 4, 10, 40, 30_000, 3, 2, 30, 9, 6, 1, 500_000, 80, (100, 20, 7), (50, 11, 0)
)
SECOND = DrafterStats(
    6, 3, 15, 70, 36_000, 4, 7, 70, 19, 7, 3, 3_500_000, 90, (101, 20, 9), (50, 14, 1)
)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics("edge")
    yield metrics
    metrics.close()


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"{name}_total", {"model": "m", **labels}) or 0.0


def plain_counts(metrics: Metrics) -> list[float]:
    names = (
        *(told.CALLS, told.ROWS, told.CALL_TIME, told.REFUSED),
        *(told.EVICTED, told.REUSED, told.BRANCHES, told.PROMOTED, told.PAUSES, told.PAUSED),
    )
    return [counted(metrics, name) for name in names]


def test_reports_add_up_within_a_process_and_over_its_restarts(metrics: Metrics) -> None:
    edge = DrafterMetrics(ModelLabels(metrics), "m")
    edge.state(DrafterState.STARTING)
    edge.record(FIRST)
    assert plain_counts(metrics) == [10, 40, 0.03, 3, 2, 30, 9, 6, 1, 0.5]
    edge.record(SECOND)
    assert plain_counts(metrics) == [15, 70, 0.036, 4, 7, 70, 19, 7, 3, 3.5]
    edge.state(DrafterState.RESTARTING)
    edge.state(DrafterState.STARTING)
    edge.record(FIRST)
    assert plain_counts(metrics) == [25, 110, 0.066, 7, 9, 100, 28, 13, 4, 4.0]
    assert counted(metrics, told.RESTARTS) == 1


def test_drafts_are_counted_by_source(metrics: Metrics) -> None:
    edge = DrafterMetrics(ModelLabels(metrics), "m")
    for report in (FIRST, SECOND):
        edge.record(report)
    for name, expected in ((told.DRAFTED, (101, 20, 9)), (told.ACCEPTED, (50, 14, 1))):
        sources = ("suffix", "model", "both")
        assert tuple(counted(metrics, name, source=source) for source in sources) == expected


def test_sessions_are_those_of_the_process_that_runs(metrics: Metrics) -> None:
    edge = DrafterMetrics(ModelLabels(metrics), "m")
    gauge = metrics.registry.get_sample_value
    edge.state(DrafterState.READY)
    edge.record(SECOND)
    assert [
        gauge("outrider_edge_drafter_state", {"model": "m", "state": it.name.lower()})
        for it in DrafterState
    ] == [0, 0, 1, 0, 0]
    assert gauge("outrider_edge_drafter_sessions", {"model": "m"}) == 6
    assert gauge("outrider_edge_drafter_modelled_sessions", {"model": "m"}) == 3
    edge.state(DrafterState.RESTARTING)
    assert gauge("outrider_edge_drafter_sessions", {"model": "m"}) == 0
    assert gauge("outrider_edge_drafter_modelled_sessions", {"model": "m"}) == 0


def test_dropped_frames_are_counted(metrics: Metrics) -> None:
    edge = DrafterMetrics(ModelLabels(metrics), "m")
    edge.dropped()
    edge.dropped()
    assert counted(metrics, told.DROPPED) == 2
