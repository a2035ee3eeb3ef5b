"""Prometheus metrics of tokenization: tiers, caches, backends."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outrider.telemetry import names
from outrider.telemetry.process import OTHER
from outrider.tokenization.encoder import CachingEncoder
from outrider.tokenization.pool.pool import Tier
from outrider.tokenization.segment_cache import ContentClass

IN_LOOP: Final = "tokenization_in_loop"
IN_THREADS: Final = "tokenization_in_threads"
_LOOKUP_FIELDS: Final = {
    names.TOKENIZATION_TEXTS: "num_texts",
    names.TOKENIZATION_HITS: "num_hits",
    names.TOKENIZATION_CHARS: "num_chars",
    names.TOKENIZATION_HIT_CHARS: "num_hit_chars",
}


class ModelEncoder(NamedTuple):
    """A loaded model, and what tokenizes for it."""

    model: str
    encoder: CachingEncoder
    num_processes: int = 0
    """Other processes that do so while the threads are busy."""


_LOOP_TIERS: Final = frozenset({Tier.CACHE, Tier.INLINE, Tier.FALLBACK})


class TokenizationMetrics(Collector):
    """Times every chat by tier. Caches, backends and shadow checks of all models are read when
    Prometheus scrapes."""

    def __init__(
        self, registry: CollectorRegistry, encoders: Callable[[], Sequence[ModelEncoder]]
    ) -> None:
        """`encoders` gives those in use, which may change."""
        self._encoders = encoders
        self._retired: Counts[tuple[str, str]] = Counts()
        """By content and field, what encoders had counted that are given up: counters never go
        back."""
        self._took = Histogram(
            names.TOKENIZATION,
            names.TOKENIZATION.help,
            ["tier"],
            buckets=names.TOKENIZATION_BOUNDARIES_S,
            registry=registry,
        )
        self._took_by_tier = {tier: self._took.labels(tier) for tier in Tier}
        self._shortened = Counter(
            names.TOKENIZATION_SHORTENED, names.TOKENIZATION_SHORTENED.help, registry=registry
        )
        self._omitted = Counter(
            names.TOKENIZATION_OMITTED, names.TOKENIZATION_OMITTED.help, registry=registry
        )
        self._ended_at = {IN_LOOP: 0.0, IN_THREADS: 0.0}
        registry.register(self)
        self._registry: CollectorRegistry | None = registry

    def close(self) -> None:
        """Unregister, so that another instance may use the registry. May be called twice."""
        registry, self._registry = self._registry, None
        if registry is not None:
            for collector in (self._took, self._shortened, self._omitted, self):
                registry.unregister(collector)

    def retire(self, encoder: CachingEncoder) -> None:
        """An encoder is given up; call it once `encoders` leaves it out."""
        for content in ContentClass:
            for field in _LOOKUP_FIELDS.values():
                self._retired[content, field] += getattr(encoder.lookups[content], field)
        checks = encoder.backend.checks
        self._retired["", "num_checked"] += checks.num_checked
        self._retired["", "num_mismatches"] += checks.num_mismatches + checks.num_failures

    def record(self, tier: Tier, ms: float) -> None:
        """A chat was tokenized in `tier`, `ms` milliseconds after it was submitted; called from
        any thread."""
        self._took_by_tier[tier].observe(ms / 1e3)
        self._ended_at[IN_LOOP if tier in _LOOP_TIERS else IN_THREADS] = time.monotonic()

    def shortened(self, before: int, after: int) -> None:
        """A chat was shortened from `before` to `after` tokens; called from any thread."""
        self._shortened.inc()
        self._omitted.inc(before - after)

    def cause(self, since: float) -> str:
        """The tier that tokenized chats since `since` (seconds of time.monotonic), as a cause of
        event loop stalls; OTHER if none did."""
        found = (place for place, ended_at in self._ended_at.items() if ended_at >= since)
        return next(found, OTHER)

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        by_model = self._encoders()
        encoders = [it.encoder for it in by_model]
        yield from self._cache(encoders)
        in_use = GaugeMetricFamily(
            names.TOKENIZATION_BACKEND,
            names.TOKENIZATION_BACKEND.help,
            labels=["model", "backend", "reason", "processes"],
        )
        backends = [encoder.backend for encoder in encoders]
        rows = {_row(it) for it in by_model}
        for row in sorted(rows):
            in_use.add_metric(row, 1)
        yield in_use
        checks = [backend.checks for backend in backends]
        retired = self._retired
        num_checked = sum(one.num_checked for one in checks)
        num_checked += retired["", "num_checked"]
        yield CounterMetricFamily(
            names.TOKENIZATION_CHECKED, names.TOKENIZATION_CHECKED.help, num_checked
        )
        num_mismatches = sum(one.num_mismatches + one.num_failures for one in checks)
        num_mismatches += retired["", "num_mismatches"]
        yield CounterMetricFamily(
            names.TOKENIZATION_MISMATCHES, names.TOKENIZATION_MISMATCHES.help, num_mismatches
        )

    def _cache(self, encoders: Sequence[CachingEncoder]) -> Iterator[Metric]:
        sizes = [encoder.size for encoder in encoders]
        num_entries = sum(size[0] for size in sizes)
        num_bytes = sum(size[1] for size in sizes)
        yield GaugeMetricFamily(
            names.TOKENIZATION_CACHE_ENTRIES, names.TOKENIZATION_CACHE_ENTRIES.help, num_entries
        )
        yield GaugeMetricFamily(
            names.TOKENIZATION_CACHE_BYTES, names.TOKENIZATION_CACHE_BYTES.help, num_bytes
        )
        for name, field in _LOOKUP_FIELDS.items():
            family = CounterMetricFamily(name, name.help, labels=["content"])
            for content in ContentClass:
                found = sum(getattr(e.lookups[content], field) for e in encoders)
                family.add_metric([content], found + self._retired[content, field])
            yield family


def _row(it: ModelEncoder) -> tuple[str, str, str, str]:
    backend = it.encoder.backend
    return it.model, backend.name, backend.reason, str(it.num_processes)
