"""An edge before a scripted region, as most tests of the edge have it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient

from outrider.client import Client
from outrider.client.connection import ClientConnection
from outrider.models.vocabulary import Vocabulary
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.nat import Nat, nat
from tests.edge.integration.region import small_vocabulary
from tests.edge.integration.running import Running, running, settings_of
from tests.edge.integration.trouble import raw


@pytest.fixture(scope="session")
def words() -> Vocabulary:
    """One token per byte."""
    return small_vocabulary()


@pytest.fixture
async def mesh(
    request: pytest.FixtureRequest, words: Vocabulary, tmp_path: Path
) -> AsyncIterator[Running]:
    """With the settings that the marker `edge` tells. Of chats and sessions nothing may be left."""
    settings: dict[str, Any] = {"vocabulary": words} | settings_of(request)
    start = serving_http if "http" in settings else running
    async with start(settings.pop("vocabulary"), tmp_path, **settings) as mesh:
        yield mesh


@pytest.fixture
async def client(mesh: Running) -> AsyncIterator[Client]:
    """One of the native protocol. Its chats leave nothing, though it stays."""
    async with mesh.client() as client:
        yield client
        await mesh.settled()


@pytest.fixture
async def connection(mesh: Running) -> AsyncIterator[ClientConnection]:
    """One of the native protocol, without what a client checks."""
    async with raw(mesh) as connection:
        yield connection


@pytest.fixture
async def caller(mesh: Running) -> AsyncIterator[AsyncClient]:
    """One of HTTP, with a tenant's key."""
    async with plain(mesh) as client:
        yield client
        await mesh.settled()


@pytest.fixture
async def relay(mesh: Running) -> AsyncIterator[Nat]:
    """A way to the edge that loses datagrams and changes its port when it is told to."""
    async with nat(mesh) as relay:
        yield relay
