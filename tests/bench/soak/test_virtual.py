"""The soak in virtual time, short: every invariant after every step, every text, nothing left."""

from __future__ import annotations

import pytest

from bench.soak.virtual import VirtualReplica


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_time_leaves_nothing_behind(seed: int) -> None:
    replica = VirtualReplica(seed, 40.0)
    totals = replica.run()
    assert totals.wrong == 0
    assert not any(end.startswith("failed") for end in totals.ends)
    assert {"STOP", "LENGTH", "CANCELLED"} <= totals.ends.keys()
    assert sum(totals.ends.values()) > 60
    assert totals.num_copies > 0
    assert 0 < replica.ledger.num_stored <= replica.engine.info.num_blocks
