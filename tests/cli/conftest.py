"""One mesh of real processes for all commands that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh

# Room for replies that last for seconds. The drafter would load the real model, and has no part
# where the engine is none.
_SETTINGS = ("inference.max_context_tokens=16000", "edge.drafter.model=none")


@pytest.fixture(scope="session")
def mesh() -> Iterator[LocalMesh]:
    """Two regions, each with a replica of the fake engine, before one router and one edge, which
    speaks HTTP too. Tests leave it as they found it."""
    with local_mesh(engine="fake", regions="here,there", http=True, settings=_SETTINGS) as mesh:
        yield mesh
