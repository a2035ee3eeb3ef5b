"""The prefix store of a replica, from its settings."""

from __future__ import annotations

import importlib.util

import structlog

from outrider.engines.base import EngineInfo
from outrider.redis_settings import RedisAddress, needs_client, sealing_key, secret
from outrider.telemetry.metrics import Metrics
from services.inference.config import PrefixStoreConfig
from services.inference.prefix_store.exchange import KvBlocks, KvIdentity, PrefixExchange
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import RedisStore, connect

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
    key = sealing_key(config.key, config.key_file, "prefix_store.key")
    if info.kv_layout is None or not info.exact or not info.fingerprint:
        _log.warning("prefix_store_unused", engine=info.name, why="its KV is its own")
        return None
    if importlib.util.find_spec("redis") is None:
        raise needs_client("prefix_store.url")
    password = secret(config.password, config.password_file, "prefix_store.password")
    address = RedisAddress(config.url, config.user, password, config.ca)
    timeout_s = config.timeout_ms / 1e3
    client = connect(address, timeout_s, is_cluster=config.cluster)
    store = RedisStore(client, timeout_s=timeout_s, ttl_s=config.ttl_s)
    return PrefixExchange(
        store,
        Sealer(key, identity),
        KvIdentity(info.kv_layout, info.fingerprint, vocabulary_digest),
        model,
        metrics,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
    )
