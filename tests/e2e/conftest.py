"""One mesh of real processes with the real model, shared by all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.local_mesh import LocalMesh, local_mesh


@pytest.fixture(scope="session")
def mesh() -> Iterator[LocalMesh]:
    # Few sizes of calls, so that it starts in seconds; they change no text.
    few = ("inference.max_fixed_rows=4", "inference.warm_up_rows=16")
    with local_mesh(settings=few) as running:
        yield running
