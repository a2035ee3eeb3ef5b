"""The mesh of one edge that tests of the edge have, for its client."""

from __future__ import annotations

from tests.edge.conftest import client, mesh, words

__all__ = ["client", "mesh", "words"]
