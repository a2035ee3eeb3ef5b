"""The prefix store of a replica, from its settings."""

from __future__ import annotations

import importlib.util

from outrider.codec.kv import max_frame_bytes
from outrider.model_identity import inexact_identity
from outrider.redis_settings import RedisAddress, needs_client, sealing_key, secret
from outrider.sealing import SEAL_BYTES
from outrider.telemetry.metrics import Metrics
from services.inference.kv_tiers.blocks import BlockLoader
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import RedisStore, connect
from services.inference.prefix_store.tier import PrefixStoreTier


def open_prefix_store(
    config: PrefixStoreConfig, model_identity: bytes, loader: BlockLoader, metrics: Metrics
) -> PrefixStoreTier:
    """Raises ConfigError for settings that cannot be right, and if the Redis client is not
    installed."""
    key = sealing_key(config.key, config.key_file, "prefix_store.key")
    if importlib.util.find_spec("redis") is None:
        raise needs_client("prefix_store.url")
    password = secret(config.password, config.password_file, "prefix_store.password")
    address = RedisAddress(config.url, config.user, password, config.ca)
    timeout_s = config.timeout_ms / 1e3
    store = RedisStore(
        connect(address, timeout_s, is_cluster=config.cluster),
        timeout_s=timeout_s,
        ttl_s=config.ttl_s,
        max_value_bytes=max_frame_bytes(loader.identity.layout) + SEAL_BYTES,
    )
    return PrefixStoreTier(
        store,
        Sealer(key, model_identity),
        Sealer(key, inexact_identity(model_identity)),
        loader,
        metrics,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
        ttl_s=config.ttl_s,
    )
