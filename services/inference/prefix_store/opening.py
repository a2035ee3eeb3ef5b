"""The prefix store of a replica, from its settings."""

from __future__ import annotations

import importlib.util
from typing import Final

from outrider.codec.kv import max_frame_bytes
from outrider.model_identity import inexact_identity
from outrider.redis_settings import needs_client
from outrider.sealing import SEAL_BYTES
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from services.inference.kv_tiers.blocks import BlockLoader
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.prefix_store.sealing import Sealer
from services.inference.prefix_store.store import RedisStore, connect
from services.inference.prefix_store.tier import PrefixStoreTier

STORE_UP: Final = Family(
    "outrider_kv_store_up",
    "1 while the prefix store is asked, 0 while it is left alone because it does not answer.",
)


def open_prefix_store(
    config: PrefixStoreConfig, model_identity: bytes, loader: BlockLoader, metrics: Metrics
) -> PrefixStoreTier:
    """Raises ConfigError for settings that cannot be right, and if the Redis client is not
    installed."""
    key = config.sealing_key()
    if importlib.util.find_spec("redis") is None:
        raise needs_client("prefix_store.url")
    timeout_s = config.timeout_ms / 1e3
    up = metrics.gauge(STORE_UP)
    up.set(1)
    store = RedisStore(
        connect(config.address(), timeout_s, is_cluster=config.cluster),
        timeout_s=timeout_s,
        ttl_s=config.ttl_s,
        max_value_bytes=max_frame_bytes(loader.identity.layout) + SEAL_BYTES,
        on_asked=up.set,
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
