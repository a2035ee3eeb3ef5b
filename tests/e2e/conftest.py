"""One mesh of real processes with the real model, shared by all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh


@pytest.fixture(scope="session")
def mesh() -> Iterator[LocalMesh]:
    with local_mesh() as running:
        yield running
