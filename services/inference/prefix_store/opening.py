"""The prefix store of a replica, from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from outrider.engines.base import EngineInfo
from outrider.errors import ConfigError
from outrider.telemetry.metrics import Metrics
from services.inference.config import PrefixStoreConfig
from services.inference.prefix_store.exchange import KvBlocks, KvIdentity, PrefixExchange
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import RedisStore, connect

MIN_KEY_CHARS: Final = 32
"""Whoever can read the Redis can try keys offline, without limit."""

_log = structlog.get_logger()


def open_exchange(
    config: PrefixStoreConfig,
    info: EngineInfo,
    identity: bytes,
    vocabulary_digest: bytes,
    model: KvBlocks,
    metrics: Metrics,
) -> PrefixExchange | None:
    """None without prefix_store.url, and with an engine whose KV cannot go anywhere. Raises
    ConfigError for settings that cannot be right, and if the Redis client is not installed."""
    if not config.url:
        return None
    key = _secret(config.key, config.key_file, "prefix_store.key")
    if len(key) < MIN_KEY_CHARS:
        raise ConfigError(
            f"prefix_store.key has {len(key)} characters: make one of {MIN_KEY_CHARS} or more, for "
            "example with `openssl rand -hex 32`"
        )
    if info.kv_layout is None or not info.exact or not info.fingerprint:
        _log.warning("prefix_store_unused", engine=info.name, why="its KV is its own")
        return None
    try:
        from outrider.tokenization.shared_cache.redis_cache import RedisAddress
    except ImportError as error:
        raise ConfigError(
            "prefix_store.url needs the Redis client: pip install 'outrider[redis]'"
        ) from error
    password = _secret(config.password, config.password_file, "prefix_store.password")
    address = RedisAddress(config.url, config.user, password, config.ca)
    timeout_s = config.timeout_ms / 1e3
    store = RedisStore(connect(address, timeout_s), timeout_s=timeout_s, ttl_s=config.ttl_s)
    return PrefixExchange(
        store,
        Sealer(key, identity),
        KvIdentity(info.kv_layout, info.fingerprint, vocabulary_digest),
        model,
        metrics,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
    )


def _secret(value: str, file: Path | None, name: str) -> str:
    if file is None:
        return value
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}_file cannot be read: {error}") from error
