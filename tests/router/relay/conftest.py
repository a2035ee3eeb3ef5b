"""The mesh of every test here; its books have to add up at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.router.relay.mesh import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    mesh = Mesh()
    yield mesh
    mesh.table.check_invariants()
    for replica in mesh.registry:
        assert len(replica.sessions) <= len(mesh.table)
    mesh.metrics.close()
