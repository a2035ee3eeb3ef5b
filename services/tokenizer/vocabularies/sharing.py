"""The Redis that tokenizers may share: from settings to caches, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outrider.errors import ConfigError
from outrider.models.vocabulary import Vocabulary
from outrider.telemetry import names
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import Fastokens
from outrider.tokenization.encoder import SharedCache
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.vocabularies.served import Share

if TYPE_CHECKING:
    from outrider.tokenization.shared_cache.redis_cache import Line

MIN_KEY_CHARS: Final = 32
"""Whoever reads the Redis may try keys as long as they like."""
_MIN_CHARS: Final = {REFERENCE: 1024, Fastokens.name: 8192}
"""A shorter text is encoded in less time than a question takes (`python -m bench.tokenizer`)."""
_NEVER: Final = 1 << 30
"""Any text is: splintr-rs encodes 64 KB in less time than they are found."""


@contextmanager
def shared_tokens(config: TokenizerConfig, registry: CollectorRegistry) -> Iterator[Share | None]:
    """None if nothing is to be shared. Raises ConfigError for a URL that is none, for secrets that
    are none, and if the client is not installed."""
    if not config.shared_cache:
        yield None
        return
    key = _secret(config.shared_cache_key, config.shared_cache_key_file, "shared_cache_key")
    if len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"shared_cache_key has {len(key)} characters: make one of {MIN_KEY_CHARS} or more, for "
            "example with `openssl rand -hex 32`."
        )
    line = _line(config)
    figures = _Figures(line)
    registry.register(figures)
    try:
        yield lambda vocabulary, backend: _tokens(config, key, line, vocabulary, backend)
    finally:
        registry.unregister(figures)
        line.close()


def _line(config: TokenizerConfig) -> Line:
    try:
        from outrider.tokenization.shared_cache.redis_cache import (
            Line,
            RedisAddress,
            SharedCachePolicy,
            connect,
        )
    except ImportError as error:
        raise ConfigError(
            "shared_cache needs the Redis client: pip install 'outrider[redis]'."
        ) from error
    address = RedisAddress(
        config.shared_cache,
        config.shared_cache_user,
        _secret(
            config.shared_cache_password,
            config.shared_cache_password_file,
            "shared_cache_password",
        ),
        config.shared_cache_ca,
    )
    try:
        # Each thread that tokenizes may ask at once, and one writes.
        client = connect(address, config.shared_cache_timeout_ms / 1e3, config.threads + 1)
    except ValueError as error:
        # Without the URL, nor what was wrong with it in Redis' words: it may hold a password.
        raise ConfigError(f"shared_cache cannot be used: {error}.") from None
    return Line(client, SharedCachePolicy(ttl_s=config.shared_cache_ttl_s))


def _secret(value: str, file: Path | None, where: str) -> str:
    """As it is set, or in its file. Raises ConfigError."""
    if file is None:
        return value
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}_file {file} cannot be read: {type(error).__name__}.") from None


def _tokens(
    config: TokenizerConfig, key: str, line: Line, vocabulary: Vocabulary, backend: FallbackBackend
) -> SharedCache:
    from outrider.tokenization.shared_cache.entries import Entries
    from outrider.tokenization.shared_cache.redis_cache import RedisTokenCache

    min_chars = config.shared_cache_min_chars or _MIN_CHARS.get(backend.name, _NEVER)
    entries = Entries(key, vocabulary.digest, vocabulary.size)
    return RedisTokenCache(line, entries, min_chars=min_chars)


class _Figures(Collector):
    """What came of asking, read when a scrape asks."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def collect(self) -> Iterator[Metric]:
        """What a scrape sees."""
        figures = self._line.figures
        texts = CounterMetricFamily(
            names.SHARED_CACHE_TEXTS, "texts by what came of them", labels=["outcome"]
        )
        for outcome in ("asked", "found", "skipped", "damaged", "written", "dropped"):
            texts.add_metric([outcome], getattr(figures, f"num_{outcome}"))
        yield texts
        yield CounterMetricFamily(
            names.SHARED_CACHE_FAILURES,
            "questions that failed or took too long",
            figures.num_failures,
        )
        is_up = 0 if figures.is_open else 1
        yield GaugeMetricFamily(names.SHARED_CACHE_UP, "whether it is asked at all", is_up)
