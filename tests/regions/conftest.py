"""Meshes over hosts. The tests of a module share one, and each leaves it whole. `make cluster-test`
runs them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

from bench.chaos.redis import Redis, url_of
from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.regions.hosts import Hosts
from bench.regions.mesh import (
    BOUND_TENANT,
    NEAR,
    SECOND_SITE,
    SITE,
    TENANT,
    Further,
    RegionalMesh,
    running,
)
from outrider.cli.local.redis_server import find_binary

NUM_TOKENS = 60
CALL_MS = 200.0
"""Long enough for a reply to be under way while something happens."""
REDIS: Final = "redis"
"""Host of the Redis."""
TIMEOUT_MS: Final = 5000.0
"""Longest wait of edges for it: far above what a busy machine takes, so that what is waited for too
often shows."""
TOKENIZERS_TIMEOUT_MS: Final = 500.0
"""Theirs: they answer within a time, of which this is to be the smaller part."""
_WINDOW_S: Final = 300.0
"""How long replies are kept: longer than a busy machine takes to start an edge."""


@pytest.fixture(scope="session")
def references() -> list[ReferenceChat]:
    return make_reference_chats("fake", NUM_TOKENS)


@pytest.fixture(scope="session")
def short() -> list[ReferenceChat]:
    """Replies that are soon whole."""
    return make_reference_chats("fake", 8)


class SharingMesh(NamedTuple):
    """A mesh whose two edges have a host each, and share a Redis on a third one, which is that of
    the tokenizers and replicas, too."""

    mesh: RegionalMesh
    redis: Redis


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mesh(request: pytest.FixtureRequest) -> AsyncIterator[RegionalMesh]:
    async with running(CALL_MS) as mesh:
        yield mesh
        keep_logs(mesh, request)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sharing(request: pytest.FixtureRequest) -> AsyncIterator[SharingMesh]:
    edge_hosts = (SITE, SECOND_SITE)
    async with running(CALL_MS, settings, edge_hosts=edge_hosts, more_hosts=(REDIS,)) as mesh:
        log = mesh.made.folder / "redis.log"
        redis = Redis(mesh.hosts[REDIS], find_binary(), log, is_for_all_hosts=True)
        redis.start()
        try:
            yield SharingMesh(mesh, redis)
        finally:
            redis.kill()
            keep_logs(mesh, request)


def keep_logs(mesh: RegionalMesh, request: pytest.FixtureRequest) -> None:
    """If a test failed."""
    if request.session.testsfailed:
        mesh.made.files.failed = "a test failed"


def settings(hosts: Hosts) -> Further:
    """What services have besides those of bench.regions: all that a Redis is for."""
    url = url_of(hosts[REDIS].address)
    secret = secrets.token_hex(32)
    sealed = {"url": url, "key": secret}
    return {
        "edge": {
            "cache_salt_key": secrets.token_hex(32),
            "resumption": {"window_s": _WINDOW_S},
            "shared_replies": {**sealed, "timeout_ms": TIMEOUT_MS},
            "shared_limits": {"url": url, "timeout_ms": TIMEOUT_MS},
            # With a limit, so that each chat asks the Redis for its place.
            "tenants": (
                {"name": TENANT, "max_sessions": 10_000},
                {"name": BOUND_TENANT, "regions": (NEAR,)},
            ),
        },
        "tokenizer": {
            "shared_cache": {**sealed, "min_chars": 64, "timeout_ms": TOKENIZERS_TIMEOUT_MS}
        },
        "inference": {"prefix_store": {**sealed, "min_tokens": 32}},
    }
