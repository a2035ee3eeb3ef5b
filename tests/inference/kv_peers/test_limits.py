"""What is served and kept for other replicas, filled."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from outrider.errors import OverloadedError
from outrider.telemetry.metrics import Metrics
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.kv_peers.fetching import MAX_PEERS, KvPeers
from services.inference.kv_peers.serving_limits import ServingLimits
from services.inference.scheduler.types import KvHolder


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


async def test_connections_to_other_replicas_are_bounded() -> None:
    metrics = Metrics("test")
    peers = KvPeers(KvPeersConfig(timeout_ms=5000.0), b"i", b"v", 100, metrics)
    for number in range(MAX_PEERS + 3):
        # Nobody listens there.
        holder = KvHolder("r", "", f"127.0.0.{number + 1}:1", 100)
        assert [block async for block in peers.fetch(holder, [b"h" * 16])] == []
    assert len(peers) == MAX_PEERS and peers.num_failures == MAX_PEERS + 3
    await peers.close()
    metrics.close()


async def test_an_address_that_is_refused_takes_no_other_ones_place() -> None:
    metrics = Metrics("test")
    peers = KvPeers(KvPeersConfig(timeout_ms=5000.0), b"i", b"v", 100, metrics)
    for number in range(MAX_PEERS):
        holder = KvHolder("r", "", f"127.0.0.{number + 1}:1", 100)
        assert [block async for block in peers.fetch(holder, [b"h" * 16])] == []
    known = list(peers._peers)
    holder = KvHolder("r", "", "192.0.2.1:7300", 100)
    assert [block async for block in peers.fetch(holder, [b"h" * 16])] == []
    assert list(peers._peers) == known
    await peers.close()
    metrics.close()


async def test_addresses_beyond_this_machine_are_not_called_without_certificates() -> None:
    metrics = Metrics("test")
    peers = KvPeers(KvPeersConfig(), b"i", b"v", 100, metrics)
    holder = KvHolder("r", "", "192.0.2.1:7300", 100)
    assert [block async for block in peers.fetch(holder, [b"h" * 16])] == []
    assert len(peers) == 0
    await peers.close()
    metrics.close()
