"""Metrics by model stay few, however many models come and go."""

from __future__ import annotations

from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from services.edge.telemetry.labels import MAX_LABELS, ModelLabels


def test_names_beyond_the_bound_share_a_label_and_gauges_can_be_forgotten() -> None:
    metrics = Metrics("edge")
    try:
        labels = ModelLabels(metrics)
        for number in range(MAX_LABELS):
            assert labels.of(f"m{number}") == {"model": f"m{number}"}
        assert labels.of("more") == {"model": "other"}
        assert labels.of("m0") == {"model": "m0"}
        for name in ("m0", "m1"):
            labels.gauge(Family("outrider_test_gauge", "A test."), labels.of(name), 3.0)
        labels.forget("m0")
        sample = metrics.registry.get_sample_value
        assert sample("outrider_test_gauge", {"model": "m0"}) is None
        assert sample("outrider_test_gauge", {"model": "m1"}) == 3.0
    finally:
        metrics.close()
