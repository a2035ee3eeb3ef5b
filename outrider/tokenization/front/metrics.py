"""What the front counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outrider.telemetry import names
from outrider.telemetry.process import OTHER
from outrider.tokenization.front.content import Content
from outrider.tokenization.front.encoder import CachingEncoder
from outrider.tokenization.front.job import Layer

IN_LOOP: Final = "tokenization_in_loop"
IN_THREADS: Final = "tokenization_in_threads"
_LOOP_LAYERS: Final = frozenset({Layer.CACHE, Layer.INLINE, Layer.LOCAL})


class FrontMetrics(Collector):
    """Times every chat by layer; caches, backends and canaries of all models are read when a
    scrape asks."""

    def __init__(self, registry: CollectorRegistry, encoders: Sequence[CachingEncoder]) -> None:
        self._encoders = encoders
        self._ms = Histogram(
            names.TOKENIZATION_MS,
            "from a chat's submission to its ids",
            ["layer"],
            buckets=names.TOKENIZATION_MS_BOUNDARIES,
            registry=registry,
        )
        self._layers = {layer: self._ms.labels(layer) for layer in Layer}
        self._shortened = Counter(
            names.TOKENIZATION_SHORTENED, "chats made shorter to fit", registry=registry
        )
        self._left_out = Counter(
            names.TOKENIZATION_LEFT_OUT, "tokens by which they were made shorter", registry=registry
        )
        self._ended_at = {IN_LOOP: 0.0, IN_THREADS: 0.0}
        registry.register(self)
        self._registry: CollectorRegistry | None = registry

    def close(self) -> None:
        """Another front may count in the same registry from now on. May be called twice."""
        registry, self._registry = self._registry, None
        if registry is not None:
            for collector in (self._ms, self._shortened, self._left_out, self):
                registry.unregister(collector)

    def record(self, layer: Layer, ms: float) -> None:
        """A chat was tokenized there; from any thread."""
        self._layers[layer].observe(ms)
        self._ended_at[IN_LOOP if layer in _LOOP_LAYERS else IN_THREADS] = time.monotonic()

    def shortened(self, before: int, after: int) -> None:
        """A chat of so many tokens was made one of so many; from any thread."""
        self._shortened.inc()
        self._left_out.inc(before - after)

    def cause(self, since: float) -> str:
        """Whether chats were tokenized since then (the loop's clock, time.monotonic), and where."""
        found = (place for place, ended_at in self._ended_at.items() if ended_at >= since)
        return next(found, OTHER)

    def collect(self) -> Iterator[Metric]:
        """What a scrape sees."""
        yield from self._cache()
        in_use = GaugeMetricFamily(
            names.TOKENIZATION_BACKEND, "the backends in use, and why", labels=["backend", "why"]
        )
        backends = [encoder.backend for encoder in self._encoders]
        for name, why in sorted({(backend.name, backend.why) for backend in backends}):
            in_use.add_metric([name, why], 1)
        yield in_use
        canaries = [backend.canary for backend in backends]
        num_checked = sum(canary.num_checked for canary in canaries)
        yield CounterMetricFamily(
            names.TOKENIZATION_CHECKED, "texts encoded by the reference too", num_checked
        )
        differences = sum(canary.num_differences + canary.num_failures for canary in canaries)
        yield CounterMetricFamily(
            names.TOKENIZATION_DIFFERENCES, "texts the fast backend failed on", differences
        )

    def _cache(self) -> Iterator[Metric]:
        sizes = [encoder.size for encoder in self._encoders]
        num_entries, num_bytes = (sum(column) for column in zip(*sizes, strict=True))
        yield GaugeMetricFamily(names.TOKENIZATION_CACHE_ENTRIES, "texts kept", num_entries)
        yield GaugeMetricFamily(names.TOKENIZATION_CACHE_BYTES, "memory of texts kept", num_bytes)
        fields = {
            names.TOKENIZATION_TEXTS: "num_texts",
            names.TOKENIZATION_HITS: "num_hits",
            names.TOKENIZATION_CHARS: "num_chars",
            names.TOKENIZATION_HIT_CHARS: "num_hit_chars",
        }
        for name, field in fields.items():
            family = CounterMetricFamily(name, f"{field} of lookups", labels=["content"])
            for content in Content:
                found = sum(getattr(e.lookups[content], field) for e in self._encoders)
                family.add_metric([content], found)
            yield family
