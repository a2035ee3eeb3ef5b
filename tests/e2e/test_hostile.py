"""A mesh under attack, in short: `python -m bench.hostile` has all of it, and times. Attacks that
concern QUIC alone are in tests/edge/integration/test_hostile.py."""

from __future__ import annotations

import pytest

from bench.harness.local_mesh import local_mesh
from bench.hostile.__main__ import SETTINGS, hostile_target
from bench.hostile.catalog import ATTACKS, HTTP_ATTACKS
from bench.hostile.measuring import misses_of


@pytest.mark.e2e
@pytest.mark.timeout(1200)
async def test_no_attack_breaks_anything_or_leaves_anything_behind() -> None:
    # Without the draft model, which would load meanwhile.
    settings = (*SETTINGS, "edge.drafter.model=none")
    with local_mesh(engine="fake", regions="us-east", settings=settings, http=True) as mesh:
        attacks = (*ATTACKS, *HTTP_ATTACKS)
        assert await misses_of(mesh, hostile_target(mesh), attacks, 0.5) == []
