"""What the pool counts, as a scrape sees it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.metrics import ModelEncoder, TokenizationMetrics
from outrider.tokenization.pool.pool import Tier
from outrider.tokenization.segment_cache import ContentClass
from tests.edge.integration.region import small_vocabulary
from tests.tokenization.backends.test_equivalence import Wrong


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture
def encoder(words: Vocabulary) -> CachingEncoder:
    """Its fast backend is wrong about texts with a Z, and looked at every time."""
    reference = Reference(words)
    return CachingEncoder(
        words, FallbackBackend(Wrong(reference), reference, reason="test", sample_every=1)
    )


def test_lookups_backends_and_shadow_checks_are_read_at_a_scrape(encoder: CachingEncoder) -> None:
    registry = CollectorRegistry()
    TokenizationMetrics(registry, lambda: [ModelEncoder("m", encoder, 2)])
    value = registry.get_sample_value
    labels = {"model": "m", "backend": "wrong", "reason": "test", "processes": "2"}
    assert value("outrider_tokenization_backend", labels) == 1
    for text in ("fine", "fine"):
        encoder.encode(text, ContentClass.DOCUMENT, b"me")
    assert value("outrider_tokenization_cache_entries") == encoder.size[0] > 0
    assert value("outrider_tokenization_cache_bytes") == encoder.size[1] > 0
    encoder.encode("bad Z", ContentClass.DOCUMENT, b"me")
    document = {"content": "document"}
    assert value("outrider_tokenization_cache_texts_total", document) == 3
    assert value("outrider_tokenization_cache_hits_total", document) == 1
    assert value("outrider_tokenization_cache_chars_total", document) == 4 + 4 + 5
    assert value("outrider_tokenization_cache_hit_chars_total", document) == 4
    assert value("outrider_tokenization_shadow_texts_total") == 2
    assert value("outrider_tokenization_shadow_mismatches_total") == 1
    labels |= {"backend": REFERENCE, "reason": encoder.backend.reason}
    assert value("outrider_tokenization_backend", labels) == 1


def test_counters_do_not_go_back_when_a_vocabulary_is_unloaded(encoder: CachingEncoder) -> None:
    registry = CollectorRegistry()
    encoders = [ModelEncoder("m", encoder)]
    metrics = TokenizationMetrics(registry, lambda: encoders)
    encoder.encode("bad Z", ContentClass.DOCUMENT, b"me")
    value = registry.get_sample_value
    counted = {
        name: value(f"outrider_tokenization_{name}_total", labels)
        for name, labels in (
            ("cache_texts", {"content": "document"}),
            ("cache_chars", {"content": "document"}),
            ("shadow_texts", {}),
            ("shadow_mismatches", {}),
        )
    }
    encoders.clear()
    metrics.retire(encoder)

    assert all(counted.values())
    for name, count in counted.items():
        labels = {"content": "document"} if name.startswith("cache") else {}
        assert value(f"outrider_tokenization_{name}_total", labels) == count
    assert value("outrider_tokenization_cache_entries") == 0


def test_chats_are_timed_by_tier_and_what_was_left_out_is_summed(encoder: CachingEncoder) -> None:
    registry = CollectorRegistry()
    metrics = TokenizationMetrics(registry, lambda: [ModelEncoder("m", encoder)])
    metrics.record(Tier.CACHE, 0.2)
    metrics.record(Tier.THREAD, 7.0)
    metrics.record(Tier.THREAD, 3.0)
    metrics.shortened(500, 300)
    metrics.shortened(301, 300)
    value = registry.get_sample_value
    assert value("outrider_tokenization_seconds_sum", {"tier": "thread"}) == 0.01
    assert value("outrider_tokenization_seconds_count", {"tier": "cache"}) == 1
    assert value("outrider_tokenization_shortened_chats_total") == 2
    assert value("outrider_tokenization_omitted_tokens_total") == 201
    metrics.close()
    assert not list(registry.collect()), "another pool may count in the same registry"
