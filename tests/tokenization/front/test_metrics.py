"""What the front counts, as a scrape sees it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE, Reference
from outrider.tokenization.backends.guarded import Guarded
from outrider.tokenization.front.content import Content
from outrider.tokenization.front.encoder import CachingEncoder
from outrider.tokenization.front.job import Layer
from outrider.tokenization.front.metrics import FrontMetrics
from tests.edge.integration.region import small_vocabulary
from tests.tokenization.backends.test_gate import Wrong


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture
def encoder(words: Vocabulary) -> CachingEncoder:
    """Its fast backend is wrong about texts with a Z, and looked at every time."""
    reference = Reference(words)
    return CachingEncoder(words, Guarded(Wrong(reference), reference, why="test", sample_every=1))


def test_lookups_backends_and_canaries_are_read_when_asked_for(encoder: CachingEncoder) -> None:
    registry = CollectorRegistry()
    FrontMetrics(registry, [encoder])
    value = registry.get_sample_value
    assert value("outrider_tokenization_backend", {"backend": "wrong", "why": "test"}) == 1
    for text in ("fine", "fine"):
        encoder.encode(text, Content.DOCUMENT, b"me")
    assert value("outrider_tokenization_cache_entries") == encoder.size[0] > 0
    assert value("outrider_tokenization_cache_bytes") == encoder.size[1] > 0
    encoder.encode("bad Z", Content.DOCUMENT, b"me")
    labels = {"content": "document"}
    assert value("outrider_tokenization_cache_texts_total", labels) == 3
    assert value("outrider_tokenization_cache_hits_total", labels) == 1
    assert value("outrider_tokenization_cache_chars_total", labels) == 4 + 4 + 5
    assert value("outrider_tokenization_cache_hit_chars_total", labels) == 4
    assert value("outrider_tokenization_canary_texts_total") == 2
    assert value("outrider_tokenization_canary_differences_total") == 1
    labels = {"backend": REFERENCE, "why": encoder.backend.why}
    assert value("outrider_tokenization_backend", labels) == 1


def test_chats_are_timed_by_layer_and_what_was_left_out_is_summed(encoder: CachingEncoder) -> None:
    registry = CollectorRegistry()
    metrics = FrontMetrics(registry, [encoder])
    metrics.record(Layer.CACHE, 0.2)
    metrics.record(Layer.THREAD, 7.0)
    metrics.record(Layer.THREAD, 3.0)
    metrics.shortened(500, 300)
    metrics.shortened(301, 300)
    value = registry.get_sample_value
    assert value("outrider_tokenization_ms_sum", {"layer": "thread"}) == 10.0
    assert value("outrider_tokenization_ms_count", {"layer": "cache"}) == 1
    assert value("outrider_tokenization_shortened_chats_total") == 2
    assert value("outrider_tokenization_left_out_tokens_total") == 201
    metrics.close()
    assert not list(registry.collect()), "another front may count in the same registry"
