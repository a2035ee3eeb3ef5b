"""The Redis cache that tokenizers may share: built from settings, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outrider.models.vocabulary import Vocabulary
from outrider.redis_settings import needs_client
from outrider.telemetry import names
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import Fastokens
from outrider.tokenization.encoder import SharedCache
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.vocabularies import MakeSharedCache

if TYPE_CHECKING:
    from outrider.tokenization.shared_cache.redis_cache import RedisStore

_MIN_CHARS: Final = {REFERENCE: 1024, Fastokens.name: 8192}
"""Length from which a lookup is faster than encoding, by backend (`python -m bench.tokenizer`)."""
_NEVER: Final = 1 << 30
"""For splintr-rs, which encodes 64 KB faster than they are looked up."""


@contextmanager
def shared_cache(
    config: TokenizerConfig, registry: CollectorRegistry
) -> Iterator[MakeSharedCache | None]:
    """None without `shared_cache.url`. Raises ConfigError for an invalid URL or secret, and if the
    Redis client is not installed."""
    if not config.shared_cache.url:
        yield None
        return
    key = config.shared_cache.sealing_key()
    store = _open_store(config)
    collector = _SharedCacheMetrics(store)
    registry.register(collector)
    try:
        yield lambda vocabulary, backend: _cache_of(config, key, store, vocabulary, backend)
    finally:
        registry.unregister(collector)
        store.close()


def _open_store(config: TokenizerConfig) -> RedisStore:
    try:
        from outrider.tokenization.shared_cache.redis_cache import (
            RedisStore,
            SharedCachePolicy,
            connect,
        )
    except ImportError as error:
        raise needs_client("shared_cache.url") from error
    # One connection for each thread that tokenizes, and one for the writer.
    timeout_s, num_connections = config.shared_cache.timeout_ms / 1e3, config.threads + 1
    client = connect(config.shared_cache.address(), timeout_s, num_connections)
    return RedisStore(client, SharedCachePolicy(ttl_s=config.shared_cache.ttl_s))


def _cache_of(
    config: TokenizerConfig,
    key: str,
    store: RedisStore,
    vocabulary: Vocabulary,
    backend: FallbackBackend,
) -> SharedCache:
    from outrider.tokenization.shared_cache.entries import Entries
    from outrider.tokenization.shared_cache.redis_cache import RedisTokenCache

    min_chars = config.shared_cache.min_chars or _MIN_CHARS.get(backend.name, _NEVER)
    entries = Entries(key, vocabulary.digest, vocabulary.size)
    return RedisTokenCache(store, entries, min_chars=min_chars)


class _SharedCacheMetrics(Collector):
    """Reads the store's statistics when Prometheus scrapes."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        stats = self._store.stats
        texts = CounterMetricFamily(
            names.SHARED_CACHE_TEXTS,
            names.SHARED_CACHE_TEXTS.help,
            labels=["outcome"],
        )
        for outcome in ("asked", "found", "skipped", "damaged", "written", "dropped"):
            texts.add_metric([outcome], getattr(stats, f"num_{outcome}"))
        yield texts
        yield CounterMetricFamily(
            names.SHARED_CACHE_FAILURES,
            names.SHARED_CACHE_FAILURES.help,
            stats.num_failures,
        )
        is_up = 0 if stats.is_open else 1
        yield GaugeMetricFamily(
            names.SHARED_CACHE_UP,
            names.SHARED_CACHE_UP.help,
            is_up,
        )
