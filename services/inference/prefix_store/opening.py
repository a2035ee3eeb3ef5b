"""The prefix store of a replica and the other replicas that it may ask, from its settings."""

from __future__ import annotations

import importlib.util

import structlog

from outrider.codec.kv import max_frame_bytes
from outrider.engines.base import EngineInfo
from outrider.redis_settings import RedisAddress, needs_client, sealing_key, secret
from outrider.telemetry.metrics import Metrics
from services.inference.config import PrefixStoreConfig
from services.inference.kv_peers.fetching import KvPeers
from services.inference.prefix_store.exchange import KvBlocks, KvIdentity, PrefixExchange
from services.inference.prefix_store.sealing import SEAL_BYTES, Sealer
from services.inference.prefix_store.store import RedisStore, connect

_log = structlog.get_logger()


def kv_identity(info: EngineInfo, vocabulary_digest: bytes) -> KvIdentity | None:
    """Whose KV the engine computes; None for one whose KV cannot go anywhere."""
    if info.kv_layout is None or not info.exact or not info.fingerprint:
        return None
    return KvIdentity(info.kv_layout, info.fingerprint, vocabulary_digest)


def open_exchange(
    config: PrefixStoreConfig,
    engine: str,
    kv: KvIdentity | None,
    identity: bytes,
    model: KvBlocks,
    metrics: Metrics,
    peers: KvPeers | None = None,
) -> PrefixExchange | None:
    """None with neither prefix_store.url nor `peers`, and where the KV cannot go anywhere
    (`kv_identity`). Raises ConfigError for settings that cannot be right, and if the Redis client
    is not installed."""
    if not config.url and peers is None:
        return None
    if config.url and kv is None:
        _log.warning("prefix_store_unused", engine=engine, why="its KV is its own")
    if kv is None:
        return None
    store, sealer = _open_store(config, kv, identity) if config.url else (None, None)
    return PrefixExchange(
        store,
        sealer,
        kv,
        model,
        metrics,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
        ttl_s=config.ttl_s,
        peers=peers,
    )


def _open_store(
    config: PrefixStoreConfig, kv: KvIdentity, identity: bytes
) -> tuple[RedisStore, Sealer]:
    key = sealing_key(config.key, config.key_file, "prefix_store.key")
    if importlib.util.find_spec("redis") is None:
        raise needs_client("prefix_store.url")
    password = secret(config.password, config.password_file, "prefix_store.password")
    address = RedisAddress(config.url, config.user, password, config.ca)
    timeout_s = config.timeout_ms / 1e3
    client = connect(address, timeout_s, is_cluster=config.cluster)
    max_value_bytes = max_frame_bytes(kv.layout) + SEAL_BYTES
    store = RedisStore(
        client, timeout_s=timeout_s, ttl_s=config.ttl_s, max_value_bytes=max_value_bytes
    )
    return store, Sealer(key, identity)
