"""An edge that serves a small application over HTTP/3, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.models.vocabulary import Vocabulary
from tests.edge.http3.client import H3Client
from tests.edge.http3.lab import Lab, client_of, serving
from tests.edge.integration.running import Running, settings_of


@pytest.fixture
def lab() -> Lab:
    """What is served."""
    return Lab()


@pytest.fixture
async def mesh(
    request: pytest.FixtureRequest, words: Vocabulary, tmp_path: Path, lab: Lab
) -> AsyncIterator[Running]:
    """The edge, with the settings of `serving` that the marker `edge` tells."""
    async with serving(words, tmp_path, lab, **settings_of(request)) as mesh:
        yield mesh


@pytest.fixture
async def client(mesh: Running) -> AsyncIterator[H3Client]:
    """aioquic's."""
    async with client_of(mesh) as client:
        yield client
