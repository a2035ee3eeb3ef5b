"""The names and buckets operators rely on, as Prometheus sees them."""

from __future__ import annotations

import pytest
from prometheus_client.exposition import generate_latest

from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics, ShareWindow

LABELS = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "outrider",
    "gen_ai_request_model": "m",
}


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, LABELS | labels)


def test_histograms_have_our_names_and_the_conventions_names() -> None:
    metrics = Metrics("inference")
    metrics.record_ttft(12.0, "m")
    metrics.record_token_latency(30.0, "m")
    metrics.record_time_per_token(0.03, "m")
    metrics.record_request(0.5, "m", None)
    metrics.record_request(0.7, "m", "DEADLINE")
    metrics.record_usage(10, 20, "m")
    assert _value(metrics, "outrider_ttft_seconds_bucket", le="0.015") == 1
    assert _value(metrics, "outrider_ttft_seconds_bucket", le="0.01") == 0
    assert _value(metrics, "outrider_token_latency_seconds_sum") == 0.03
    assert _value(metrics, "gen_ai_server_time_to_first_token_seconds_bucket", le="0.02") == 1
    assert _value(metrics, "gen_ai_server_time_per_output_token_seconds_sum") == 0.03
    assert _value(metrics, "gen_ai_server_request_duration_seconds_count", error_type="") == 1
    assert (
        _value(metrics, "gen_ai_server_request_duration_seconds_count", error_type="DEADLINE") == 1
    )
    assert _value(metrics, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 20
    metrics.close()


def test_gauges_are_absent_until_set() -> None:
    metrics = Metrics("inference")
    assert metrics.registry.get_sample_value("outrider_batch_utilization_ratio") is None
    metrics.set_batch_utilization(0.75)
    free = Family("outrider_kv_blocks_free", "Blocks that are free.")
    metrics.gauge(free).set(3)
    assert metrics.registry.get_sample_value("outrider_batch_utilization_ratio") == 0.75
    assert metrics.registry.get_sample_value("outrider_kv_blocks_free") == 3
    assert metrics.gauge(free) is metrics.gauge(free)
    metrics.close()


def test_verifications_drive_the_rejection_rate() -> None:
    metrics = Metrics("inference")
    metrics.record_verification(0, 0)
    assert metrics.registry.get_sample_value("outrider_draft_rejection_ratio") is None
    metrics.record_verification(4, 1)
    assert metrics.registry.get_sample_value("outrider_draft_rejection_ratio") == pytest.approx(
        0.75
    )
    assert metrics.registry.get_sample_value("outrider_draft_proposed_tokens_total") == 4
    assert metrics.registry.get_sample_value("outrider_draft_accepted_tokens_total") == 1
    metrics.close()


def test_a_share_forgets() -> None:
    window = ShareWindow(horizon=100)
    assert window.add(50, 50) == 1.0
    for _ in range(200):
        share = window.add(10, 0)
    assert share < 0.01


def test_the_prefix_hit_rate_is_that_of_tokens() -> None:
    metrics = Metrics("inference")
    metrics.record_prefix(300, 0)
    metrics.record_prefix(100, 100)
    value = metrics.registry.get_sample_value
    assert value("outrider_prefix_hit_ratio") == pytest.approx(0.25, abs=0.01)
    assert value("outrider_prefix_prompt_tokens_total") == 400
    assert value("outrider_prefix_cached_tokens_total") == 100
    metrics.close()


def test_two_services_in_one_process_do_not_meet() -> None:
    first, second = Metrics("edge"), Metrics("router")
    first.counter(Family("outrider_things", "Things.")).add(2, {"kind": "a"})
    assert second.registry.get_sample_value("outrider_things_total", {"kind": "a"}) is None
    assert first.registry.get_sample_value("outrider_things_total", {"kind": "a"}) == 2
    assert b'service_name="edge"' in generate_latest(first.registry)
    first.close()
    second.close()


def test_a_bucket_names_the_trace_of_its_latest_value_that_has_one() -> None:
    metrics = Metrics("edge")
    for ms, trace in ((20.1, "a" * 32), (20.2, "b" * 32), (20.3, ""), (900.0, "c" * 32)):
        metrics.record_ttft(ms, "m", trace)
    exemplars = {
        sample.exemplar.labels["trace_id"]: sample.exemplar.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert exemplars == {"b" * 32: pytest.approx(0.0202), "c" * 32: 0.9}
    assert b"trace_id" not in generate_latest(metrics.registry)
    metrics.close()


def test_buckets_are_those_that_opentelemetry_shows() -> None:
    metrics = Metrics("inference")
    for ms in (0.0, 1.0, 1.001, 29_999.0, 30_000.0, 1e6):
        metrics.record_token_latency(ms, "m")
        metrics.record_ttft(ms, "m")
    metrics.record_token_latency(5.0, "other")
    shown = {
        name: {
            tuple(sample.labels.items()): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"outrider_{name}_seconds_bucket" and "m" in sample.labels.values()
        }
        for name in ("token_latency", "ttft")
    }
    assert shown["token_latency"] and shown["token_latency"] == shown["ttft"]
    assert _value(metrics, "outrider_token_latency_seconds_count") == 6
