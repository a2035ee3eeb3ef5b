"""What is served and kept for other replicas, filled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from outrider.errors import OverloadedError
from outrider.telemetry.metrics import Metrics
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.fetching import MAX_PEERS, KvPeers
from services.inference.kv_peers.serving_limits import ServingLimits
from services.inference.scheduler.types import KvHolder
from tests.inference.kv_tiers.stubs import loader_to


def test_requests_beyond_the_limits_are_refused() -> None:
    limits = ServingLimits(KvPeersConfig(max_streams=5, max_streams_per_peer=2), 100)
    with ExitStack() as served:
        for host in ("a", "a", "b", "b"):
            served.enter_context(limits.serving(host))
        for host in ("a", "b"):
            with pytest.raises(OverloadedError, match="this host"), limits.serving(host):
                pass
        served.enter_context(limits.serving("c"))
        with pytest.raises(OverloadedError, match="5 requests"), limits.serving("d"):
            pass
    assert limits.num_streams == 0
    with limits.serving("a"):
        assert limits.num_streams == 1


@pytest.mark.parametrize(("block_bytes", "expected"), [(1, 4), (10, 4), (20, 1), (1000, 1)])
def test_what_is_copied_for_one_host_is_bounded(block_bytes: int, expected: int) -> None:
    config = KvPeersConfig(max_streams_per_peer=2, max_held_bytes=100)
    assert ServingLimits(config, block_bytes).turn_blocks == expected


@asynccontextmanager
async def peers_of(**settings: Any) -> AsyncIterator[KvPeers]:
    metrics = Metrics("test")
    peers = KvPeers(KvPeersConfig(**settings), b"i", loader_to(), metrics)
    yield peers
    await peers.close()
    metrics.close()


async def asked(peers: KvPeers, address: str) -> None:
    """Whoever is there has nothing."""
    holder = KvHolder("r", "", address, 100)
    assert [block async for block in peers.frames(holder, [b"h" * 16])] == []


async def test_connections_to_other_replicas_are_bounded() -> None:
    async with peers_of(timeout_ms=5000.0) as peers:
        for number in range(MAX_PEERS + 3):
            await asked(peers, f"127.0.0.{number + 1}:1")  # nobody listens there
        assert len(peers) == MAX_PEERS and peers.counts.num_failures == MAX_PEERS + 3


async def test_an_address_that_is_refused_takes_no_other_ones_place() -> None:
    """One beyond this machine, without certificates."""
    async with peers_of(timeout_ms=5000.0) as peers:
        for number in range(MAX_PEERS):
            await asked(peers, f"127.0.0.{number + 1}:1")
        known = [name for name, _ in peers._peers.items()]
        await asked(peers, "192.0.2.1:7300")
        assert [name for name, _ in peers._peers.items()] == known
        assert peers.counts.num_failures == MAX_PEERS, "it was not called"
