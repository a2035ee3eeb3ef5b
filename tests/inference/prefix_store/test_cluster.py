"""A Redis Cluster of three nodes: prefixes lie on all of them, and one that dies costs nothing but
what it had."""

from __future__ import annotations

from pathlib import Path

import redis

from outrider.circuit_breaker import CircuitBreakerPolicy
from outrider.redis_settings import RedisAddress
from services.inference.prefix_store.sealing import RUN_BLOCKS, Sealer
from services.inference.prefix_store.store import RedisStore, connect
from tests.redis_server import redis_cluster

NUM_PREFIXES = 12


def names_of(prefix: int) -> list[bytes]:
    hashes = [bytes([prefix, index]) * 8 for index in range(RUN_BLOCKS)]
    return Sealer("k" * 32, b"identity").names(hashes)


async def test_prefixes_are_spread_and_each_is_asked_for_at_once(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as nodes:
        client = connect(RedisAddress(nodes[0].url), 20.0, is_cluster=True)
        breaker = CircuitBreakerPolicy(first_pause_s=0.0)
        store = RedisStore(client, timeout_s=20.0, ttl_s=100, max_value_bytes=100, breaker=breaker)
        prefixes = [names_of(prefix) for prefix in range(NUM_PREFIXES)]
        for names in prefixes:
            assert await store.put([(name, name[-4:]) for name in names])
            assert await store.present(names) == [True] * RUN_BLOCKS
        # Prompts of several runs, and what is not there.
        asked = [*prefixes[0], *prefixes[1], b"nothing"]
        assert await store.fetch(asked) == [*(name[-4:] for name in asked[:-1]), None]
        sizes = []
        for node in nodes:
            with redis.Redis(port=node.port) as direct:
                sizes.append(int(direct.dbsize()))
                held = set(direct.keys())
                assert all(held >= set(it) or not held & set(it) for it in prefixes)
        assert sum(sizes) == NUM_PREFIXES * RUN_BLOCKS and all(sizes)
        assert store.num_failures == 0

        nodes[2].kill()
        answers = [await store.fetch(names) for names in prefixes]
        assert {len(answer) for answer in answers if answer is not None} == {RUN_BLOCKS}
        assert None in answers
        assert store.num_failures > 0
        await store.close()
